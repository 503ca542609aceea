"""Runs candidates of a shrinking run, within limits, and keeps the smallest that fails alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.schedules.schedule import Schedule
from shaketable.system.sim.shrinking.simplest import StopSearch

TryRun = Callable[[Schedule], Violation | None]
"""Runs a schedule; the same one ends the same way, always."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Where shrinking ends even if more were possible. `seconds_max` is of real time.

    The result depends on nothing but the schedule as long as `seconds_max` is not reached.
    """

    runs_max: int = 3000
    seconds_max: float = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is: runs so far, and what the smallest failing run still has."""

    runs: int
    faults: int
    operations: int

    @property
    def events(self) -> int:
        """Faults and client operations left."""
        return self.faults + self.operations


class NothingToShrink(Exception):  # noqa: N818 - a finding about the run
    """The run that should be made small does not fail."""


def count_events(schedule: Schedule) -> int:
    """Count a schedule's faults and client operations; an append of a batch is one."""
    return len(schedule.faults) + sum(call.count for call in schedule.calls)


class Search:
    """Runs candidates, remembers their answers, and keeps the smallest that fails alike."""

    def __init__(
        self, try_run: TryRun, limits: Limits, progress: Callable[[Progress], None] | None
    ) -> None:
        self._try_run = try_run
        self._limits = limits
        self._progress = progress
        self._began_s = time.monotonic()
        self._known: dict[bytes, float | None] = {}
        self._invariant = ""
        self.best: Schedule
        self.violation: Violation
        self.runs = 0

    @property
    def seconds(self) -> float:
        """Real seconds since it began."""
        return time.monotonic() - self._began_s

    def begin(self, schedule: Schedule) -> None:
        """Run what is to be made smaller; it says which invariant it is about."""
        found = self._try_run(schedule)
        if found is None:
            raise NothingToShrink(
                f"seed {schedule.seed} breaks nothing: there is nothing to shrink"
            )
        self.runs = 1
        self._invariant, self.best, self.violation = found.invariant, schedule, found
        self._known[msgspec.msgpack.encode(schedule)] = found.at_ms

    def fails(self, schedule: Schedule) -> bool:
        """Whether it breaks the same invariant. Raises StopSearch at a limit."""
        return self.fails_at(schedule) is not None

    def fails_at(self, schedule: Schedule) -> float | None:
        """When it breaks the same invariant, None if it does not. Raises StopSearch."""
        key = msgspec.msgpack.encode(schedule)
        if key in self._known:
            return self._known[key]
        if self.runs >= self._limits.runs_max or self.seconds >= self._limits.seconds_max:
            raise StopSearch
        found = self._try_run(schedule)
        self.runs += 1
        if found is not None and found.invariant != self._invariant:
            found = None
        at_ms = self._known[key] = None if found is None else found.at_ms
        if found is not None and size(schedule) < size(self.best):
            self.best, self.violation = schedule, found
        if self._progress is not None:
            left = sum(call.count for call in self.best.calls)
            self._progress(Progress(self.runs, len(self.best.faults), left))
        return at_ms


def size(schedule: Schedule) -> tuple[int, int, int, int, bytes]:
    """Order schedules by how much there is to tell of them."""
    times_ms = sum(fault.start_ms + fault.duration_ms for fault in schedule.faults)
    times_ms += sum(call.at_ms for call in schedule.calls)
    settings = schedule.settings
    return (
        count_events(schedule),
        settings.members,
        settings.run_ms,
        times_ms,
        msgspec.msgpack.encode(schedule),
    )
