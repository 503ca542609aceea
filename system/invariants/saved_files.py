"""Invariants of what a broker saves beside its log.

A broker without a group never starts with older offsets than it has saved. How stale these files
may be at a crash depends on the mode, but what they hold survives all but the loss of the disk.
Source: RocketMQ's ConfigManager; DLEDGER.md B.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import to_builtins

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.broker_state import BrokerState, decode_state
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.invariants.violated import Violated
from shaketable.system.master_slave.config_files import (
    DELAYS,
    FILE_BYTES_MAX,
    OFFSETS,
    TOPICS,
    encode_tables,
)
from shaketable.system.remoting.fastjson import loads
from shaketable.system.store.disk import DiskFailed, DiskFull, StoreError
from shaketable.system.store.group_events import OFFSET_QUEUE, TOPIC_QUEUE

WATCHED: Final = (OFFSETS, DELAYS)
TABLE: Final = "offsetTable"
COUNTED: Final = {TOPICS: TOPIC_QUEUE, OFFSETS: OFFSET_QUEUE}
"""Files with a table's change counter, and the table."""


class SavedFiles:
    """What one broker has saved; it outlives the broker's processes, not its disk."""

    def __init__(self) -> None:
        self._saved: dict[str, Any] = {}
        self._pending: dict[str, list[Any]] = {}
        self._counted: dict[str, int] = {}
        self._pending_counts: dict[str, int] = {}

    def replacing(self, name: str, data: bytes) -> None:
        """A file is about to be replaced: from now on a start may find either version."""
        if name in WATCHED:
            self._pending.setdefault(name, []).append(table_of(data))
        if name in COUNTED:
            body = loads(data, bytes_max=FILE_BYTES_MAX)
            self._pending_counts[name] = body.get("dataVersion", {}).get("counter", 0)

    def done(self, name: str) -> None:
        """The file has been replaced."""
        if pending := self._pending.pop(name, None):
            self._saved[name] = pending[-1]
        if name in self._pending_counts:
            self._counted[name] = self._pending_counts.pop(name)

    def check(self, tables: BrokerTables) -> None:
        """Compare with what a process has loaded. Raises Violated."""
        for name, saved in self._saved.items():
            loaded = table_of(encode_tables(name, tables, 0))
            older = [older_offset(loaded, one) for one in (saved, *self._pending.get(name, ()))]
            if all(older):
                raise Violated("saved-is-loaded", f"{name}: {older[0]}")
        for name, counted in self._counted.items():
            version = tables.versions[COUNTED[name]]
            if version < counted:
                why = f"{name}: it begins at change {version}, change {counted} had been saved"
                raise Violated("saved-is-loaded", why)

    def unreadable(self, error: StoreError) -> None:
        """A process failed to load. Raises Violated if it had saved, and its disk works."""
        if self._saved and not isinstance(error, DiskFailed | DiskFull):
            raise Violated("saved-is-loaded", str(error)) from error


def table_of(data: bytes) -> Any:
    """Return the offsets in a file, by group and queue, or by level."""
    return loads(data, bytes_max=FILE_BYTES_MAX)[TABLE]


def older_offset(loaded: Any, saved: Any, of: str = "") -> str:
    """Describe the first saved offset that is older now, or gone; "" if there is none."""
    for key, value in saved.items():
        now = loaded.get(key)
        if isinstance(value, dict):
            if found := older_offset(now or {}, value, f" of {key}"):
                return found
        elif now is None or now < value:
            where = "with none" if now is None else f"at {now}"
            what = "queue" if of else "level"  # of delayOffset.json
            return f"it begins {where} in {what} {key}{of}, {value} had been saved"
    return ""


# Checkpoints and snapshots hold the broker's state, and equal logs give equal states.
#
# What a start, or a member that installs a snapshot, goes on with was saved seconds before: that it
# was not right shows only where nothing has changed since. Here each save shows it. Source: Raft
# figure 3 (state machine safety) and section 7 (snapshots).


def check_checkpoint(name: str, broker: Broker, state: bytes) -> None:
    """Raise Violated where a checkpoint that was just taken has another state than the broker."""
    saved = decode_state(state)
    _check_tables(name, broker, saved, "checkpoint")
    for queue, saved_range in saved.ranges.items():
        has = broker.queues.min_offset(queue), broker.queues.max_offset(queue)
        if saved_range != has:
            text = f"queue {queue}: its checkpoint has {saved_range}, the broker {has}"
            raise Violated("saved-state-is-the-state", text, name)


def check_snapshot(name: str, broker: Broker, state: bytes) -> None:
    """Raise Violated where a snapshot that was just made has other tables than the broker."""
    _check_tables(name, broker, decode_state(state), "snapshot")


def check_equal_states(brokers: Mapping[str, Broker]) -> None:
    """Raise Violated where members that have applied the same entries have other tables."""
    first: dict[int, str] = {}
    for name, broker in brokers.items():
        other = brokers[first.setdefault(broker.applied_index, name)]
        mine, theirs = _cells(broker.tables.state({})), _cells(other.tables.state({}))
        for key in mine.keys() | theirs.keys():
            if mine.get(key) != theirs.get(key):
                text = (
                    f"{key}: {mine.get(key)}, and {theirs.get(key)} on"
                    f" {first[broker.applied_index]}, which has applied the same entries"
                )
                raise Violated("equal-logs-give-equal-states", text, name)


def _check_tables(name: str, broker: Broker, saved: BrokerState, what: str) -> None:
    """Compare with what clients are answered now, one value after the other."""
    topics, offsets = broker.tables.topics, broker.tables.offsets
    count = sum(map(len, saved.group_offsets.values()))
    for place, saved_count, has in (
        ("topics", len(saved.topics), len(topics)),
        ("offsets", count, offsets.count),
    ):
        if saved_count != has:
            text = f"its {what} has {saved_count} {place}, the broker has {has}"
            raise Violated("saved-state-is-the-state", text, name)
    for key, of_queues in saved.group_offsets.items():
        topic, _, group = key.partition("@")
        for queue_id, offset in of_queues.items():
            if (now := offsets.get(group, topic, queue_id)) != offset:
                text = f"offset of {key}/{queue_id}: its {what} has {offset}, the broker {now}"
                raise Violated("saved-state-is-the-state", text, name)
    for topic, config in saved.topics.items():
        now_config = topics.get(topic)
        if (config or None) != (None if now_config is None else to_builtins(now_config)):
            text = f"topic {topic}: its {what} has {config}, the broker {now_config}"
            raise Violated("saved-state-is-the-state", text, name)


def _cells(state: BrokerState) -> dict[str, object]:
    """Return each value of the tables, by what it is."""
    cells: dict[str, object] = {f"topic {name}": dict(at) for name, at in state.topics.items()}
    for key, offsets in state.group_offsets.items():
        cells |= {f"offset of {key}/{queue}": offset for queue, offset in offsets.items()}
    return cells
