"""Makes a failing run small: fewer faults and client operations, the same broken invariant.

A level at a time, so that thousands of operations cost a few dozen runs each: the run's end,
the group's size, whole clients, slices of time, single calls, then numbers. On every level
hypothesis decides what may go (`system.sim.simplest`). Draws are keyed by name, so what is left
out shifts nothing else; where a run is stuck, it is tried again in another order and under
other seeds.

Source: Zeller & Hildebrandt 2002 (delta debugging); SIMULATION.md, section Hypothesis.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from system.sim.run_numbers import RunNumbers
from system.sim.schedule import Call, Schedule, Settings
from system.sim.simplest import StopSearch, simplest_flags, simplest_numbers
from system.sim.violation import Violation

FLAGS_MAX = 40
"""As many faults and groups of calls as hypothesis is asked about at once."""
NUMBERS_MAX = 24
GROUPS_MAX = 24
"""Into so many groups the calls are divided on each level."""
MEMBERS_MIN = 3
"""Smaller groups tell little of majorities: only where the schedule has one is it kept."""
END_MARGINS_MS = (1, 500, 3000)
"""How long a run may go on behind the violation; some invariants are looked at later."""
STUCK_EVENTS = 10
"""A run that is stuck above so many events is tried under other seeds."""
SEEDS_MAX = 12
ROUNDS_MAX = 4


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


class Shrunk(msgspec.Struct, frozen=True, kw_only=True):
    """A minimal failing run: `schedule` (which has its seed) ends with `violation`.

    `events` counts its faults and client operations; `runs` and `seconds` what it took.
    `mutant` is the planted bug that it needs, "" for none.
    """

    schedule: Schedule
    violation: Violation
    events: int
    runs: int
    seconds: float
    is_finished: bool
    """False if a limit ended it: another attempt with more time may find a smaller run."""
    mutant: str = ""

    @property
    def seed(self) -> int:
        """The seed of the network's, the disks' and the timers' draws."""
        return self.schedule.seed


class NothingToShrink(Exception):  # noqa: N818 - a finding about the run
    """The run that should be made small does not fail."""


class BadShrunkFile(Exception):  # noqa: N818 - a finding about the file
    """A file is no shrunk run: one line that says why."""


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
    search = _Search(try_run, limits or Limits(), progress)
    search.begin(schedule)
    finished = False
    with contextlib.suppress(StopSearch):
        _reduce(search, schedule)
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


def count_events(schedule: Schedule) -> int:
    """Count a schedule's faults and client operations; an append of a batch is one."""
    return len(schedule.faults) + sum(call.count for call in schedule.calls)


def save(shrunk: Shrunk, path: Path) -> None:
    """Write a shrunk run as JSON, to be read by people and by `load`."""
    text = msgspec.json.format(msgspec.json.encode(shrunk), indent=1)
    path.write_bytes(text + b"\n")


def load(path: Path) -> Shrunk:
    """Read a shrunk run. Raises BadShrunkFile."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Shrunk)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadShrunkFile(f"{path} is no shrunk run: {error}") from None


def _reduce(search: _Search, schedule: Schedule) -> None:
    """Make it smaller until nothing changes, then try from other seeds, if it is still large."""
    _reduce_here(search, schedule)
    if count_events(search.best) <= STUCK_EVENTS:
        return
    stuck = search.best
    for seed in range(SEEDS_MAX):
        elsewhere = replace(stuck, seed=seed)
        if search.fails(elsewhere):
            _reduce_here(search, elsewhere)


def _reduce_here(search: _Search, schedule: Schedule) -> Schedule:
    for number in range(ROUNDS_MAX):
        before = schedule
        schedule = _cut_end(search, schedule)
        schedule = _simpler_settings(search, schedule)
        schedule = _fewer_events(search, schedule, late_first=number % 2 == 1)
        schedule = _cut_end(search, schedule)
        schedule = _fewer_appends(search, schedule)
        schedule = _simpler_numbers(search, schedule)
        if schedule == before:
            break
    return schedule


class _Search:
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
        if found is not None and _size(schedule) < _size(self.best):
            self.best, self.violation = schedule, found
        if self._progress is not None:
            left = sum(call.count for call in self.best.calls)
            self._progress(Progress(self.runs, len(self.best.faults), left))
        return at_ms


def _size(schedule: Schedule) -> tuple[int, int, int, int, bytes]:
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


def _cut_end(search: _Search, schedule: Schedule) -> Schedule:
    """Leave out what would come behind the violation."""
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


def _simpler_settings(search: _Search, schedule: Schedule) -> Schedule:
    """Try a smaller group, and for each setting what it is without a draw."""
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
        if simpler != schedule.settings and search.fails(replace(schedule, settings=simpler)):
            schedule = replace(schedule, settings=simpler)
    return schedule


def _fewer_events(search: _Search, schedule: Schedule, *, late_first: bool) -> Schedule:
    """Leave out faults and calls: whole clients, then ever shorter slices of time, then one by one.

    What comes first is left out first where only one of two may go; `late_first` turns it round.
    """
    groups = _by_client(schedule.calls)
    while True:
        schedule, groups = _without_some(search, schedule, groups, late_first=late_first)
        if all(len(group) == 1 for group in groups):
            return schedule
        parts = max(2, GROUPS_MAX // len(groups))
        groups = [part for group in groups for part in _divide(group, parts)]


Group = tuple[int, ...]
"""Places of calls in a schedule."""


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
    search: _Search, schedule: Schedule, groups: list[Group], *, late_first: bool
) -> tuple[Schedule, list[Group]]:
    """Leave out what faults and groups of calls hypothesis finds needless, some at a time."""
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
    """Return the schedule with these faults, by place, and these groups of calls alone."""
    faults = {item for item in items if isinstance(item, int)}
    calls = {at for item in items if not isinstance(item, int) for at in item}
    return replace(
        schedule,
        faults=tuple(fault for at, fault in enumerate(schedule.faults) if at in faults),
        calls=tuple(call for at, call in enumerate(schedule.calls) if at in calls),
    )


def _fewer_appends(search: _Search, schedule: Schedule) -> Schedule:
    """Take appends out of the calls that make several."""
    known = [call.count - 1 for call in schedule.calls]

    def build(numbers: Sequence[int]) -> Schedule:
        calls = (replace(c, count=1 + n) for c, n in zip(schedule.calls, numbers, strict=True))
        return replace(schedule, calls=tuple(calls))

    return build(_smaller(search, known, build))


def _simpler_numbers(search: _Search, schedule: Schedule) -> Schedule:
    """Make pauses between events, durations and sizes as small as they can be.

    A time is put as the gap since the event before it: what follows moves along.
    """
    numbers = RunNumbers(schedule)
    return numbers.build(_smaller(search, numbers.known, numbers.build))


def _smaller(
    search: _Search, known: Sequence[int], build: Callable[[Sequence[int]], Schedule]
) -> list[int]:
    """Make numbers smaller, some at a time, as long as what is built from them fails."""
    numbers = list(known)
    open_at = [at for at, number in enumerate(numbers) if number > 0]
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
