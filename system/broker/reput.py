"""Dispatches committed entries to the consume queues and the key index, in bounded steps.

Source: RocketMQ's DefaultMessageStore.ReputMessageService, which in DLedger mode reads up to
committedPos only (DLEDGER.md section 0, row 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from typing import ClassVar

from shaketable.system.broker.broker_state import decode_state, encode_state
from shaketable.system.broker.broker_tables import BrokerTables
from shaketable.system.broker.consume_queue import ConsumeQueues, Queue, UnitReader
from shaketable.system.broker.delays.delay_levels import (
    DELIVERED_MARK,
    SCHEDULE_TOPIC,
    delivered_from,
)
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.log_format import DLEDGER_FORMAT, Dispatch, LogFormat
from shaketable.system.broker.reading.key_items import KeyItems, KeyReader
from shaketable.system.raft.batch import Batch
from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.protocol import Snapshot
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint
from shaketable.system.store.group_events import EVENT_TOPIC, body_at

NATIVE_MESSAGES_A_STEP = 10_000
"""How many messages of a native commit log are dispatched in one step."""

_INTERNAL_TOPICS = frozenset({EVENT_TOPIC, SCHEDULE_TOPIC})
"""Topics whose messages mean something to the broker itself."""

_KEY_PROPERTY = b"KEY"
"""Stands in the names of both properties that the key index knows, KEYS and UNIQ_KEY."""


class Reput:
    """What is applied of the log: `queues`, `keys` and `tables`; `applied_index` says how far.

    It begins at a checkpoint if that stands in the log, else at the log's begin: with the
    snapshot's state there, or with nothing. `native` walks the messages of a commit log from
    before the group; they are dispatched first where no checkpoint has them. It is walked
    twice, since queues of which the first messages have expired do not begin at 0.
    """

    may_lose_entries: ClassVar[bool] = False
    """Whether the tables may know of entries that the log has lost."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        checkpoint: BrokerCheckpoint | None = None,
        reader: UnitReader | None = None,
        key_reader: KeyReader | None = None,
        native: Callable[[], Iterable[Dispatch]] | None = None,
        *,
        log_format: LogFormat = DLEDGER_FORMAT,
    ) -> None:
        begin, snapshot = ledger.log.start, ledger.snapshot
        if checkpoint is not None and checkpoint.applied_index < begin.index:
            checkpoint = None
        self._native = native if checkpoint is None and begin.index < 0 else None
        if checkpoint is not None:
            state = checkpoint.state
        else:
            state = snapshot.state if snapshot and self._native is None else b""
        decoded = decode_state(state)
        self._iter_dispatches = log_format.dispatches
        self._table = log_format.table
        self._may_skip = log_format.may_skip
        self.queues = ConsumeQueues(decoded.ranges, reader, may_skip=self._may_skip)
        self.tables = BrokerTables(config, decoded)
        self.keys = KeyItems(key_reader)
        self.applied_index = checkpoint.applied_index if checkpoint else begin.index
        self._ledger = ledger
        self._config = config
        self._reader = reader
        self._key_reader = key_reader
        self._applied_position = checkpoint.applied_position if checkpoint else begin.position
        self._store_ms = checkpoint.store_ms if checkpoint else 0
        self._native_walk: Iterator[Dispatch] = iter(())
        self._native_begins: dict[Queue, tuple[int, int]] | None = None
        self._key_count = 0
        self._saved_place = (self.applied_index, begin.position) if checkpoint else (-1, -1)
        if self._native is not None:
            self._native_walk = iter(self._native())
            self._native_begins = {}
        if checkpoint is not None and checkpoint.start_position < begin.position:
            self.queues.forget_below(begin.position)

    @property
    def applied_position(self) -> int:
        """The place of the log behind what is applied."""
        return self._applied_position

    @property
    def is_key_buffer_full(self) -> bool:
        """True where key items fill their bound: a checkpoint has to take them first."""
        return self._key_count >= self._config.key_items_max > 0

    @property
    def is_checkpoint_due(self) -> bool:
        """True where key items fill half of their bound."""
        return self._key_count * 2 >= self._config.key_items_max > 0

    @property
    def has_native_left(self) -> bool:
        """True while messages of a native commit log are still to be dispatched."""
        return self._native is not None

    def apply_some(self, index: int) -> bool:
        """Dispatch entries up to `index`, one step of them; True if another step has work.

        Raises InvariantError where a queue would get a gap.
        """
        if self._native is not None:
            self._apply_native()
        else:
            self._apply_entries(index)
        is_left = self._native is not None or self.applied_index < index
        return is_left and not self.is_key_buffer_full

    def install(self, snapshot: Snapshot) -> None:
        """Start anew from a snapshot. Raises DamagedBrokerState."""
        state = decode_state(snapshot.state)
        self.queues = ConsumeQueues(state.ranges, self._reader, may_skip=self._may_skip)
        self.tables.restore(state)
        self.keys = KeyItems(self._key_reader)
        self.applied_index = snapshot.end.index
        self._applied_position = snapshot.end.position
        self._key_count = 0
        self._native = None

    def checkpoint(self) -> BrokerCheckpoint | None:
        """Return what is applied, None if nothing of it is new since the last one saved."""
        start_position = self._ledger.log.start.position
        is_saved = (self.applied_index, start_position) == self._saved_place
        if self._native is not None or is_saved:
            return None
        return BrokerCheckpoint(
            self.applied_index,
            self._applied_position,
            self._ledger.checkpoint_index,
            encode_state(self.tables.state(self.queues.ranges())),
            self.queues.units_since_checkpoint(),
            self.keys.since_checkpoint(),
            start_position,
            self._store_ms,
        )

    def checkpointed(self, checkpoint: BrokerCheckpoint) -> None:
        """Take note that a checkpoint of this state was saved."""
        self._saved_place = (checkpoint.applied_index, checkpoint.start_position)
        self.queues.checkpointed(checkpoint.units)
        self.keys.checkpointed(checkpoint.keys)
        self._key_count -= len(checkpoint.keys)

    def _apply_native(self) -> None:
        """Do a step of the first walk, which finds where queues begin, or of the second."""
        assert self._native is not None
        step = list(islice(self._native_walk, NATIVE_MESSAGES_A_STEP))
        if self._native_begins is not None:
            for queue, offset, *_ in step:
                self._native_begins.setdefault(queue, (offset, offset))
        else:
            for queue, offset, position, size, tags_code, store_ms, _ in step:
                if queue[0] == SCHEDULE_TOPIC:
                    tags_code = store_ms + self._config.delay_ms(queue[1])  # noqa: PLW2901
                self.queues.append(queue, offset, position, size, tags_code)
                self._store_ms = store_ms
        if step:
            return
        if self._native_begins is not None:
            self.queues = ConsumeQueues(self._native_begins, self._reader)
            self._native_begins = None
            self._native_walk = iter(self._native())
        else:
            self._native = None
            self._end_native()

    def _apply_entries(self, index: int) -> None:
        left = self._config.apply_bytes_max
        while self.applied_index < index and left > 0 and not self.is_key_buffer_full:
            for batch in self._ledger.log.batches_from(self.applied_index + 1, left):
                part = batch if batch.last_index <= index else batch.until(index)
                if self._dispatch_table(part):
                    pass
                elif self._config.key_items_max:
                    self._dispatch_keys(part.data, part.position)
                else:
                    self._dispatch(part.data, part.position)
                self.applied_index = part.last_index
                self._applied_position = part.end_position
                left -= len(part.data)
                if part.last_index == index:
                    break

    def _dispatch_table(self, batch: Batch) -> bool:
        """Dispatch all of a batch at once; False, and nothing is done, where it is not that easy.

        Events and delayed messages are taken one by one.
        """
        table = self._table(batch.data, batch.position, batch.count)
        if table is None or table.topic in _INTERNAL_TOPICS:
            return False
        runs = table.runs()
        if runs is None or any(DELIVERED_MARK in properties for properties in table.properties):
            return False
        for run in runs:
            self.queues.append_run(*run)
        if self._config.key_items_max:
            items = table.key_items(_KEY_PROPERTY)
            self.keys.extend(items)
            self._key_count += len(items)
        self._store_ms = int(table.store_ms[-1])
        return True

    def _dispatch(self, data: bytes, position: int) -> None:
        append = self.queues.append
        for queue, offset, at, size, tags_code, store_ms, properties in self._iter_dispatches(
            data, position
        ):
            if queue[0] == SCHEDULE_TOPIC:
                tags_code = store_ms + self._config.delay_ms(queue[1])  # noqa: PLW2901
            append(queue, offset, at, size, tags_code)
            if queue[0] == EVENT_TOPIC:
                self._apply_event(queue[1], data, at - position)
            if DELIVERED_MARK in properties:
                self._note_delivery(properties)
            self._store_ms = store_ms

    def _dispatch_keys(self, data: bytes, position: int) -> None:
        append, append_key = self.queues.append, self.keys.append
        count = 0
        for queue, offset, at, size, tags_code, store_ms, properties in self._iter_dispatches(
            data, position
        ):
            if queue[0] == SCHEDULE_TOPIC:
                tags_code = store_ms + self._config.delay_ms(queue[1])  # noqa: PLW2901
            append(queue, offset, at, size, tags_code)
            if queue[0] == EVENT_TOPIC:
                self._apply_event(queue[1], data, at - position)
            if DELIVERED_MARK in properties:
                self._note_delivery(properties)
            if _KEY_PROPERTY in properties:
                append_key((queue[0], properties, at, store_ms))
                count += 1
            self._store_ms = store_ms
        self._key_count += count

    def _apply_event(self, queue_id: int, data: bytes, at: int) -> None:
        """Take an entry of the reserved topic, whose message begins at byte `at` of `data`."""
        self.tables.apply(queue_id, body_at(data, at))

    def _note_delivery(self, properties: bytes) -> None:
        """Take note of a delayed message that was delivered."""
        if (place := delivered_from(properties)) is not None:
            self.tables.delivered(*place)

    def _end_native(self) -> None:
        """The native log is dispatched: what was due before its last message was delivered there.

        Each delivery stored a message, so what was due later was not delivered.
        """
        for queue, (begin, _) in self.queues.ranges().items():
            if queue[0] != SCHEDULE_TOPIC:
                continue
            offset = begin
            while units := self.queues.units(queue, offset, NATIVE_MESSAGES_A_STEP):
                done = sum(1 for _ in takewhile(lambda unit: unit[2] <= self._store_ms, units))
                if done:
                    offset += done
                    self.tables.delivered(queue[1], offset - 1)
                if done < len(units):
                    break
