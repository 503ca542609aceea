"""Harms of a simulated disk that are ordered from outside, call by call, and counted.

The same orders as a node in a process takes (`system.node.steered.orders`): calls of a kind fail
from the N-th on, or the machine loses power at it.
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
"""What an operation of the simulated disk is called here; others are "name"."""
POWER: Final = "power"


@dataclass(slots=True, eq=False)
class OrderedHarm:
    """One order. `error` is "EIO", "ENOSPC", POWER or "" (calls are counted alone)."""

    op: str
    error: str = ""
    nth: int = 0
    times: int = 0
    calls: int = 0
    errors: int = 0


class OrderedHarms:
    """The orders in force on one disk; its counts outlive processes, as the disk does."""

    def __init__(self, platter: Platter) -> None:
        self.calls = dict.fromkeys(("read", "write", "sync", "name"), 0)
        self._orders: tuple[OrderedHarm, ...] = ()
        platter.on_operation = self._operation
        platter.on_read = self._read

    def follow(self, orders: Sequence[OrderedHarm]) -> None:
        """These are in force from now on."""
        self._orders = tuple(orders)

    def _operation(self, operation: str, path: str) -> None:
        self._call(KINDS.get(operation, "name"), path)

    def _read(self, path: str) -> None:
        self._call("read", path)

    def _call(self, kind: str, path: str) -> None:
        self.calls[kind] += 1
        for order in self._orders:
            if order.op not in (kind, "any"):
                continue
            order.calls += 1
            behind = order.calls - max(order.nth, 1)
            if not order.error or behind < 0 or (order.times and behind >= order.times):
                continue
            order.errors += 1
            if order.error == POWER:
                raise PowerLoss
            if order.error == "ENOSPC" and kind not in ("sync", "read"):
                raise DiskFull(f"cannot {kind} {path}: no space left on device (ordered)")
            raise DiskFailed(f"cannot {kind} {path}: {order.error} (ordered)")
