"""The classes that a client is made of: the correct ones, or those of a planted bug."""

from __future__ import annotations

from dataclasses import dataclass

from shaketable.system.client.group import BrokerGroupClient
from shaketable.system.client.group_consumer import GroupConsumer, GroupMembership
from shaketable.system.client.producer import Producer
from shaketable.system.client.pull_consumer import PullConsumer


@dataclass(frozen=True, slots=True)
class ClientParts:
    """The class of each part."""

    group_client: type[BrokerGroupClient] = BrokerGroupClient
    producer: type[Producer] = Producer
    pull_consumer: type[PullConsumer] = PullConsumer
    membership: type[GroupMembership] = GroupMembership
    group_consumer: type[GroupConsumer] = GroupConsumer
