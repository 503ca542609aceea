"""Virtual time for trio: a clock that runs the world's heap of events.

trio asks its clock how long to sleep only when nothing can run. There the next event is
carried out if it is due before the next of trio's own deadlines, else time jumps to that
deadline. So time passes only while everybody waits, and an hour of waiting costs nothing.

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
"""How often trio may look at its own wake-up pipe before an empty heap is a deadlock."""


class Deadlock(Exception):  # noqa: N818 - a finding about the run
    """Everybody waits, and nothing will ever happen any more."""


class Timer:
    """Something that is due; `cancel` makes it nothing."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work

    def cancel(self) -> None:
        """Let it not happen."""
        self._work = None

    def fire(self) -> None:
        """Let it happen, unless it was cancelled."""
        work, self._work = self._work, None
        if work is not None:
            work()


class HeapClock(trio.abc.Clock):
    """trio's clock over the world's heap; trio's seconds are the heap's milliseconds.

    `when_idle` is called between two events, when every task waits. An exception in there or
    in an event is kept in `failure`, and `on_failure` is called, which must end the run.
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
        """The virtual millisecond."""
        return self.heap.now_ms

    def after(self, pause_ms: float, action: Callable[..., None], *args: Any) -> None:
        """Let `action(*args)` happen when so much time has passed."""
        self.heap.push(self.heap.now_ms + pause_ms, action, *args)

    def timer(self, pause_ms: float, work: Callable[[], object]) -> Timer:
        """Let `work()` happen when so much time has passed, unless it is cancelled before."""
        timer = Timer(work)
        self.heap.push(self.heap.now_ms + max(0.0, pause_ms), timer.fire)
        return timer

    def stop(self) -> None:
        """Let nothing more happen: trio is to end what still runs, at this instant."""
        self._is_over = True

    # ---- trio.abc.Clock -----------------------------------------------------------------

    def start_clock(self) -> None:
        """Do nothing: time starts at 0 and passes by events."""

    def current_time(self) -> float:
        """Return the virtual second."""
        return self.heap.now_ms / 1000

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Carry out events until a task can run or trio's deadline is reached; never sleep."""
        run_queue = GLOBAL_RUN_CONTEXT.runner.runq
        if self._is_over:  # trio wakes itself up through a pipe now and then
            self._idle_polls += 1
            assert self._idle_polls < LAST_POLLS_MAX, "a task does not end with the run"
            return 0.0
        try:
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
        except Exception as error:  # trio would call it its own bug
            self._fail(error)
        return 0.0

    def _jump_to(self, deadline: float) -> None:
        if deadline < math.inf:
            heap = self.heap
            heap.now_ms = max(heap.now_ms, deadline * 1000)
            while heap.now_ms / 1000 < deadline:  # by the last digit of a float
                heap.now_ms = math.nextafter(heap.now_ms, math.inf)
            return
        self._idle_polls += 1
        if self._idle_polls > IDLE_POLLS_MAX:
            self._idle_polls = 0
            raise Deadlock("every task waits and nothing is due any more")

    def _fail(self, error: Exception) -> None:
        if self.failure is None:  # what follows while the run ends follows from the first
            self.failure = error
            self.on_failure()


def _nothing() -> None:
    """Stand for a hook that nobody set."""
