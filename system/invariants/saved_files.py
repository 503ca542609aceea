"""A broker without a group never starts with older offsets than it has saved.

How stale these files may be at a crash depends on the mode, but what they hold survives all but
the loss of the disk. Source: RocketMQ's ConfigManager; DLEDGER.md B.2.
"""

from __future__ import annotations

from typing import Any, Final

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
