"""A world whose run is over: what the undo of a fault finds after the harness was killed.

Nodes, proxies and the switch ended with the harness, or were ended since: nothing runs, nothing is
cut, and what a fault did to them ended with them. So most words do nothing here. A fault that did
something elsewhere undoes that with what its undo says (`contracts.plugins.Fault`).

Source: DESIGN.md decision 10 ("by another process later").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shaketable.harness.contracts.capabilities import (
    ClockChange,
    ClockReading,
    Damage,
    DiskFaultSpec,
    Link,
    LinkShape,
)
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import UNTOUCHED, Json
from shaketable.harness.contracts.resources import Resources

_NOBODY: Json = {"incarnation": UNTOUCHED}


class EndedWorld:
    """Implements `contracts.plugins.World`, and all words beside it, where nothing runs any more.

    What would begin something new raises `HarnessError`.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)

    # ---- what is asked ------------------------------------------------------------------

    async def leader(self, order: Sequence[str] = ()) -> str | None:
        """Nobody leads."""

    def is_paused(self, node: str) -> bool:
        """No process, no pause."""
        return False

    def is_alive(self, node: str, incarnation: int) -> bool:
        """None is."""
        return False

    def incarnation(self, node: str) -> int:
        """None runs."""
        return UNTOUCHED

    async def until_ready(self, timeout_s: float) -> bool:
        """There is nobody to wait for."""
        return False

    def why_not_wiped(self, node: str) -> str | None:
        """Its disk is part of what was recorded."""
        return "the run is over"

    def held(self, cut: str) -> Json:
        """What was held went with the proxies."""
        return {"bytes": 0, "connections": 0}

    def shaped(self, shape: str) -> Json:
        """Who counted is gone."""
        return {}

    def disk_fault_effects(self, fault: str) -> Json:
        """Who knew is gone."""
        return {"calls": 0, "errors": 0, "slowed": 0, "waited_ms": 0.0, "ended": False}

    def taken(self, taken: str) -> Json:
        """Who watched is gone."""
        return {"node": None, "ended": None}

    def effects(self, node: str) -> Mapping[str, int]:
        """Nobody counts."""
        return {}

    async def read_clock(self, node: str) -> ClockReading:
        """There is no clock to read. Raises HarnessError."""
        raise _over("read a clock")

    # ---- what ends something: it has ended ----------------------------------------------

    async def kill(self, node: str) -> Json:
        """It does not run."""
        return dict(_NOBODY)

    async def stop(self, node: str) -> Json:
        """It does not run."""
        return dict(_NOBODY)

    async def restart(self, node: str, incarnation: int) -> None:
        """Nobody needs it any more."""

    async def resume(self, node: str, incarnation: int) -> None:
        """A stopped process was ended, too."""

    async def heal(self, cut: str, how: str) -> None:
        """The links are gone."""

    async def unshape(self, shape: str) -> None:
        """The links are gone."""

    async def unskew(self, node: str, undo: Json) -> None:
        """The process whose clock it was is gone; a heal takes its orders back by itself."""

    async def heal_disk(self, fault: str) -> None:
        """As `unskew`."""

    async def give_back(self, taken: str) -> None:
        """Limits end with the process that has them."""

    async def replace(self, node: str, incarnation: int) -> None:
        """Nobody needs it any more."""

    async def revive(self, node: str, incarnation: int) -> None:
        """Nobody needs it any more."""

    async def add_member(self, node: str) -> Json:
        """The group is gone."""
        return {"took_ms": None, "members": [], "error": "the run is over"}

    # ---- what would begin something -----------------------------------------------------

    async def pause(self, node: str) -> Json:
        """It does not run."""
        return dict(_NOBODY)

    async def cut(self, links: Sequence[Link]) -> str:
        """Raises HarnessError."""
        raise _over("cut links")

    async def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Raises HarnessError."""
        raise _over("shape links")

    async def skew(self, node: str, change: ClockChange) -> Json:
        """Raises HarnessError."""
        raise _over("change a clock")

    async def inject_disk_fault(self, node: str, fault: DiskFaultSpec) -> str:
        """Raises HarnessError."""
        raise _over("hurt a disk")

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        """Raises HarnessError."""
        raise _over("lose power")

    async def damage(self, node: str, damage: Damage) -> Json:
        """Raises HarnessError: the files are part of what was recorded."""
        raise _over("damage files")

    async def copy_store(self, node: str) -> str:
        """Raises HarnessError."""
        raise _over("copy a store")

    async def start_damaged(self, node: str, incarnation: int) -> Json:
        """Raises HarnessError."""
        raise _over("start a node")

    async def wipe(self, node: str) -> Json:
        """Raises HarnessError: the files are part of what was recorded."""
        raise _over("wipe a disk")

    async def transfer(self, to: str) -> Json:
        """Raises HarnessError."""
        raise _over("hand leadership over")

    async def remove_member(self, node: str) -> Json:
        """Raises HarnessError."""
        raise _over("take a member out")

    async def take(self, node: str, resources: Resources) -> str:
        """Raises HarnessError."""
        raise _over("take resources")


def _over(what: str) -> HarnessError:
    return HarnessError(f"cannot {what}: the run is over")
