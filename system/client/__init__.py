"""Public client API (trio): send, pull, consume in groups, offsets, administration.

`Producer`, `PullConsumer` and `GroupConsumer` find brokers by name servers, as RocketMQ's clients
do; `BrokerGroupClient` and `AdminClient` know the members of one DLedger group.
"""

from system.client.admin import AdminClient, AdminTimeoutError
from system.client.connection import DamagedResponseError, OutcomeUnknownError, RefusedError
from system.client.group import BrokerGroupClient
from system.client.group_consumer import GroupConsumer, Intervals
from system.client.group_membership import GroupMembership
from system.client.name_servers import brokers
from system.client.offsets import commit_offset, committed_offset
from system.client.parts import ClientParts
from system.client.producer import Producer, Sent
from system.client.pull_consumer import PullConsumer, Pulled, id_behind, stored_bytes, tags_of
from system.client.queue_reader import ConsumeError
from system.client.results import BatchResult, Metadata, PullResult, SendResult
from system.client.routes import MessageQueue
from system.remoting.batch_body import BatchMessage
from system.remoting.codes import ResponseCode
from system.store.message import Message

__all__ = [
    "AdminClient",
    "AdminTimeoutError",
    "BatchMessage",
    "BatchResult",
    "BrokerGroupClient",
    "ClientParts",
    "ConsumeError",
    "DamagedResponseError",
    "GroupConsumer",
    "GroupMembership",
    "Intervals",
    "Message",
    "MessageQueue",
    "Metadata",
    "OutcomeUnknownError",
    "Producer",
    "PullConsumer",
    "PullResult",
    "Pulled",
    "RefusedError",
    "ResponseCode",
    "SendResult",
    "Sent",
    "brokers",
    "commit_offset",
    "committed_offset",
    "id_behind",
    "stored_bytes",
    "tags_of",
]
