"""Runs candidates within limits, and keeps the smallest that fails the same way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.schedules.schedule import Schedule
from shaketable.system.sim.shrinking.simplest import StopSearch

TryRun = Callable[[Schedule], Violation | None]
"""Runs a schedule; must be deterministic."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of shrinking. `seconds_max` is real time.

    The result depends only on the schedule unless `seconds_max` is reached.
    """

    runs_max: int = 3000
    seconds_max: float = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of shrinking: runs so far, and what the smallest failing run still has."""

    runs: int
    faults: int
    operations: int

    @property
    def events(self) -> int:
        """Remaining faults and client operations."""
        return self.faults + self.operations


class NothingToShrink(Exception):  # noqa: N818 - a finding about the run
    """The run to be shrunk does not fail."""


def count_events(schedule: Schedule) -> int:
    """Count a schedule's faults and client operations; each append of a batch is one."""
    return len(schedule.faults) + sum(call.count for call in schedule.calls)


class Search:
    """Runs candidates, caches the results, and keeps the smallest that fails the same way."""

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
        """Real seconds since the start."""
        return time.monotonic() - self._began_s

    def start(self, schedule: Schedule) -> None:
        """Run the schedule to be shrunk; its violation defines the invariant."""
        found = self._try_run(schedule)
        if found is None:
            raise NothingToShrink(
                f"seed {schedule.seed} breaks nothing: there is nothing to shrink"
            )
        self.runs = 1
        self._invariant, self.best, self.violation = found.invariant, schedule, found
        self._known[msgspec.msgpack.encode(schedule)] = found.at_ms

    def fails(self, schedule: Schedule) -> bool:
        """Return whether it violates the same invariant. Raises StopSearch at a limit."""
        return self.fails_at(schedule) is not None

    def fails_at(self, schedule: Schedule) -> float | None:
        """Return when it violates the same invariant, None if it does not. Raises StopSearch."""
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
    """Return a sort key: the less of a schedule there is, the smaller."""
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
