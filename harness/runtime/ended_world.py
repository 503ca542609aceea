"""A world whose run is over: the world for undos after the harness was killed.

Nodes, proxies and the switch ended with the harness, or were ended since: nothing runs, nothing is
cut, and the effects of faults on them are gone. So most methods do nothing. A fault that acted
elsewhere reverts that by its undo alone (`contracts.plugins.Fault`).

A third-party fault is undone in a process of its own: it may hang, or end Python.
`python -P -m shaketable.harness.runtime.ended_world PARENT_PID` reads {"fault", "undo", "nodes"} as
JSON, calls that fault's undo with an ended world, and prints as JSON why that failed, or null. It
ends with the process that started it.

Source: DESIGN.md decision 10 ("by another process later").
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from shaketable.harness import discovery, guard
from shaketable.harness.contracts.capabilities import (
    ClockChange,
    ClockReading,
    Damage,
    DiskFaultSpec,
    Link,
    LinkShape,
    Resources,
)
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import UNTOUCHED, Fault, Json
from shaketable.harness.error_output import one_line
from shaketable.harness.plugin_calls import PlugInError, as_plugin_error
from shaketable.harness.runtime.processes import children

_NO_PROCESS: Json = {"incarnation": UNTOUCHED}


class EndedWorld:
    """Implements `contracts.plugins.World`, and all capabilities, after everything has ended.

    Methods that would start something raise `HarnessError`.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)

    # ---- queries ------------------------------------------------------------------------

    async def leader(self, order: Sequence[str] = ()) -> str | None:
        """Return None: no node leads."""

    def is_paused(self, node: str) -> bool:
        """Return False: there is no process."""
        return False

    def is_alive(self, node: str, incarnation: int) -> bool:
        """Return False: there is no process."""
        return False

    def incarnation(self, node: str) -> int:
        """Return `UNTOUCHED`: no incarnation runs."""
        return UNTOUCHED

    async def until_ready(self, timeout_s: float) -> bool:
        """Return False: there is no group to wait for."""
        return False

    def why_not_wiped(self, node: str) -> str | None:
        """Return the reason: the disk is part of the recording."""
        return "the run is over"

    def held(self, cut: str) -> Json:
        """Return zeros: what was held went with the proxies."""
        return {"bytes": 0, "connections": 0}

    def shaped(self, shape: str) -> Json:
        """Return {}: the counts went with the network."""
        return {}

    def disk_fault_effects(self, fault: str) -> Json:
        """Return zeros: the counts went with the node."""
        return {"calls": 0, "errors": 0, "slowed": 0, "waited_ms": 0.0, "ended": False}

    def limit_effects(self, limits: str) -> Json:
        """Return nothing known: the watcher is gone."""
        return {"node": None, "ended": None}

    def effects(self, node: str) -> Mapping[str, int]:
        """Return {}: the counters are gone."""
        return {}

    async def read_clock(self, node: str) -> ClockReading:
        """There is no clock to read. Raises HarnessError."""
        raise _over("read a clock")

    # ---- what ends something: it has ended ----------------------------------------------

    async def kill(self, node: str) -> Json:
        """Do nothing: the node does not run."""
        return dict(_NO_PROCESS)

    async def stop(self, node: str) -> Json:
        """Do nothing: the node does not run."""
        return dict(_NO_PROCESS)

    async def restart(self, node: str, incarnation: int) -> None:
        """Do nothing: the run is over."""

    async def resume(self, node: str, incarnation: int) -> None:
        """Do nothing: stopped processes were ended, too."""

    async def heal(self, cut: str, how: str) -> None:
        """Do nothing: the links are gone."""

    async def unshape(self, shape: str) -> None:
        """Do nothing: the links are gone."""

    async def unskew(self, node: str, undo: Json) -> None:
        """Do nothing: the process is gone; a heal withdraws its orders by itself."""

    async def heal_disk(self, fault: str) -> None:
        """Do nothing, as `unskew`."""

    async def lift_limits(self, limits: str) -> None:
        """Do nothing: limits end with their process."""

    async def replace(self, node: str, incarnation: int) -> None:
        """Do nothing: the run is over."""

    async def revive(self, node: str, incarnation: int) -> None:
        """Do nothing: the run is over."""

    async def add_member(self, node: str) -> Json:
        """Return an error: the group is gone."""
        return {"took_ms": None, "members": [], "error": "the run is over"}

    # ---- what would start something -----------------------------------------------------

    async def pause(self, node: str) -> Json:
        """Do nothing: the node does not run."""
        return dict(_NO_PROCESS)

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
        """Raises HarnessError: the files are part of the recording."""
        raise _over("damage files")

    async def copy_store(self, node: str) -> str:
        """Raises HarnessError."""
        raise _over("copy a store")

    async def start_damaged(self, node: str, incarnation: int) -> Json:
        """Raises HarnessError."""
        raise _over("start a node")

    async def wipe(self, node: str) -> Json:
        """Raises HarnessError: the files are part of the recording."""
        raise _over("wipe a disk")

    async def transfer(self, to: str) -> Json:
        """Raises HarnessError."""
        raise _over("hand leadership over")

    async def remove_member(self, node: str) -> Json:
        """Raises HarnessError."""
        raise _over("take a member out")

    async def limit_resources(self, node: str, resources: Resources) -> str:
        """Raises HarnessError."""
        raise _over("take resources")


def _over(what: str) -> HarnessError:
    return HarnessError(f"cannot {what}: the run is over")


# The undo of a third-party fault, in a process of its own.

UNDO_TIMEOUT_S: Final = 15.0
START_TIMEOUT_S: Final = 15.0
"""How long Python, and the plug-in's own imports, may take."""


def undo_apart(name: str, undo_: Json, nodes: Sequence[str]) -> str | None:
    """Undo a fault by its name; return why that failed, None if it did not. For the main thread."""
    program = [
        sys.executable,
        "-P",
        "-m",
        "shaketable.harness.runtime.ended_world",
        str(os.getpid()),
    ]
    given = json.dumps({"fault": name, "undo": undo_, "nodes": list(nodes)}).encode()
    timeout_s = START_TIMEOUT_S + UNDO_TIMEOUT_S
    answer = children.ask(guard.command(program, os.getpid()), timeout_s, given)
    if answer.is_late:
        return _late()
    try:
        why = json.loads(answer.output)
    except ValueError:
        return f"its undo ended Python (exit status {answer.status})"
    return None if why is None else str(why)


def _late() -> str:
    return f"not within {UNDO_TIMEOUT_S:g} s"


def _undo_here(name: str, undo_: Json, nodes: Sequence[str]) -> str | None:
    async def main() -> str | None:
        fault: Fault = discovery.get("faults", name)
        with trio.move_on_after(UNDO_TIMEOUT_S) as scope:
            await fault.undo(undo_, EndedWorld(nodes))
        return _late() if scope.cancelled_caught else None

    try:
        with as_plugin_error():
            return trio.run(main)
    except PlugInError as error:
        return one_line(error)


def main(arguments: Sequence[str]) -> int:
    """Undo the fault that standard input names."""
    with children.begin(arguments[0]) as out:  # a plug-in may print
        given = json.load(sys.stdin)
        json.dump(_undo_here(given["fault"], given["undo"], given["nodes"]), out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
