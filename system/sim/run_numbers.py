"""A schedule's times and sizes as numbers on a coarse grid, where smaller is simpler.

The largest of each stands for the value that the schedule has, exactly; every other one for
that many steps of its grid. A time is a gap since the event before it, so that making it smaller
moves all that follows and leaves their distances as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from shaketable.system.sim.faults import AnyFault
from shaketable.system.sim.schedule import Call, Schedule

GRID_MS = 50
_GRIDS = {
    "duration_ms": GRID_MS,
    "operations": 1,
    "spare_bytes": 4096,
    "body_bytes": 16,
    "back": 1 << 20,
}
"""Fields that may become smaller, and how coarse their grid is."""
_LEAST = {"operations": 1, "body_bytes": 16}


class RunNumbers:
    """The numbers of one schedule.

    `known` are those that give back the schedule itself, `of_faults` the places of those that
    say how long or how strong a fault is.
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
        now_ms = saved_ms = 0  # the order of events stays: it decides what comes first
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
        """What may be taken from a field."""
        return max(0, int(getattr(self._events[at], name)) - _LEAST.get(name, 0))


def _start_ms(event: AnyFault | Call) -> int:
    return event.at_ms if isinstance(event, Call) else event.start_ms


def _steps(value: int, grid: int) -> int:
    return -(-value // grid)


def _from_steps(number: int, known: int, grid: int) -> int:
    """Return the value of a number: the known one itself, or that many steps."""
    return known if number >= _steps(known, grid) else number * grid
