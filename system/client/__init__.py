"""Public client API (trio): send, pull, offsets, administration; finds the leader by itself."""

from system.client.admin import AdminClient, AdminTimeoutError
from system.client.connection import DamagedResponseError, OutcomeUnknownError, RefusedError
from system.client.group import BrokerGroupClient
from system.client.results import BatchResult, Metadata, PullResult, SendResult
from system.remoting.batch_body import BatchMessage

__all__ = [
    "AdminClient",
    "AdminTimeoutError",
    "BatchMessage",
    "BatchResult",
    "BrokerGroupClient",
    "DamagedResponseError",
    "Metadata",
    "OutcomeUnknownError",
    "PullResult",
    "RefusedError",
    "SendResult",
]
