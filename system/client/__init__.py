"""Public client API (trio): send, pull, offsets; finds the leader by itself."""

from system.client.connection import DamagedResponseError, OutcomeUnknownError, RefusedError
from system.client.group import BrokerGroupClient, Metadata, PullResult, SendResult

__all__ = [
    "BrokerGroupClient",
    "DamagedResponseError",
    "Metadata",
    "OutcomeUnknownError",
    "PullResult",
    "RefusedError",
    "SendResult",
]
