"""The search for the smallest run that fails the same way.

hypothesis chooses what is tried (`simplest_flags`, `simplest_numbers`), and a `Search` runs it
within limits and keeps the smallest.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.database import ExampleDatabase, choices_to_bytes

from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.schedules.schedule import Schedule

# The simplest choices that still fail, found by hypothesis from a known failing example.
#
# hypothesis starts from its example database, so a database with only the known failure makes it
# shrink at once, without a search. The cost grows with the square of the number of choices:
# callers pass a few dozen at a time.
#
# Source: hypothesis' choice sequence (MacIver & Donaldson 2020); SIMULATION.md, section Hypothesis.

CHOICES_MAX = 64
"""Most choices in one search."""

_TRIES_MAX = 100_000


class StopSearch(BaseException):
    """Raised by a condition to abort the search; hypothesis lets it through."""


def simplest_flags(count: int, fails: Callable[[tuple[bool, ...]], bool]) -> tuple[bool, ...]:
    """Return as few True flags as possible such that it fails; all True must fail."""
    found = simplest_numbers([1] * count, lambda numbers: fails(tuple(map(bool, numbers))))
    return tuple(map(bool, found))


def simplest_numbers(
    known: Sequence[int], fails: Callable[[tuple[int, ...]], bool]
) -> tuple[int, ...]:
    """Return numbers from 0 up to the known ones, as small as possible, that still fail.

    `known` must fail. The search is seeded, so the same condition gives the same result. After
    StopSearch the caller has to remember the best one itself.
    """
    if not known:
        return ()
    assert len(known) <= CHOICES_MAX, f"{len(known)} choices at once"
    choices = [bool(largest) if largest == 1 else largest for largest in known if largest > 0]
    if not choices:
        return tuple(known)
    best = tuple(known)

    # `seed` removes the database, so `settings` is applied after it: the same search each time.
    @settings(
        database=_Known(choices_to_bytes(choices)),
        deadline=None,
        derandomize=False,
        max_examples=_TRIES_MAX,
        phases=(Phase.reuse, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @seed(0)
    @given(st.tuples(*map(_up_to, known)))
    def search(numbers: tuple[int, ...]) -> None:
        nonlocal best
        if fails(numbers):
            best = numbers
            raise _Found

    with contextlib.suppress(_Found):
        search()
    return best


class _Found(Exception):  # noqa: N818 - what hypothesis is to shrink, no error
    """The condition holds."""


def _up_to(largest: int) -> st.SearchStrategy[int]:
    if largest <= 0:
        return st.just(largest)
    if largest == 1:
        return st.booleans().map(int)
    return st.integers(0, largest)


class _Known(ExampleDatabase):
    """A database with one example, stored only under hypothesis' secondary key.

    hypothesis takes examples under its primary key as minimal and does not shrink them. Saves and
    deletions do nothing.
    """

    def __init__(self, example: bytes) -> None:
        super().__init__()
        self._example = example

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return (self._example,) if key.endswith(b".secondary") else ()

    def save(self, key: bytes, value: bytes) -> None:
        """Do nothing."""

    def delete(self, key: bytes, value: bytes) -> None:
        """Do nothing."""


# Candidates, which are run within limits.

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
