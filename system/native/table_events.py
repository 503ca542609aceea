"""Topic and offset changes of a master-slave broker: applied at once, without replication.

The configuration files (`system.native.config_files`) are written periodically, so after a crash an
offset may go back: a known weakness of RocketMQ.
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
    """Applies topic changes on a master. Slaves refuse them and copy their master's tables."""

    is_replicated: ClassVar[bool] = False

    @property
    def end_index(self) -> int:
        """Return -1: no change is ever pending."""
        return -1

    def version(self, queue_id: int) -> int:
        """Return how many changes of this kind there were."""
        return self._reput.tables.versions[queue_id]

    def write(self, queue_id: int, properties: bytes, body: bytes, wall_ms: int) -> None:
        """Apply the event to its table."""
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
        """Answer SUCCESS: the change is already in effect."""
        del now_ms
        if not request.is_oneway:
            serialize_type = request.serialize_type
            reply = response(
                request.opaque, ResponseCode.SUCCESS, ext=ext, serialize_type=serialize_type
            )
            self._outbox.put(connection, reply)

    def on_discard(self, callback: Callable[[int], None]) -> None:
        """Do nothing: a change is never rolled back."""


class OffsetEvents(TableEvents):
    """Applies offset commits on a master, and on a slave until it next copies its master's tables.

    Source: RocketMQ's ConsumerManageProcessor, which does not check the role.
    """

    @property
    def is_ready(self) -> bool:
        """Return True: offsets are accepted in every role."""
        return True

    def refuse_not_ready(self, connection: Connection, request: AnyRequest) -> bool:
        """Refuse nothing."""
        del connection, request
        return False
