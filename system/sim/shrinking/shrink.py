"""Makes a failing run small: fewer faults and client operations, the same violated invariant.

It works level by level, so that thousands of operations cost a few dozen runs each: the run's end,
the group's size, whole clients, slices of time, single calls, then numbers. On each level
hypothesis decides what may be removed (`system.sim.shrinking.simplest`). Random streams are keyed
by name, so removing one thing changes nothing else; where a run is stuck, it is tried in another
order and under other seeds.

Source: Zeller & Hildebrandt 2002 (delta debugging); SIMULATION.md, section Hypothesis.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from shaketable.system.mutants import Mutant
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.schedules.schedule import Schedule
from shaketable.system.sim.shrinking.shrink_search import (
    Limits,
    NothingToShrink,
    Progress,
    Search,
    TryRun,
    count_events,
)
from shaketable.system.sim.shrinking.shrink_steps import reduce_run
from shaketable.system.sim.shrinking.simplest import StopSearch
from shaketable.system.sim.world import run_seed

__all__ = [
    "BadShrunkFile",
    "Limits",
    "NothingToShrink",
    "Progress",
    "Shrunk",
    "TryRun",
    "count_events",
    "load",
    "runs_of",
    "save",
    "shrink",
]


class Shrunk(msgspec.Struct, frozen=True, kw_only=True):
    """A minimal failing run: `schedule` (which includes its seed) ends with `violation`.

    `events` counts its faults and client operations; `runs` and `seconds` are the cost. `mutant` is
    the planted bug that it needs, "" for none.
    """

    schedule: Schedule
    violation: Violation
    events: int
    runs: int
    seconds: float
    is_finished: bool
    """False if a limit ended it: more time may find a smaller run."""
    mutant: str = ""

    @property
    def seed(self) -> int:
        """The seed of the random streams of network, disks and timers."""
        return self.schedule.seed


class BadShrunkFile(Exception):  # noqa: N818 - a finding about the file
    """A file is no shrunk run; the message gives the reason in one line."""


def runs_of(mutant: Mutant | None = None) -> TryRun:
    """Return a function that runs a schedule in the core world, with or without a planted bug."""

    def run(schedule: Schedule) -> Violation | None:
        return run_seed(schedule.seed, schedule=schedule, mutant=mutant).violation

    return run


def shrink(
    schedule: Schedule,
    try_run: TryRun,
    *,
    mutant: str = "",
    limits: Limits | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Shrunk:
    """Return the smallest run found that breaks the same invariant as `schedule` does.

    `progress` is called after every run. Raises NothingToShrink if the schedule does not fail.
    """
    search = Search(try_run, limits or Limits(), progress)
    search.start(schedule)
    finished = False
    with contextlib.suppress(StopSearch):
        reduce_run(search, schedule)
        finished = True
    return Shrunk(
        schedule=search.best,
        violation=search.violation,
        events=count_events(search.best),
        runs=search.runs,
        seconds=search.seconds,
        is_finished=finished,
        mutant=mutant,
    )


def save(shrunk: Shrunk, path: Path) -> None:
    """Write a shrunk run as JSON, readable by people and by `load`."""
    text = msgspec.json.format(msgspec.json.encode(shrunk), indent=1)
    path.write_bytes(text + b"\n")


def load(path: Path) -> Shrunk:
    """Read a shrunk run. Raises BadShrunkFile."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Shrunk)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadShrunkFile(f"{path} is no shrunk run: {error}") from None
