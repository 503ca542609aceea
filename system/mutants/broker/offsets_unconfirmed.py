"""Whoever is asked for a group's offset answers from its own table, whether it leads or not.

A leader that was cut off, and replaced without knowing it, lets a group go on where it stood
before; so does a member that has not applied the last commits yet.

Source: RocketMQ's ConsumerManageProcessor.queryConsumerOffset, which asks nobody (5.3.3).
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import Connection
from shaketable.system.mutants import GROUP, Hunt, Mutant
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import QueryConsumerOffset, QueueOffsetResponse


class OffsetsUnconfirmed(Broker):
    """A broker that answers for offsets at once."""

    def _command(
        self,
        connection: Connection,
        born_host: bytes,
        command: Command,
        now_ms: float,
        wall_ms: int,
    ) -> None:
        if command.is_response or command.code != RequestCode.QUERY_CONSUMER_OFFSET:
            super()._command(connection, born_host, command, now_ms, wall_ms)
            return
        asked = QueryConsumerOffset.from_ext(command.ext)
        known = self.tables.offsets
        offset = known.get(asked.consumer_group, asked.topic, asked.queue_id)
        if offset is None:
            remark = "nothing is committed here"
            self._outbox.answer(connection, command, ResponseCode.QUERY_NOT_FOUND, remark)
        else:
            self._outbox.answer(connection, command, ext=QueueOffsetResponse(offset).to_ext())


PLUGIN = Mutant(
    "offsets-unconfirmed",
    broker=OffsetsUnconfirmed,
    targets=GROUP,
    hunt=Hunt("offsets", ("pause", "partition")),
)
