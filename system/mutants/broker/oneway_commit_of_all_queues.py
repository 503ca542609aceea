"""A one-way commit of one queue is taken for all queues of the topic that the group has.

Source: our own, after RocketMQ's RemoteBrokerOffsetStore.persistAll, which tells the offsets of all
queues one-way and one after the other: a broker that reads one of them for the whole.
"""

from __future__ import annotations

from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.groups.group_offsets import key_of
from shaketable.system.broker.groups.offset_commits import OffsetCommits
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import UpdateConsumerOffset


class _OfAllQueues(OffsetCommits):
    """Stores what comes one-way for every queue that it knows."""

    def update(self, connection: Connection, command: Command, wall_ms: int) -> None:
        super().update(connection, command, wall_ms)
        if command.is_oneway and self._events.is_ready:
            fields = UpdateConsumerOffset.from_ext(command.ext)
            group, topic = fields.consumer_group, fields.topic
            for queue_id in self.table.state().get(key_of(group, topic), {}):
                self.store(group, topic, queue_id, fields.commit_offset, wall_ms)


class OnewayCommitOfAllQueues(Broker):
    """A broker that commits so."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._groups.offsets.__class__ = _OfAllQueues  # the same object, with another way to commit


PLUGIN = Mutant(
    "oneway-commit-of-all-queues",
    broker=OnewayCommitOfAllQueues,
    hunt=Hunt("queue-offsets", ("transfer", "kill")),
)
