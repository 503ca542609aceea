"""Public client API (trio): send, pull, consume in groups, offsets, administration.

`Producer`, `PullConsumer` and `GroupConsumer` find brokers through name servers, as RocketMQ's
clients do. `BrokerGroupClient` and `AdminClient` are given the members of one DLedger group.
"""

from dataclasses import dataclass

from shaketable.system.client.connection import (
    DamagedResponseError,
    OutcomeUnknownError,
    RefusedError,
    brokers,
)
from shaketable.system.client.group import (
    AdminClient,
    AdminTimeoutError,
    BatchResult,
    BrokerGroupClient,
    Metadata,
    PullResult,
    SendResult,
    commit_offset,
    committed_offset,
)
from shaketable.system.client.group_consumer import (
    ConsumeError,
    GroupConsumer,
    GroupMembership,
    Intervals,
)
from shaketable.system.client.producer import Producer, Sent
from shaketable.system.client.pull_consumer import (
    PullConsumer,
    Pulled,
    id_after,
    stored_bytes,
    tags_of,
)
from shaketable.system.client.routes import MessageQueue
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.requests import BatchMessage
from shaketable.system.store.message import Message

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
    "id_after",
    "stored_bytes",
    "tags_of",
]


@dataclass(frozen=True, slots=True)
class ClientParts:
    """The classes that a client is made of: the correct ones, or those of a planted bug."""

    group_client: type[BrokerGroupClient] = BrokerGroupClient
    producer: type[Producer] = Producer
    pull_consumer: type[PullConsumer] = PullConsumer
    membership: type[GroupMembership] = GroupMembership
    group_consumer: type[GroupConsumer] = GroupConsumer
