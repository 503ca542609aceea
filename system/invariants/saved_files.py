"""Invariants of what a broker saves beside its log.

A broker without a group never starts with older offsets than it has saved. How stale these files
may be at a crash depends on the mode, but what they hold survives all but the loss of the disk.
Source: RocketMQ's ConfigManager; DLEDGER.md B.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
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
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint
from shaketable.system.store.disk import DiskFailed, DiskFull, StoreError
from shaketable.system.store.group_events import OFFSET_QUEUE, TOPIC_QUEUE

WATCHED: Final = (OFFSETS, DELAYS)
TABLE: Final = "offsetTable"
_offsets, _configs = attrgetter("_offsets"), attrgetter("_configs")
"""A table's own values: what it gives to be saved is compared with them."""
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


def check_checkpoint(name: str, broker: Broker, checkpoint: BrokerCheckpoint) -> None:
    """Raise Violated where a checkpoint that was just taken has another state than the broker."""
    saved = decode_state(checkpoint.state)
    _check_tables(name, broker, saved, "checkpoint")
    if checkpoint.applied_index != broker.applied_index:
        text = f"its checkpoint is of entry {checkpoint.applied_index}, not {broker.applied_index}"
        raise Violated("saved-state-is-the-state", text, name)
    _check_equal(name, "queue", saved.ranges, broker.queues.ranges(), "checkpoint")


def check_snapshot(name: str, broker: Broker, state: bytes) -> None:
    """Raise Violated where a snapshot that was just made has other tables than the broker."""
    _check_tables(name, broker, decode_state(state), "snapshot")


def check_equal_states(brokers: Mapping[str, Broker]) -> None:
    """Raise Violated where members that have applied all have other tables than one another.

    Those that have applied less may have newer tables, from a snapshot (`system.broker.reput`).
    """
    last = max((broker.applied_index for broker in brokers.values()), default=-1)
    first: tuple[str, dict[str, object]] | None = None
    for name, broker in brokers.items():
        if broker.applied_index < last:
            continue
        cells = _cells(broker.tables.state({}))
        if first is None:
            first = name, cells
        other, theirs = first
        for key in cells.keys() | theirs.keys():
            if cells.get(key) != theirs.get(key):
                text = (
                    f"{key}: {cells.get(key)}, and {theirs.get(key)} on {other}, which has"
                    f" applied the same entries"
                )
                raise Violated("equal-logs-give-equal-states", text, name)


def _check_tables(name: str, broker: Broker, saved: BrokerState, what: str) -> None:
    """Compare with the tables themselves, not with what they would give to be saved."""
    tables = broker.tables
    _check_equal(name, "offsets of", saved.group_offsets, _offsets(tables.offsets), what)
    topics = {
        topic: {} if config is None else to_builtins(config)
        for topic, config in _configs(tables.topics).items()
    }
    _check_equal(name, "topic", saved.topics, topics, what)


def _check_equal(
    name: str, kind: str, saved: Mapping[Any, Any], has: Mapping[Any, Any], what: str
) -> None:
    if saved == has:
        return
    keys = [*saved, *(key for key in has if key not in saved)]
    key = next(key for key in keys if saved.get(key) != has.get(key))
    text = f"{kind} {key}: its {what} has {saved.get(key)}, the broker {has.get(key)}"
    raise Violated("saved-state-is-the-state", text, name)


def _cells(state: BrokerState) -> dict[str, object]:
    """Return each value of the tables, by what it is."""
    cells: dict[str, object] = {f"topic {name}": dict(at) for name, at in state.topics.items()}
    for key, offsets in state.group_offsets.items():
        cells |= {f"offset of {key}/{queue}": offset for queue, offset in offsets.items()}
    return cells
