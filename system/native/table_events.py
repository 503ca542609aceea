"""What is said about topics and group offsets, where no group has to agree: it holds at once.

A master's tables are its own; the files of its configuration (`system.native.config_files`) are
written now and then, so that after a crash an offset may go back: RocketMQ's known weakness.
Source: RocketMQ's TopicConfigManager and ConsumerOffsetManager; DLEDGER.md E24.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from shaketable.system.broker.effects import Connection
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.outbox import AnyRequest
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.responses import response


class TableEvents(EventLog):
    """Changes the tables of a master; slaves refuse, and take their master's."""

    is_replicated: ClassVar[bool] = False

    @property
    def end_index(self) -> int:
        """Return that nothing is on its way."""
        return -1

    def version(self, queue_id: int) -> int:
        """How many changes of this kind there were."""
        return self._reput.tables.versions[queue_id]

    def write(self, queue_id: int, properties: bytes, body: bytes, wall_ms: int) -> None:
        """Change the table that the event is about."""
        del properties, wall_ms
        tables = self._reput.tables
        tables.apply(queue_id, body)
        tables.versions[queue_id] += 1

    def answer_when_acknowledged(
        self,
        connection: Connection,
        request: AnyRequest,
        now_ms: float,
        ext: dict[str, str] | None = None,
    ) -> None:
        """Answer SUCCESS: what was written holds."""
        del now_ms
        if not request.is_oneway:
            serialize_type = request.serialize_type
            reply = response(
                request.opaque, ResponseCode.SUCCESS, ext=ext, serialize_type=serialize_type
            )
            self._outbox.put(connection, reply)

    def on_discard(self, callback: Callable[[int], None]) -> None:
        """Do nothing: what is written is never taken back."""


class OffsetEvents(TableEvents):
    """Changes the offsets of a master, and of a slave: there until its master's come again.

    Source: RocketMQ's ConsumerManageProcessor, which looks at no role.
    """

    @property
    def is_ready(self) -> bool:
        """Return that offsets are always taken."""
        return True

    def refuse_not_ready(self, connection: Connection, request: AnyRequest) -> bool:
        """Refuse nothing."""
        del connection, request
        return False
