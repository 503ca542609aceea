"""Public client API (trio): send, pull, offsets; finds the leader by itself."""

from system.client.connection import OutcomeUnknownError, RefusedError
from system.client.group import BrokerGroupClient, Metadata, PullResult, SendResult

__all__ = [
    "BrokerGroupClient",
    "Metadata",
    "OutcomeUnknownError",
    "PullResult",
    "RefusedError",
    "SendResult",
]
