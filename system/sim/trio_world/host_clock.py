"""A simulated host's clocks: they may run at another rate, and the wall clock may be off.

All waits of a node use these clocks (`system.node.clock.Clock`), so a wrong rate affects only the
node's own timers (DESIGN.md decision 9).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from shaketable.system.sim.trio_world.heap_clock import HeapClock, Timer
from shaketable.system.sim.trio_world.process import Process

STEP_MS = 0.001
WALL_MS_AT_START = 1_700_000_000_000
"""Where every host's wall clock starts: a fixed instant, so that runs are reproducible."""


class HostClock:
    """The host's hardware clock. It outlives the host's processes."""

    def __init__(self, clock: HeapClock) -> None:
        self.offset_ms = 0
        """How far the wall clock is off."""
        self._clock = clock
        self._rate = 1.0
        self._shown_ms = 0.0
        self._since_ms = clock.now_ms
        self._waiting: dict[int, _Waiting] = {}
        self._waits = 0

    def now_ms(self) -> float:
        """Return monotonic milliseconds, as this host counts them."""
        return self._shown_ms + (self._clock.now_ms - self._since_ms) * self._rate

    def set_rate(self, rate: float) -> None:
        """Run at that rate from now on (1.0 is correct, 0 stops it); waits change with it."""
        assert rate >= 0
        self._restart_from(self.now_ms(), rate)

    def advance(self, ahead_ms: float) -> None:
        """Jump ahead; the wall clock's error stays the same."""
        assert ahead_ms >= 0
        self.offset_ms -= round(ahead_ms)
        self._restart_from(self.now_ms() + ahead_ms, self._rate)

    @property
    def ahead_ms(self) -> float:
        """How far the monotonic clock is ahead of virtual time."""
        return self.now_ms() - self._clock.now_ms

    @property
    def wall_error_ms(self) -> float:
        """How far the wall clock is ahead of virtual time."""
        return self.ahead_ms + self.offset_ms

    def _restart_from(self, shown_ms: float, rate: float) -> None:
        self._shown_ms = shown_ms
        self._since_ms = self._clock.now_ms
        self._rate = rate
        for waiting in self._waiting.values():
            waiting.timer.cancel()
            waiting.timer = self._timer(waiting)

    def wait(self, process: Process, due_ms: float, scope: trio.CancelScope) -> int:
        """Cancel `scope` when this clock shows `due_ms`; return the wait's number."""
        self._waits += 1
        waiting = self._waiting[self._waits] = _Waiting(process, due_ms, scope)
        waiting.timer = self._timer(waiting)
        return self._waits

    def cancel_wait(self, number: int) -> None:
        """End a wait."""
        self._waiting.pop(number).timer.cancel()

    def _timer(self, waiting: _Waiting) -> Timer:
        if self._rate == 0:  # waits until the clock runs again
            return Timer(waiting.fire)
        # At least a step of time: by rounding a float may never reach the due time.
        pause_ms = max((waiting.due_ms - self.now_ms()) / self._rate, STEP_MS)
        return self._clock.timer(pause_ms, waiting.fire)


class _Waiting:
    """A wait of a process until `due_ms`."""

    __slots__ = ("due_ms", "process", "scope", "timer")

    def __init__(self, process: Process, due_ms: float, scope: trio.CancelScope) -> None:
        self.process = process
        self.due_ms = due_ms
        self.scope = scope
        self.timer = Timer(self.fire)

    def fire(self) -> None:
        self.process.when_running(self.scope.cancel)


class ProcessClock:
    """A process's view of its host's clocks; implements `system.node.clock.Clock`."""

    def __init__(self, host_clock: HostClock, process: Process) -> None:
        self._host_clock = host_clock
        self._process = process

    def now_ms(self) -> float:
        """Return monotonic milliseconds."""
        return self._host_clock.now_ms()

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 by this host's clock."""
        clock = self._host_clock
        return WALL_MS_AT_START + int(clock.now_ms()) + clock.offset_ms

    @contextmanager
    def move_on_at(self, due_ms: float) -> Iterator[trio.CancelScope]:
        """Cancel the body when this clock shows `due_ms`."""
        with trio.CancelScope() as scope:
            number = self._host_clock.wait(self._process, due_ms, scope)
            try:
                yield scope
            finally:
                self._host_clock.cancel_wait(number)
