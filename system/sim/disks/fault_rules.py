"""Disk faults that are injected from outside, call by call, and counted.

The same rules as for a real process (`system.node.steered.orders`): calls of a kind fail from the
N-th on, or the machine loses power at one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shaketable.system.sim.disks.disk import Platter, PowerLoss
from shaketable.system.store.disk import DiskFailed, DiskFull

KINDS: Final[Mapping[str, str]] = {
    "create": "write",
    "pwrite": "write",
    "grow": "write",
    "sync": "sync",
    "sync_dir": "sync",
}
"""The kind of each operation of the simulated disk; all others are "name"."""
POWER: Final = "power"


@dataclass(slots=True, eq=False)
class DiskFaultRule:
    """One rule. `error` is "EIO", "ENOSPC", POWER, or "" (only count calls)."""

    op: str
    error: str = ""
    nth: int = 0
    times: int = 0
    calls: int = 0
    errors: int = 0


class DiskFaultRules:
    """The active rules of one disk; counts survive processes, as the disk does."""

    def __init__(self, platter: Platter) -> None:
        self.calls = dict.fromkeys(("read", "write", "sync", "name"), 0)
        self._rules: tuple[DiskFaultRule, ...] = ()
        platter.on_operation = self._operation
        platter.on_read = self._read

    def set_rules(self, rules: Sequence[DiskFaultRule]) -> None:
        """Replace the active rules."""
        self._rules = tuple(rules)

    def _operation(self, operation: str, path: str) -> None:
        self._call(KINDS.get(operation, "name"), path)

    def _read(self, path: str) -> None:
        self._call("read", path)

    def _call(self, kind: str, path: str) -> None:
        self.calls[kind] += 1
        for rule in self._rules:
            if rule.op not in (kind, "any"):
                continue
            rule.calls += 1
            past = rule.calls - max(rule.nth, 1)
            if not rule.error or past < 0 or (rule.times and past >= rule.times):
                continue
            rule.errors += 1
            if rule.error == POWER:
                raise PowerLoss
            if rule.error == "ENOSPC" and kind not in ("sync", "read"):
                raise DiskFull(f"cannot {kind} {path}: no space left on device (ordered)")
            raise DiskFailed(f"cannot {kind} {path}: {rule.error} (ordered)")
