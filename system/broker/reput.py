"""Dispatches committed entries to the consume queues, the key index and the tables, in steps.

Source: RocketMQ's DefaultMessageStore.ReputMessageService, which in DLedger mode reads up to
committedPos only (DLEDGER.md section 0, row 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from typing import ClassVar

from shaketable.system.broker.broker_state import BrokerState, decode_state, encode_state
from shaketable.system.broker.consume_queue import ConsumeQueues, Queue, Ranges, UnitReader
from shaketable.system.broker.core import DLEDGER_FORMAT, Dispatch, LogFormat
from shaketable.system.broker.delay_levels import (
    DELIVERED_MARK,
    DELIVERY_GROUP,
    LEVELS_MAX,
    SCHEDULE_TOPIC,
    delivered_from,
)
from shaketable.system.broker.groups.group_offsets import OffsetTable
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reading.key_items import KeyItems, KeyReader
from shaketable.system.broker.topic_tables import taken_over
from shaketable.system.broker.topic_tables.topics import TopicTable
from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.protocol import Batch, Snapshot
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint
from shaketable.system.store.group_events import (
    EVENT_TOPIC,
    MIGRATION_QUEUE,
    OFFSET_QUEUE,
    TOPIC_QUEUE,
    body_at,
)

PLAIN_MESSAGES_A_STEP = 10_000
"""Messages of a plain commit log that one step dispatches."""

_INTERNAL_TOPICS = frozenset({EVENT_TOPIC, SCHEDULE_TOPIC})
"""Topics whose messages the broker itself interprets."""

_KEY_PROPERTY = b"KEY"
"""Part of the names of both indexed properties, KEYS and UNIQ_KEY."""


class Reput:
    """Dispatches the log to `queues`, `keys` and `tables`, up to `applied_index`.

    It starts at a checkpoint if the log still reaches back to it, else at the log's start, with
    the snapshot's state or empty. `plain_log` iterates over the messages of a commit log from
    before the group; they are dispatched first unless the checkpoint includes them. It takes two
    passes: the first finds the min offset of each queue, which is not 0 if messages have expired.
    """

    may_lose_entries: ClassVar[bool] = False
    """Whether the tables may reflect messages that the log has lost."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        checkpoint: BrokerCheckpoint | None = None,
        reader: UnitReader | None = None,
        key_reader: KeyReader | None = None,
        plain_log: Callable[[], Iterable[Dispatch]] | None = None,
        *,
        log_format: LogFormat = DLEDGER_FORMAT,
    ) -> None:
        start, snapshot = ledger.log.start, ledger.snapshot
        if checkpoint is not None and checkpoint.applied_index < start.index:
            checkpoint = None
        self._plain_log = plain_log if checkpoint is None and start.index < 0 else None
        if checkpoint is not None:
            state = checkpoint.state
        else:
            state = snapshot.state if snapshot and self._plain_log is None else b""
        decoded = decode_state(state)
        self._iter_dispatches = log_format.dispatches
        self._table = log_format.table
        self._may_skip = log_format.may_skip
        self.queues = ConsumeQueues(
            decoded.ranges,
            reader,
            tail_units_max=config.queue_tail_max,
            may_skip=self._may_skip,
        )
        self.tables = BrokerTables(config, decoded)
        self.keys = KeyItems(key_reader)
        self.applied_index = checkpoint.applied_index if checkpoint else start.index
        self._ledger = ledger
        self._config = config
        self._reader = reader
        self._key_reader = key_reader
        self._applied_position = checkpoint.applied_position if checkpoint else start.position
        self._store_ms = checkpoint.store_ms if checkpoint else 0
        self._plain_walk: Iterator[Dispatch] = iter(())
        self._plain_ranges: dict[Queue, tuple[int, int]] | None = None
        self._key_count = 0
        self._saved_place = (self.applied_index, start.position) if checkpoint else (-1, -1)
        if self._plain_log is not None:
            self._plain_walk = iter(self._plain_log())
            self._plain_ranges = {}
        if checkpoint is not None and checkpoint.start_position < start.position:
            self.queues.forget_below(start.position)

    @property
    def applied_position(self) -> int:
        """The log position after the last applied entry."""
        return self._applied_position

    @property
    def is_key_buffer_full(self) -> bool:
        """Whether applying must wait until a checkpoint saves the key items."""
        return self._key_count >= self._config.key_items_max > 0

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether key items fill half of their limit."""
        return self._key_count * 2 >= self._config.key_items_max > 0

    @property
    def is_plain_pending(self) -> bool:
        """Whether messages of a plain commit log remain to be dispatched."""
        return self._plain_log is not None

    def apply_some(self, index: int) -> bool:
        """Dispatch entries up to `index`, at most one step; return True if more can be applied.

        Raises InvariantError if a queue would get a gap.
        """
        if self._plain_log is not None:
            self._apply_plain()
        else:
            self._apply_entries(index)
        has_more = self._plain_log is not None or self.applied_index < index
        return has_more and not self.is_key_buffer_full

    def install(self, snapshot: Snapshot) -> None:
        """Replace the applied state by a snapshot's. Raises DamagedBrokerState."""
        state = decode_state(snapshot.state)
        self.queues = ConsumeQueues(
            state.ranges,
            self._reader,
            tail_units_max=self._config.queue_tail_max,
            may_skip=self._may_skip,
        )
        self.tables.restore(state)
        self.keys = KeyItems(self._key_reader)
        self.applied_index = snapshot.end.index
        self._applied_position = snapshot.end.position
        self._key_count = 0
        self._plain_log = None

    def checkpoint(self) -> BrokerCheckpoint | None:
        """Return a checkpoint of the applied state; None if the last saved one is current."""
        start_position = self._ledger.log.start.position
        is_saved = (self.applied_index, start_position) == self._saved_place
        if self._plain_log is not None or is_saved:
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
        """Note that a checkpoint of this state was saved."""
        self._saved_place = (checkpoint.applied_index, checkpoint.start_position)
        self.queues.checkpointed(checkpoint.units)
        self.keys.checkpointed(checkpoint.keys)
        self._key_count -= len(checkpoint.keys)

    def _apply_plain(self) -> None:
        """Do a step of the first pass, which finds the min offsets, or of the second."""
        assert self._plain_log is not None
        step = list(islice(self._plain_walk, PLAIN_MESSAGES_A_STEP))
        if self._plain_ranges is not None:
            for queue, offset, *_ in step:
                self._plain_ranges.setdefault(queue, (offset, offset))
        else:
            for queue, offset, position, size, tags_code, store_ms, _ in step:
                if queue[0] == SCHEDULE_TOPIC:
                    tags_code = store_ms + self._config.delay_ms(queue[1])  # noqa: PLW2901
                self.queues.append(queue, offset, position, size, tags_code)
                self._store_ms = store_ms
        if step:
            return
        if self._plain_ranges is not None:
            self.queues = ConsumeQueues(self._plain_ranges, self._reader)
            self._plain_ranges = None
            self._plain_walk = iter(self._plain_log())
        else:
            self._plain_log = None
            self._finish_plain()

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
        """Dispatch a whole batch by column; return False, with nothing done, if it does not fit.

        Events and delayed messages are dispatched one by one.
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
        """Apply an entry of the reserved topic, whose message starts at byte `at` of `data`."""
        self.tables.apply(queue_id, body_at(data, at))

    def _note_delivery(self, properties: bytes) -> None:
        """Note that a delayed message was delivered."""
        if (place := delivered_from(properties)) is not None:
            self.tables.delivered(*place)

    def _finish_plain(self) -> None:
        """Derive the delivery progress of delayed messages from the plain log.

        A message that was due by the store time of the log's last message counts as delivered.
        Each delivery stored a message, so one that was due later was not delivered.
        """
        for queue, (min_offset, _) in self.queues.ranges().items():
            if queue[0] != SCHEDULE_TOPIC:
                continue
            offset = min_offset
            while units := self.queues.units(queue, offset, PLAIN_MESSAGES_A_STEP):
                done = sum(1 for _ in takewhile(lambda unit: unit[2] <= self._store_ms, units))
                if done:
                    offset += done
                    self.tables.delivered(queue[1], offset - 1)
                if done < len(units):
                    break


# The tables of topics and group offsets.
#
# Entries hold new values, not changes, so applying one twice is harmless (idempotent). A snapshot
# may therefore hold tables that are newer than its index: applying the entries in between again
# gives the same tables.
# Source: RocketMQ's topics.json and consumerOffset.json; DESIGN.md decision 3.


class BrokerTables:
    """The tables of one member. `restore` replaces their contents, not the objects."""

    def __init__(self, config: BrokerConfig, state: BrokerState) -> None:
        self.topics = TopicTable(config)
        self.offsets = OffsetTable()
        self.versions = {TOPIC_QUEUE: 0, OFFSET_QUEUE: 0}
        """How often each table changed, for a broker whose log does not count it."""
        self.groups: dict[str, dict[str, object]] = {}
        """Consumer groups' configurations from a master or a file (SubscriptionGroupConfig)."""
        self.restore(state)

    def restore(self, state: BrokerState) -> None:
        """Load a checkpoint's or a snapshot's state. Raises DamagedBrokerState."""
        self.topics.restore(state.topics)
        self.offsets.restore(state.group_offsets)

    def state(self, ranges: Ranges) -> BrokerState:
        """Return the tables, with the queues' ranges, as one state."""
        return BrokerState(dict(ranges), self.topics.state(), self.offsets.state())

    def delivered(self, queue_id: int, offset: int) -> None:
        """Note that a schedule queue's messages up to `offset` were delivered."""
        if queue_id < LEVELS_MAX:
            topic = SCHEDULE_TOPIC.decode()
            self.offsets.advance(DELIVERY_GROUP, topic, queue_id, offset + 1)

    def apply(self, queue_id: int, body: bytes) -> None:
        """Apply a committed entry of the reserved topic. Raises DamagedBrokerState."""
        if queue_id == TOPIC_QUEUE:
            deleted = self.topics.apply(body)
            if deleted is not None:
                self.offsets.forget_topic(deleted)
        elif queue_id == OFFSET_QUEUE:
            self.offsets.apply(body)
        elif queue_id == MIGRATION_QUEUE:
            taken_over.apply(body, self.topics, self.offsets)
