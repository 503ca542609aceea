"""A clock that others set: other offset, other rate, standing still, flickering.

The node's timers wait on it as on any other (`system.node.clock.Clock`): when its rate changes,
those that wait already wait accordingly. The monotonic clock never goes back: what an offset or
a rate has put it ahead by, it keeps; the wall clock is right again when the last change is gone.

Source: DESIGN.md decision 9 (a clock = monotonic x rate + offset, wall time likewise);
jepsen.nemesis.time (bump, strobe); libfaketime (rate).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import trio

from shaketable.system.node.steered.orders import ClockOrder


@dataclass(frozen=True, slots=True)
class _Course:
    """How the monotonic clock goes: from `machine_ms` on, where it showed `shown_ms`."""

    machine_ms: float
    shown_ms: float
    rate: float
    flicker: ClockOrder | None
    since_ms: float
    """Machine time from which the flicker's periods count."""

    def plain_ms(self, machine_ms: float) -> float:
        """What it would show without a flicker."""
        return self.shown_ms + (machine_ms - self.machine_ms) * self.rate

    def at(self, machine_ms: float) -> float:
        """What it shows."""
        plain_ms = self.plain_ms(machine_ms)
        if self.flicker is None:
            return plain_ms
        ahead_ms = abs(self.flicker.offset_ms)
        period, began_ms = self._period(machine_ms, self.flicker.strobe_ms)
        if period % 2 == 0:
            return plain_ms + ahead_ms
        # It stands where it was when the period began, until time has caught up.
        return max(plain_ms, self.plain_ms(began_ms) + ahead_ms)

    def until_ms(self, due_ms: float, machine_ms: float) -> float:
        """How long it takes until it shows `due_ms`, if nothing changes."""
        from_ms = self.at(machine_ms)
        if due_ms <= from_ms:
            return 0.0
        if self.flicker is not None and self._period(machine_ms, self.flicker.strobe_ms)[0] % 2:
            from_ms = self.plain_ms(machine_ms)
        return (due_ms - from_ms) / self.rate if self.rate > 0 else math.inf

    def _period(self, machine_ms: float, period_ms: float) -> tuple[int, float]:
        """Which period of the flicker it is, and when it began."""
        period = math.floor((machine_ms - self.since_ms) / period_ms)
        return period, self.since_ms + period * period_ms


class SteeredClock:
    """Implements `system.node.clock.Clock` by what it is ordered to show.

    Args:
        machine_ms: the machine's monotonic milliseconds.
        machine_wall_ms: its milliseconds since 1970.
    """

    def __init__(
        self, machine_ms: Callable[[], float], machine_wall_ms: Callable[[], float]
    ) -> None:
        self._machine_ms = machine_ms
        self._machine_wall_ms = machine_wall_ms
        now_ms = machine_ms()
        self._course = _Course(now_ms, now_ms, 1.0, None, 0.0)
        self._wall: tuple[tuple[ClockOrder, float], ...] = ()  # (order, since when)
        self._known: frozenset[int] = frozenset()
        self._waiting: dict[int, tuple[float, trio.CancelScope]] = {}
        self._waits = count()

    def now_ms(self) -> float:
        """Monotonic milliseconds."""
        return self._course.at(self._machine_ms())

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self.exact_wall_ms())

    def exact_wall_ms(self) -> float:
        """Milliseconds since 1970, and their fraction."""
        now_ms, shown_ms = self._machine_ms(), self._machine_wall_ms()
        for order, since_ms in self._wall:
            past_ms = now_ms - since_ms
            is_on = not order.strobe_ms or math.floor(past_ms / order.strobe_ms) % 2 == 0
            shown_ms += order.offset_ms * is_on + (order.rate - 1.0) * past_ms
        return shown_ms

    @contextmanager
    def move_on_at(self, due_ms: float) -> Iterator[trio.CancelScope]:
        """Cancel what is inside when this clock shows `due_ms`."""
        number = next(self._waits)
        with trio.CancelScope(deadline=self._deadline(due_ms)) as scope:
            self._waiting[number] = due_ms, scope
            try:
                yield scope
            finally:
                del self._waiting[number]

    # ---- what steers it ---------------------------------------------------------------

    def follow(self, orders: tuple[ClockOrder, ...]) -> None:
        """These are in force from now on. `rearm` is to be called after it, by the node's thread.

        Called by one thread; others may read the clock meanwhile.
        """
        now_ms = self._machine_ms()
        shown_ms = self._course.at(now_ms)
        mine = [order for order in orders if order.is_of("monotonic")]
        flicker = next((order for order in mine if order.strobe_ms), None)
        # Each puts it ahead once: when it is taken back the clock does not go back.
        shown_ms += sum(
            max(0.0, order.offset_ms)
            for order in mine
            if not order.strobe_ms and order.number not in self._known
        )
        was = self._course
        since_ms = now_ms if flicker != was.flicker else was.since_ms
        if flicker is not None and flicker == was.flicker:
            shown_ms = was.plain_ms(now_ms) + (shown_ms - was.at(now_ms))
        rate = math.prod(order.rate for order in mine)
        self._course = _Course(now_ms, shown_ms, rate, flicker, since_ms)
        since = {order.number: at_ms for order, at_ms in self._wall}
        self._wall = tuple(
            (order, since.get(order.number, now_ms)) for order in orders if order.is_of("wall")
        )
        self._known = frozenset(order.number for order in orders)

    @property
    def flickers(self) -> bool:
        """Whether `rearm` must be called again and again, because the rate keeps changing."""
        return self._course.flicker is not None

    def rearm(self) -> None:
        """Let everybody who waits wait as the clock goes now. By the node's own thread."""
        for due_ms, scope in self._waiting.values():
            scope.deadline = self._deadline(due_ms)

    def _deadline(self, due_ms: float) -> float:
        """When, in trio's time, this clock shows `due_ms`: as it goes now."""
        until_ms = self._course.until_ms(due_ms, self._machine_ms())
        return trio.current_time() + until_ms / 1000
