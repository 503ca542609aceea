"""Makes a failing run small: fewer faults and client operations, the same violated invariant.

It works level by level, so that thousands of operations cost a few dozen runs each: the run's end,
the group's size, whole clients, slices of time, single calls, then numbers. On each level
hypothesis decides what may be removed. Random streams are keyed by name, so removing one thing
changes nothing else; where a run is stuck, it is tried in another order and under other seeds.

Source: Zeller & Hildebrandt 2002 (delta debugging); SIMULATION.md, section Hypothesis.

The search comes first: hypothesis chooses what is tried (`simplest_flags`, `simplest_numbers`), and
a `Search` runs it within limits and keeps the smallest.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.database import ExampleDatabase, choices_to_bytes
from msgspec.structs import replace

from shaketable.system.mutants import Mutant
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.schedules.faults import AnyFault
from shaketable.system.sim.schedules.schedule import Call, Schedule, Settings
from shaketable.system.sim.world import run_seed

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

    # hypothesis.seed removes the database, so `settings` is applied after it: the same search
    # each time.
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
    @hypothesis.seed(0)
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


# What can be made smaller in a schedule.

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


# The steps of shrinking, from coarse to fine.
#
# Each step takes a failing schedule and returns one that fails the same way, as small as it could
# make it. Where only one of two things can be removed, the earlier one goes.

FLAGS_MAX = 40
"""Most faults and groups of calls in one hypothesis search."""
NUMBERS_MAX = 24
GROUPS_MAX = 24
"""Number of groups that the calls are divided into on each level."""
MEMBERS_MIN = 3
"""Smaller groups show little about majorities: a schedule's own smaller size is kept."""
END_MARGINS_MS = (1, 500, 3000)
"""How long a run goes on after the violation; some invariants are checked later."""
STUCK_EVENTS = 10
"""A run stuck above so many events is tried with fewer calls under other seeds."""
SEEDS_MAX = 8
MANY = 1 << 30
THINNER = ((1, 64), (1, 16), (1, 4), (1, 1), (MANY, 64), (MANY, 16), (MANY, 4), (MANY, 2))
"""Bold reductions, the boldest first: most appends in a call, and keep one call of so many."""
LARGE_BODY_BYTES = 4000
"""A few large messages fill files, windows and disks as well as many small ones."""
OFFSETS_MAX = 3
"""Number of start offsets that each bold reduction tries under the run's own seed."""
ROUNDS_MAX = 4


def reduce_run(search: Search, schedule: Schedule) -> None:
    """Shrink a failing run until nothing changes; `search.best` is the result.

    Bold steps come first, since most bugs need a small part of what happens; exact ones last, since
    they take many runs.
    """
    _fewer(search, _thin_boldly(search, _cut_end(search, schedule)))
    _try_other_seeds(search)
    schedule = search.best
    for number in range(ROUNDS_MAX):
        before = schedule
        schedule = _fewer(search, schedule, late_first=number % 2 == 1)
        schedule = _fewer_appends(search, schedule)
        schedule = _simpler_numbers(search, schedule)
        if schedule == before:
            break


def _fewer(search: Search, schedule: Schedule, *, late_first: bool = False) -> Schedule:
    schedule = _cut_end(search, schedule)
    schedule = _simpler_settings(search, schedule)
    schedule = _weaker_faults(search, schedule)
    schedule = _fewer_events(search, schedule, late_first=late_first)
    return _cut_end(search, schedule)


def _thin_boldly(search: Search, schedule: Schedule) -> Schedule:
    """Try to keep a small part of the calls: with luck, a few runs save hundreds."""
    for count_max, step in THINNER:
        for offset in range(min(step, OFFSETS_MAX)):
            thinned = _thinned(schedule, count_max, step, offset)
            for candidate in (thinned, _with_large_bodies(thinned)):
                if search.fails(candidate):
                    return candidate
    return schedule


def _try_other_seeds(search: Search) -> None:
    """If the run is stuck, try other seeds for network, disks and timers."""
    for count_max, step in THINNER:
        for seed in range(SEEDS_MAX):
            stuck = search.best
            if count_events(stuck) <= STUCK_EVENTS:
                return
            # Another seed changes timing and disk behaviour only: what happens is still the
            # schedule's.
            thinned = replace(_thinned(stuck, count_max, step, seed % step), seed=seed)
            for candidate in (thinned, _with_large_bodies(thinned)):
                if search.fails(candidate):
                    _fewer(search, candidate)


def _thinned(schedule: Schedule, count_max: int, step: int, offset: int) -> Schedule:
    calls = schedule.calls[offset::step]
    fewer = (replace(call, count=min(call.count, count_max)) for call in calls)
    return replace(schedule, calls=tuple(fewer))


def _with_large_bodies(schedule: Schedule) -> Schedule:
    large = (replace(call, body_bytes=LARGE_BODY_BYTES) for call in schedule.calls)
    return replace(schedule, calls=tuple(large))


def _cut_end(search: Search, schedule: Schedule) -> Schedule:
    """Remove what follows the violation."""
    at_ms = search.fails_at(schedule)
    assert at_ms is not None
    for margin_ms in END_MARGINS_MS:
        run_ms = math.ceil(at_ms) + margin_ms
        if run_ms >= schedule.settings.run_ms:
            break
        shorter = replace(
            schedule,
            settings=replace(schedule.settings, run_ms=run_ms),
            faults=tuple(fault for fault in schedule.faults if fault.start_ms <= at_ms),
            calls=tuple(call for call in schedule.calls if call.at_ms <= at_ms),
        )
        if search.fails(shorter):
            return shorter
    return schedule


def _simpler_settings(search: Search, schedule: Schedule) -> Schedule:
    """Try a smaller group, and the default of each setting."""
    for members in range(MEMBERS_MIN, schedule.settings.members):
        smaller = replace(schedule, settings=replace(schedule.settings, members=members))
        if search.fails(smaller):
            schedule = smaller
            break
    usual = Settings(
        members=schedule.settings.members,
        run_ms=schedule.settings.run_ms,
        clients=schedule.settings.clients,
        queues=schedule.settings.queues,
    )
    candidate = replace(schedule, settings=usual)
    if search.fails(candidate):
        return candidate
    for name in Settings.__struct_fields__:
        simpler = replace(schedule.settings, **{name: getattr(usual, name)})
        if simpler.lease_ms >= simpler.election_timeout_min_ms:  # no node would start with it
            simpler = replace(simpler, lease_ms=usual.lease_ms)
        if simpler != schedule.settings and search.fails(replace(schedule, settings=simpler)):
            schedule = replace(schedule, settings=simpler)
    return schedule


def _fewer_events(search: Search, schedule: Schedule, *, late_first: bool) -> Schedule:
    """Remove faults and calls: whole clients, then shorter and shorter slices of time.

    Where only one of two can be removed, the earlier goes; `late_first` reverses that.
    """
    groups = _by_client(schedule.calls)
    while True:
        schedule, groups = _without_some(search, schedule, groups, late_first=late_first)
        if all(len(group) == 1 for group in groups):
            return schedule
        parts = max(2, GROUPS_MAX // len(groups))
        groups = [part for group in groups for part in _divide(group, parts)]


Group = tuple[int, ...]
"""Indices of calls in a schedule."""


def _by_client(calls: Sequence[Call]) -> list[Group]:
    clients: dict[int, list[int]] = {}
    for at, call in enumerate(calls):
        clients.setdefault(call.client, []).append(at)
    return [tuple(group) for group in clients.values()]


def _divide(group: Group, parts: int) -> Iterator[Group]:
    step = math.ceil(len(group) / parts)
    for at in range(0, len(group), step):
        yield group[at : at + step]


def _without_some(
    search: Search, schedule: Schedule, groups: list[Group], *, late_first: bool
) -> tuple[Schedule, list[Group]]:
    """Remove the faults and groups of calls that hypothesis finds needless, some at a time."""
    items = [*range(len(schedule.faults)), *groups]
    if late_first:
        items.reverse()
    kept = items
    for first in range(0, len(items), FLAGS_MAX):
        part = items[first : first + FLAGS_MAX]
        rest = [item for item in kept if item not in part]
        choose = partial(_choose, part)
        flags = simplest_flags(
            len(part),
            lambda flags, rest=rest, choose=choose: search.fails(  # type: ignore[misc]
                _only(schedule, [*rest, *choose(flags)])
            ),
        )
        kept = [*rest, *choose(flags)]
    left = sorted(item for item in kept if not isinstance(item, int))
    places = {old: new for new, old in enumerate(sorted(at for group in left for at in group))}
    moved = [tuple(places[at] for at in group) for group in left]
    return _only(schedule, kept), moved


def _choose(part: Sequence[int | Group], flags: Sequence[bool]) -> list[int | Group]:
    return [item for item, is_kept in zip(part, flags, strict=True) if is_kept]


def _only(schedule: Schedule, items: Sequence[int | Group]) -> Schedule:
    """Return the schedule with only these faults, by index, and these groups of calls."""
    faults = {item for item in items if isinstance(item, int)}
    calls = {at for item in items if not isinstance(item, int) for at in item}
    return replace(
        schedule,
        faults=tuple(fault for at, fault in enumerate(schedule.faults) if at in faults),
        calls=tuple(call for at, call in enumerate(schedule.calls) if at in calls),
    )


def _fewer_appends(search: Search, schedule: Schedule) -> Schedule:
    """Reduce the number of appends in calls that make several."""
    known = [call.count - 1 for call in schedule.calls]

    def build(numbers: Sequence[int]) -> Schedule:
        calls = (replace(c, count=1 + n) for c, n in zip(schedule.calls, numbers, strict=True))
        return replace(schedule, calls=tuple(calls))

    return build(_smaller(search, known, build, range(len(known))))


def _weaker_faults(search: Search, schedule: Schedule) -> Schedule:
    """Reduce the faults' durations and sizes; all else stays as it is."""
    numbers = RunNumbers(schedule)
    return numbers.build(_smaller(search, numbers.known, numbers.build, numbers.of_faults))


def _simpler_numbers(search: Search, schedule: Schedule) -> Schedule:
    """Minimize gaps between events, durations and sizes.

    A time is stored as the gap since the event before it, so that later events move along.
    """
    numbers = RunNumbers(schedule)
    return numbers.build(_smaller(search, numbers.known, numbers.build, range(len(numbers.known))))


def _smaller(
    search: Search,
    known: Sequence[int],
    build: Callable[[Sequence[int]], Schedule],
    places: Sequence[int],
) -> list[int]:
    """Reduce the numbers at these places, some at a time, as long as the run fails."""
    numbers = list(known)
    open_at = [at for at in places if numbers[at] > 0]
    for first in range(0, len(open_at), NUMBERS_MAX):
        part = open_at[first : first + NUMBERS_MAX]
        put = partial(_put, tuple(numbers), part)
        smallest = simplest_numbers(
            [numbers[at] for at in part],
            lambda values, put=put: search.fails(build(put(values))),  # type: ignore[misc]
        )
        numbers = put(smallest)
    return numbers


def _put(numbers: Sequence[int], places: Sequence[int], values: Sequence[int]) -> list[int]:
    changed = list(numbers)
    for at, value in zip(places, values, strict=True):
        changed[at] = value
    return changed


# A schedule's times and sizes as numbers on a coarse grid, where smaller is simpler.
#
# The largest number of each means the schedule's exact value; every other one means that many grid
# steps. A time is a gap since the event before it, so that reducing it moves all later events and
# keeps their distances.

GRID_MS = 50
_GRIDS = {
    "duration_ms": GRID_MS,
    "operations": 1,
    "spare_bytes": 4096,
    "body_bytes": 16,
    "back": 1 << 20,
}
"""Fields that may be reduced, and the step of their grid."""
_LEAST = {"operations": 1, "body_bytes": 16}


class RunNumbers:
    """The numbers of one schedule.

    `known` gives back the schedule itself; `of_faults` are the indices of the numbers that say how
    long or how strong a fault is.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._gaps: list[int] = []
        self._events: list[AnyFault | Call] = [*schedule.faults, *schedule.calls]
        self._in_time = sorted(range(len(self._events)), key=self._start_ms_at)
        before_ms = 0
        for at in self._in_time:
            self._gaps.append(self._start_ms_at(at) - before_ms)
            before_ms = self._start_ms_at(at)
        self._fields = [
            (at, name)
            for at, event in enumerate(self._events)
            for name in event.__struct_fields__
            if name in _GRIDS
        ]
        self.known = [_steps(gap_ms, GRID_MS) for gap_ms in self._gaps] + [
            _steps(self._value(at, name), _GRIDS[name]) for at, name in self._fields
        ]

        self.of_faults = [
            len(self._gaps) + n
            for n, (at, _) in enumerate(self._fields)
            if at < len(schedule.faults)
        ]

    def build(self, numbers: Sequence[int]) -> Schedule:
        """Return the schedule with these numbers, each at most the known one."""
        events = list(self._events)
        gaps = numbers[: len(self._gaps)]
        for at, name, number in zip(
            (at for at, _ in self._fields),
            (name for _, name in self._fields),
            numbers[len(self._gaps) :],
            strict=True,
        ):
            value = _from_steps(number, self._value(at, name), _GRIDS[name])
            events[at] = replace(events[at], **{name: value + _LEAST.get(name, 0)})
        now_ms = saved_ms = 0  # the order of events is kept
        for at, gap_ms, number in zip(self._in_time, self._gaps, gaps, strict=True):
            shorter_ms = _from_steps(number, gap_ms, GRID_MS)
            saved_ms += gap_ms - shorter_ms
            now_ms += shorter_ms
            event = events[at]
            if isinstance(event, Call):
                events[at] = replace(event, at_ms=now_ms)
            else:
                events[at] = replace(event, start_ms=now_ms)
        settings = self._schedule.settings
        return replace(
            self._schedule,
            settings=replace(settings, run_ms=max(1, settings.run_ms - saved_ms)),
            faults=tuple(event for event in events if not isinstance(event, Call)),
            calls=tuple(event for event in events if isinstance(event, Call)),
        )

    def _start_ms_at(self, at: int) -> int:
        return _start_ms(self._events[at])

    def _value(self, at: int, name: str) -> int:
        """Return how much a field may be reduced."""
        return max(0, int(getattr(self._events[at], name)) - _LEAST.get(name, 0))


def _start_ms(event: AnyFault | Call) -> int:
    return event.at_ms if isinstance(event, Call) else event.start_ms


def _steps(value: int, grid: int) -> int:
    return -(-value // grid)


def _from_steps(number: int, known: int, grid: int) -> int:
    """Return the value of a number: the known value, or that many grid steps."""
    return known if number >= _steps(known, grid) else number * grid
