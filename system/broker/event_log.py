"""Writes changes of topics and group offsets to the log, as entries of a reserved topic.

The interface between the broker's tables and consensus: append an entry, answer the request once
a quorum has acknowledged it. Every member applies these entries in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from shaketable.system.broker.appender import Appender, PendingAppend, PendingAppends
from shaketable.system.broker.effects import AnyRequest, Connection, Outbox
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import Reput
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import response
from shaketable.system.store.entry import BLANK_BYTES, ENTRY_BYTES_MAX
from shaketable.system.store.group_events import EVENT_TOPIC, MIGRATION_QUEUE

BODY_BYTES_MAX = 64 * 1024
_OVERHEAD_BYTES = 512  # entry header, message head, reserved topic and properties


def body_bytes_max(config: BrokerConfig) -> int:
    """Return the largest body of one event entry, in bytes."""
    entry_bytes_max = min(ENTRY_BYTES_MAX, config.data_file_bytes - BLANK_BYTES)
    return min(BODY_BYTES_MAX, entry_bytes_max - _OVERHEAD_BYTES)


class EventLog:
    """Builds entries of the reserved topic, after those of the sends built so far."""

    is_replicated: ClassVar[bool] = True
    """Whether an event takes effect only when committed, so that reads need a read index."""

    def __init__(
        self,
        appender: Appender,
        pending: PendingAppends,
        outbox: Outbox,
        config: BrokerConfig,
        reput: Reput,
    ) -> None:
        self._appender = appender
        self._pending = pending
        self._outbox = outbox
        self._config = config
        self._reput = reput
        self.body_bytes_max = body_bytes_max(config)
        """The largest body of one entry, in bytes."""

    @property
    def is_ready(self) -> bool:
        """Whether entries may be written: this member leads and has applied all earlier terms."""
        return self._appender.is_ready

    @property
    def is_migration_pending(self) -> bool:
        """Whether topics and offsets from before the group are not in the tables yet."""
        return self._appender.is_migration_pending

    @property
    def term(self) -> int:
        """The term in which this member appends, -1 if in none (`Appender.term`)."""
        return self._appender.term

    @property
    def end_index(self) -> int:
        """The last entry built so far."""
        return self._appender.builder.end.index

    @property
    def applied_index(self) -> int:
        """The last entry that this member has applied."""
        return self._appender.applied_index

    def version(self, queue_id: int) -> int:
        """Return how many events of this queue, and migrations, were dispatched to the queues.

        It only rises and is equal on all members. Reserved queues hold one event a message, so
        their max offsets count the events.
        """
        max_offset = self._reput.queues.max_offset
        return max_offset((EVENT_TOPIC, queue_id)) + max_offset((EVENT_TOPIC, MIGRATION_QUEUE))

    def refuse(
        self, connection: Connection, request: AnyRequest, code: ResponseCode, remark: str
    ) -> None:
        """Answer that a request certainly had no effect, and why."""
        self._outbox.refuse(connection, request, code, remark)

    def refuse_not_ready(self, connection: Connection, request: AnyRequest) -> bool:
        """Refuse a request if no entry can be written now; return True if refused."""
        if not self._appender.is_ready:
            self._outbox.refuse_not_leader(connection, request)
            return True
        return False

    def refuse_full(self, connection: Connection, request: AnyRequest, more: int = 0) -> bool:
        """Refuse a request if too many appends wait, counting `more`; return True if refused."""
        limit = self._config.pending_sends_max
        if len(self._pending.waiting) + more < limit:
            return False
        remark = f"[503] {limit} appends wait for the group already"
        self._outbox.refuse(connection, request, ResponseCode.SYSTEM_BUSY, remark)
        return True

    def write(self, queue_id: int, properties: bytes, body: bytes, wall_ms: int) -> None:
        """Build an entry for a queue of the reserved topic. Requires `is_ready`."""
        assert len(body) <= self.body_bytes_max
        queue = (EVENT_TOPIC, queue_id)
        offset = self._appender.offset_of(queue)
        self._appender.builder.add(
            EVENT_TOPIC, queue_id, offset, body, properties, store_ms=wall_ms, born_ms=wall_ms
        )
        self._appender.next_offset[queue] = offset + 1

    def answer_when_acknowledged(
        self,
        connection: Connection,
        request: AnyRequest,
        now_ms: float,
        ext: dict[str, str] | None = None,
    ) -> None:
        """Answer SUCCESS once the events written so far take effect."""
        self.answer_when_stored(connection, request, now_ms, ext)

    def answer_when_stored(
        self,
        connection: Connection,
        request: AnyRequest,
        now_ms: float,
        ext: dict[str, str] | None = None,
    ) -> None:
        """Answer SUCCESS once everything built so far is acknowledged, as for a send."""
        if request.is_oneway:
            return
        reply = response(
            request.opaque, ResponseCode.SUCCESS, ext=ext, serialize_type=request.serialize_type
        )
        self._pending.waiting.append(
            PendingAppend(
                self._appender.builder.end.index,
                now_ms + self._config.ack_timeout_ms,
                connection,
                request.opaque,
                request.serialize_type,
                reply,
            )
        )

    def on_discard(self, callback: Callable[[int], None]) -> None:
        """Register a callback for built entries that the core refused, or whose term ended.

        It gets the index of the last built entry that is kept, -1 at a term's end.
        """
        self._appender.discard_callbacks.append(callback)
