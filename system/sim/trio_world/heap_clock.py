"""Virtual time for trio: a clock that runs the world's event heap.

trio asks its clock how long to sleep only when no task can run. Then the next event runs if it is
due before trio's next deadline, else time jumps to that deadline. So time passes only while all
tasks wait, and an hour of waiting costs nothing.

Source: SIMULATION.md, section Clock and scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT

from shaketable.system.sim.event_heap import EventHeap

LAST_POLLS_MAX = 100_000
IDLE_POLLS_MAX = 8
"""How often trio may poll its own wake-up pipe before an empty heap is a deadlock."""


class Deadlock(Exception):  # noqa: N818 - a finding about the run
    """All tasks wait, and no event is pending."""


class Timer:
    """A pending action that can be cancelled."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work

    def cancel(self) -> None:
        """Cancel the action."""
        self._work = None

    def fire(self) -> None:
        """Run the action, unless it was cancelled."""
        work, self._work = self._work, None
        if work is not None:
            work()


class HeapClock(trio.abc.Clock):
    """trio's clock over the world's heap; trio's seconds are the heap's milliseconds.

    `when_idle` is called between two events, when every task waits. An exception in it or in an
    event is kept in `failure`, and `on_failure` is called, which must end the run.
    """

    def __init__(self) -> None:
        self.heap = EventHeap()
        self.failure: Exception | None = None
        self.when_idle: Callable[[], object] = _nothing
        self.on_failure: Callable[[], object] = _nothing
        self._idle_polls = 0
        self._is_over = False

    @property
    def now_ms(self) -> float:
        """The virtual time in milliseconds."""
        return self.heap.now_ms

    def after(self, pause_ms: float, action: Callable[..., None], *args: Any) -> None:
        """Schedule `action(*args)` in `pause_ms`."""
        self.heap.push(self.heap.now_ms + pause_ms, action, *args)

    def timer(self, pause_ms: float, work: Callable[[], object]) -> Timer:
        """Schedule `work()` in `pause_ms`, unless it is cancelled before."""
        timer = Timer(work)
        self.heap.push(self.heap.now_ms + max(0.0, pause_ms), timer.fire)
        return timer

    def stop(self) -> None:
        """Run no more events: trio ends the remaining tasks at this instant."""
        self._is_over = True

    # ---- trio.abc.Clock -----------------------------------------------------------------

    def start_clock(self) -> None:
        """Do nothing: time starts at 0 and moves with events."""

    def current_time(self) -> float:
        """Return the virtual time in seconds."""
        return self.heap.now_ms / 1000

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Run events until a task can run or trio's deadline is reached; never sleep."""
        run_queue = GLOBAL_RUN_CONTEXT.runner.runq
        if self._is_over:  # trio sometimes wakes itself up through a pipe
            self._idle_polls += 1
            assert self._idle_polls < LAST_POLLS_MAX, "a task does not end with the run"
            return 0.0
        try:
            # One event may make several tasks ready; they run before the next event, at the same
            # instant.
            while not run_queue:
                self.when_idle()
                if run_queue:
                    break
                event = self.heap.pop(deadline * 1000)
                if event is None:
                    self._jump_to(deadline)
                    break
                self._idle_polls = 0
                action, args = event
                action(*args)
        except Exception as error:  # trio would report it as a bug of its own
            self._fail(error)
        return 0.0

    def _jump_to(self, deadline: float) -> None:
        if deadline < math.inf:
            heap = self.heap
            heap.now_ms = max(heap.now_ms, deadline * 1000)
            while heap.now_ms / 1000 < deadline:  # rounding may leave it just short
                heap.now_ms = math.nextafter(heap.now_ms, math.inf)
            return
        self._idle_polls += 1
        if self._idle_polls > IDLE_POLLS_MAX:
            self._idle_polls = 0
            raise Deadlock("every task waits and nothing is due any more")

    def _fail(self, error: Exception) -> None:
        if self.failure is None:  # later failures are consequences of the first
            self.failure = error
            self.on_failure()


def _nothing() -> None:
    """Do nothing: the default of a hook."""
