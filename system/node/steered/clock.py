"""A clock with injected faults: an offset, another rate, stopped, or strobing.

The node's timers use it as any `system.node.machine.Clock`; when its rate changes, running timers
are adjusted. The monotonic clock never goes back: it keeps any lead that an offset or a rate gave
it. The wall clock is correct again once all changes are undone.

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
class _ClockSegment:
    """A linear segment of the monotonic clock: at `machine_ms` it shows `shown_ms`."""

    machine_ms: float
    shown_ms: float
    """Without a strobe."""
    reached_ms: float
    """What the clock has reached at `machine_ms`, the lead of an earlier strobe included."""
    rate: float
    strobe: ClockOrder | None
    since_ms: float
    """The machine time at which the first strobe period starts."""

    def plain_ms(self, machine_ms: float) -> float:
        """Return what the clock would show without a strobe."""
        return self.shown_ms + (machine_ms - self.machine_ms) * self.rate

    def at(self, machine_ms: float) -> float:
        """Return what the clock shows."""
        plain_ms = self.plain_ms(machine_ms)
        if self.strobe is None:
            return plain_ms
        ahead_ms = abs(self.strobe.offset_ms)
        period, start_ms = self._period(machine_ms, self.strobe.strobe_ms)
        if period % 2 == 0:
            return plain_ms + ahead_ms
        # A monotonic clock cannot jump back: it stops where the period started, until time has
        # caught up. If the period started in an earlier segment, with another rate, the clock was
        # already stopped when this segment started.
        is_earlier = start_ms < self.machine_ms
        stopped_ms = self.reached_ms if is_earlier else self.plain_ms(start_ms) + ahead_ms
        return max(plain_ms, stopped_ms)

    def until_ms(self, due_ms: float, machine_ms: float) -> float:
        """Return the machine time until the clock shows `due_ms`, if no order changes."""
        from_ms = self.at(machine_ms)
        if due_ms <= from_ms:
            return 0.0
        if self.strobe is not None and self._period(machine_ms, self.strobe.strobe_ms)[0] % 2:
            from_ms = self.plain_ms(machine_ms)
        return (due_ms - from_ms) / self.rate if self.rate > 0 else math.inf

    def _period(self, machine_ms: float, period_ms: float) -> tuple[int, float]:
        """Return the number of the current strobe period, and when it started."""
        period = math.floor((machine_ms - self.since_ms) / period_ms)
        return period, self.since_ms + period * period_ms


class SteeredClock:
    """Implements `system.node.machine.Clock`, changed by clock orders.

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
        self._segment = _ClockSegment(now_ms, now_ms, now_ms, 1.0, None, 0.0)
        self._wall: tuple[tuple[ClockOrder, float], ...] = ()  # (order, since when)
        self._known: frozenset[int] = frozenset()
        self._waiting: dict[int, tuple[float, trio.CancelScope]] = {}
        self._waits = count()

    def now_ms(self) -> float:
        """Monotonic milliseconds."""
        return self._segment.at(self._machine_ms())

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self.exact_wall_ms())

    def exact_wall_ms(self) -> float:
        """Milliseconds since 1970, with their fraction."""
        now_ms, shown_ms = self._machine_ms(), self._machine_wall_ms()
        for order, since_ms in self._wall:
            past_ms = now_ms - since_ms
            is_on = not order.strobe_ms or math.floor(past_ms / order.strobe_ms) % 2 == 0
            shown_ms += order.offset_ms * is_on + (order.rate - 1.0) * past_ms
        return shown_ms

    @contextmanager
    def move_on_at(self, due_ms: float) -> Iterator[trio.CancelScope]:
        """Cancel the `with` body when this clock shows `due_ms`."""
        number = next(self._waits)
        with trio.CancelScope(deadline=self._deadline(due_ms)) as scope:
            self._waiting[number] = due_ms, scope
            try:
                yield scope
            finally:
                del self._waiting[number]

    # ---- orders -----------------------------------------------------------------------

    def follow(self, orders: tuple[ClockOrder, ...]) -> None:
        """Apply these orders, and no others, from now on.

        Called by one thread while others may read the clock. Afterwards the node's thread must call
        `rearm`.
        """
        now_ms = self._machine_ms()
        previous = self._segment
        monotonic = [order for order in orders if order.is_of("monotonic")]
        strobe = next((order for order in monotonic if order.strobe_ms), None)
        # Each offset advances the clock once. Undoing it does not set the clock back.
        reached_ms = previous.at(now_ms) + sum(
            max(0.0, order.offset_ms)
            for order in monotonic
            if not order.strobe_ms and order.number not in self._known
        )
        shown_ms, since_ms = reached_ms, now_ms
        if strobe == previous.strobe:
            since_ms = previous.since_ms
            shown_ms -= previous.at(now_ms) - previous.plain_ms(now_ms)
        rate = math.prod(order.rate for order in monotonic)
        self._segment = _ClockSegment(now_ms, shown_ms, reached_ms, rate, strobe, since_ms)
        since = {order.number: at_ms for order, at_ms in self._wall}
        self._wall = tuple(
            (order, since.get(order.number, now_ms)) for order in orders if order.is_of("wall")
        )
        self._known = frozenset(order.number for order in orders)

    @property
    def is_strobing(self) -> bool:
        """Whether the clock strobes, so that `rearm` must be called periodically."""
        return self._segment.strobe is not None

    def rearm(self) -> None:
        """Adjust the deadlines of running timers. Must be called by the node's thread."""
        for due_ms, scope in self._waiting.values():
            scope.deadline = self._deadline(due_ms)

    def _deadline(self, due_ms: float) -> float:
        """Return when, in trio's time, this clock shows `due_ms` if no order changes."""
        until_ms = self._segment.until_ms(due_ms, self._machine_ms())
        return trio.current_time() + until_ms / 1000
