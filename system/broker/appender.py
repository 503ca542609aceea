"""Appends entries to the log while this member leads, and assigns their queue offsets.

Source: RocketMQ's DLedgerCommitLog.putMessage (queue offsets are given before replication);
DLEDGER.md D.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from shaketable.system.broker.consume_queue import Queue
from shaketable.system.broker.core import DLEDGER_FORMAT, Builder, Core, LogFormat
from shaketable.system.broker.effects import Connection, Outbox
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import Reput
from shaketable.system.broker.topic_tables import taken_over
from shaketable.system.raft.membership import Membership, MembershipError
from shaketable.system.raft.protocol import (
    Batch,
    DiskFullError,
    NotLeaderError,
    PendingFullError,
    TransferError,
)
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import response
from shaketable.system.store.entry import EntryTooLarge, iter_messages
from shaketable.system.store.group_events import (
    EVENT_TOPIC,
    MEMBERSHIP_QUEUE,
    MIGRATION_PROPERTIES,
    MIGRATION_QUEUE,
    TERM_START_PROPERTIES,
    TERM_START_QUEUE,
)
from shaketable.system.store.message import Message

# Appends that wait for a quorum's acknowledgement.
#
# Source: DLedgerEntryPusher's pendingAppendResponsesByTerm and QuorumAckChecker.


class PendingAppend(NamedTuple):
    """An append that waits for its acknowledgement.

    Attributes:
        last_index: index of its last entry.
        due_ms: when it is answered as unknown.
        connection: where its reply goes.
        opaque: the request's number on its connection.
        serialize_type: the serialization of the reply's header.
        reply: the encoded success reply.
        wait_store_ok: the sender waits for disk and slave (RocketMQ's isWaitStoreMsgOK).
    """

    last_index: int
    due_ms: float
    connection: Connection
    opaque: int
    serialize_type: int
    reply: bytes
    wait_store_ok: bool = True


class PendingAppends:
    """The pending appends of one term, in log order. Callers that add one check the limit."""

    def __init__(self, core: Core, outbox: Outbox) -> None:
        self.waiting: deque[PendingAppend] = deque()
        self._core = core
        self._outbox = outbox
        self._term = core.term

    def acknowledge(self, index: int) -> None:
        """Answer the appends up to `index`."""
        waiting, put = self.waiting, self._outbox.put
        while waiting and waiting[0].last_index <= index:
            append = waiting.popleft()
            put(append.connection, append.reply)

    def expire(self, now_ms: float) -> None:
        """Answer appends that no quorum acknowledged in time as unknown."""
        while self.waiting and self.waiting[0].due_ms <= now_ms:
            self._answer_unknown(self.waiting.popleft(), "[502] no quorum acknowledged in time")

    def refuse_unappended(self, refusal: Refusal) -> None:
        """Refuse the appends whose entries the core rejected: those after the end of its log."""
        code, remark = refusal
        end_index, waiting = self._core.log.end_index, self.waiting
        refused = []
        while waiting and waiting[-1].last_index > end_index:
            refused.append(waiting.pop())
        ext = {"leaderId": self._core.leader or ""}
        for append in reversed(refused):
            reply = response(append.opaque, code, remark, ext, serialize_type=append.serialize_type)
            self._outbox.put(append.connection, reply)

    def end_term(self) -> None:
        """Answer all pending appends, since this member's term is over.

        An append whose entry is committed, and still has this term, is acknowledged. The outcome
        of the others is unknown: the next leader may commit or truncate them.
        """
        # An index and a term identify an entry (Raft's log matching property), so a committed
        # entry with the same index and term is the one that was appended.
        log, committed = self._core.log, self._core.ledger.commit_index
        for append in self.waiting:
            is_committed = log.start.index <= append.last_index <= committed
            if is_committed and log.term_at(append.last_index) == self._term:
                self._outbox.put(append.connection, append.reply)
            else:
                self._answer_unknown(append, "[501] the term changed before a quorum acknowledged")
        self.waiting.clear()

    def start_term(self) -> None:
        """Answer the appends of the old term, and start collecting those of the core's term."""
        self.end_term()
        self._term = self._core.term

    def _answer_unknown(self, append: PendingAppend, why: str) -> None:
        reply = response(
            append.opaque,
            ResponseCode.SYSTEM_ERROR,
            why,
            serialize_type=append.serialize_type,
        )
        self._outbox.put(append.connection, reply)


Refusal = tuple[ResponseCode, str]
"""Why nothing was appended, as code and remark. Its outcome is definite."""
HOST_BYTES = 8
"""An IPv4 address and a port."""


class Appender:
    """Builds this term's entries and appends them to the core.

    `next_offset` holds the next offset of each queue that this term's entries have extended. Any
    other queue continues at its max offset, which is final once every earlier term is applied
    (`is_ready`). Invariant: the entries in `builder` follow the end of the core's log.

    `discard_callbacks` run when the core refuses the built entries, and when a term ends. They
    get the index of the last built entry that is kept, -1 at a term's end.

    `to_migrate` are entry bodies (`taken_over`) that the group's log must get once.
    """

    def __init__(
        self,
        core: Core,
        reput: Reput,
        config: BrokerConfig,
        log_format: LogFormat = DLEDGER_FORMAT,
        to_migrate: tuple[bytes, ...] = (),
    ) -> None:
        self.next_offset: dict[Queue, int] = {}
        self.discard_callbacks: list[Callable[[int], None]] = []
        self._core = core
        self._reput = reput
        self._config = config
        self._format = log_format
        self._builder: Builder | None = None
        self._term = -1
        self._term_start_index = -1
        self._to_migrate = to_migrate
        self._migrated_in_term = -1
        if core.is_ready:  # it leads without an election, from the end of the recovered log
            self._term, self._term_start_index = core.term, core.log.end_index

    @property
    def is_ready(self) -> bool:
        """Whether this member leads and knows every queue's next offset."""
        return self._is_caught_up and not self.is_migration_pending

    @property
    def is_migration_pending(self) -> bool:
        """Whether state from before the group must still be applied before clients are served."""
        if self._to_migrate and taken_over.is_done(self._reput.tables.offsets):
            self._to_migrate = ()
        return bool(self._to_migrate)

    @property
    def _is_caught_up(self) -> bool:
        return (
            self._term == self._core.term
            and self._reput.applied_index >= self._term_start_index
            and self._core.is_ready
        )

    @property
    def term(self) -> int:
        """The term in which this member appends, -1 if it leads none or has not begun it."""
        return self._term

    @property
    def applied_index(self) -> int:
        """The last entry applied here."""
        return self._reput.applied_index

    @property
    def builder(self) -> Builder:
        """The builder of the next entries; `append` passes them to the core."""
        if self._builder is None:
            self._builder = self._format.new_builder(
                self._core.log.end(),
                self._core.term,
                self._config.data_file_bytes,
                self._config.store_host,
            )
        return self._builder

    def offset_of(self, queue: Queue) -> int:
        """Return the offset that the queue's next message gets."""
        offset = self.next_offset.get(queue)
        return self._reput.queues.max_offset(queue) if offset is None else offset

    def start_term(self, now_ms: float, wall_ms: int) -> None:
        """Append the no-op entry of a new leader.

        A leader commits entries of earlier terms only by committing one of its own term (Raft
        section 5.4.2). Older entries may not be applied yet, so the queue offset of this one
        also counts the term starts among them.
        """
        core, queues = self._core, self._reput.queues
        self.end_term()
        self._term = core.term
        self._term_start_index = core.log.end_index + 1
        offset = queues.max_offset((EVENT_TOPIC, TERM_START_QUEUE))
        self.builder.add(
            EVENT_TOPIC,
            TERM_START_QUEUE,
            offset + self._term_starts_after(self._reput.applied_index),
            f"{core.member} leads term {core.term}".encode(),
            TERM_START_PROPERTIES,
            store_ms=wall_ms,
            born_ms=wall_ms,
        )
        self.append(now_ms)  # if refused, the core asks for it again

    def _term_starts_after(self, index: int) -> int:
        """Return how many entries after `index` start a term; entries of imported logs do not."""
        log = self._core.log
        return sum(
            _is_term_start(log.batches_from(first, 1)[0]) for first in log.term_starts_after(index)
        )

    def migrate(self, now_ms: float, wall_ms: int) -> None:
        """Append the state from before the group, once a term."""
        if (
            not self.is_migration_pending
            or self._migrated_in_term == self._term
            or not self._is_caught_up
        ):
            return
        queue = (EVENT_TOPIC, MIGRATION_QUEUE)
        for body in self._to_migrate:
            offset = self.offset_of(queue)
            properties = MIGRATION_PROPERTIES
            self.builder.add(*queue, offset, body, properties, store_ms=wall_ms, born_ms=wall_ms)
            self.next_offset[queue] = offset + 1
        if self.append(now_ms) is None:
            self._migrated_in_term = self._term

    def end_term(self) -> None:
        """Drop all state that is valid only while this member leads."""
        self._builder = None
        self.next_offset.clear()
        if self._term != -1:
            self._term = -1
            self._run_discard_callbacks(-1)

    def append(self, now_ms: float) -> Refusal | None:
        """Append the built entries to the core; if it refuses, discard all of them."""
        if self._builder is None or not (batches := self._builder.take()):
            return None
        try:
            self._core.append(batches, now_ms)
        except TransferError as error:
            refusal = ResponseCode.SERVICE_NOT_AVAILABLE, f"[506] {error}"
        except NotLeaderError as error:
            refusal = ResponseCode.SERVICE_NOT_AVAILABLE, f"[404] {error}"
        except DiskFullError as error:
            refusal = ResponseCode.SYSTEM_BUSY, f"[415] disk full: {error}"
        except PendingFullError as error:
            refusal = ResponseCode.SYSTEM_BUSY, f"[503] {error}"
        except MembershipError as error:
            refusal = ResponseCode.NO_PERMISSION, f"[504] {error}"
        else:
            return None
        # Walk backwards, so that each queue ends at the offset of its first discarded message.
        for batch in reversed(batches):
            discarded = list(self._format.dispatches(batch.data, batch.position))
            for queue, offset, *_ in reversed(discarded):
                self.next_offset[queue] = offset
        self._builder = None
        self._run_discard_callbacks(self._core.log.end_index)
        return refusal

    def append_membership(
        self, membership: Membership, now_ms: float, wall_ms: int
    ) -> Refusal | None:
        """Append the entry that sets a membership. The builder must be empty."""
        queue = (EVENT_TOPIC, MEMBERSHIP_QUEUE)
        offset = self.offset_of(queue)
        try:
            self.builder.add_membership(membership, offset, wall_ms)
        except EntryTooLarge as error:
            return ResponseCode.NO_PERMISSION, f"[504] {error}"
        self.next_offset[queue] = offset + 1
        return self.append(now_ms)

    def copy(
        self,
        message: Message,
        queue: Queue,
        properties: bytes,
        reconsume_times: int,
        wall_ms: int,
    ) -> None:
        """Build a copy of a stored message for another queue. Raises EntryTooLarge.

        An IPv6 sender address is lost: entries have room for IPv4 only.
        """
        offset = self.offset_of(queue)
        born_host = message.born_host
        self.builder.add(
            *queue,
            offset,
            message.body,
            properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=message.born_ms,
            born_host=born_host if len(born_host) == HOST_BYTES else bytes(HOST_BYTES),
            store_ms=wall_ms,
            reconsume_times=reconsume_times,
        )
        self.next_offset[queue] = offset + 1

    def _run_discard_callbacks(self, last_kept: int) -> None:
        for callback in self.discard_callbacks:
            callback(last_kept)


def _is_term_start(batch: Batch) -> bool:
    """Whether a batch starts with a new leader's no-op entry."""
    *_, topic, queue_id, _ = next(iter_messages(batch.data, batch.position))
    return (topic, queue_id) == (EVENT_TOPIC, TERM_START_QUEUE)
