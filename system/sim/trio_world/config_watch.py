"""No process of a broker without a group begins with older offsets than the one before had saved.

How old these files may be when it dies, the mode says; what stands in them is kept, whatever the
machine goes through but the loss of its disk. Source: RocketMQ's ConfigManager; DLEDGER.md B.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from system.broker.broker_tables import BrokerTables
from system.native.config_files import DELAYS, OFFSETS, encode_tables
from system.node.config_files import ConfigFiles
from system.remoting.fastjson import loads
from system.sim.violation import Violated
from system.store.disk import DiskFailed, DiskFull, StoreError

WATCHED: Final = (OFFSETS, DELAYS)
TABLE: Final = "offsetTable"
Report = Callable[[Violated], None]


class SavedFiles:
    """What one broker has saved; it outlives the broker's processes, not its disk."""

    def __init__(self) -> None:
        self._saved: dict[str, Any] = {}
        self._begun: dict[str, list[Any]] = {}

    def begins(self, name: str, data: bytes) -> None:
        """A file is about to be replaced: from now on either may be found."""
        if name in WATCHED:
            self._begun.setdefault(name, []).append(_table(data))

    def done(self, name: str) -> None:
        """It has been."""
        if begun := self._begun.pop(name, None):
            self._saved[name] = begun[-1]

    def check(self, tables: BrokerTables) -> None:
        """Compare with what a process has loaded. Raises Violated."""
        for name, saved in self._saved.items():
            loaded = _table(encode_tables(name, tables, 0))
            may_be = (saved, *self._begun.get(name, ()))
            if not any(_is_as_far(loaded, one) for one in may_be):
                raise Violated(
                    "saved-is-loaded",
                    f"{name} begins with {_told(loaded)}, saved was {_told(saved)}",
                )

    def unreadable(self, error: StoreError) -> None:
        """A process could not load. Raises Violated where it had saved, and its disk is well."""
        if self._saved and not isinstance(error, DiskFailed | DiskFull):
            raise Violated("saved-is-loaded", str(error)) from error


def watched(base: type[ConfigFiles], saved: SavedFiles, report: Report) -> type[ConfigFiles]:
    """Return the files, with each load looked at; `report` is given what is wrong."""

    class Watched(base):  # type: ignore[valid-type, misc]
        def load(self) -> None:
            try:
                super().load()
            except StoreError as error:
                _reported(report, partial(saved.unreadable, error))
                raise
            _reported(report, partial(saved.check, self._tables))

        def _replace(self, name: str, data: bytes) -> None:
            saved.begins(name, data)
            super()._replace(name, data)
            saved.done(name)

    return Watched


def _reported(report: Report, check: Callable[[], None]) -> None:
    try:
        check()
    except Violated as found:
        report(found)


def _table(data: bytes) -> Any:
    return loads(data)[TABLE]


def _is_as_far(loaded: Any, saved: Any) -> bool:
    """Whether each offset that was saved is there, or a later one: the log may know more."""
    return all(
        _is_as_far(loaded.get(key, {}), value)
        if isinstance(value, dict)
        else loaded.get(key, -1) >= value
        for key, value in saved.items()
    )


def _told(table: Any) -> str:
    """Return a table's beginning, for a message of one line."""
    text = str(table)
    return text if len(text) <= 80 else f"{text[:77]}..."
