"""Virtual time for trio, and the clocks and processes of simulated hosts.

`HeapClock` is trio's clock, and runs the world's event heap. trio asks its clock how long to sleep
only when no task can run. Then the next event runs if it is due before trio's next deadline, else
time jumps to that deadline. So time passes only while all tasks wait, and an hour of waiting costs
nothing.

Source: SIMULATION.md, section Clock and scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT

from shaketable.system.sim.event_heap import EventHeap

# A simulated process: what its tasks wait on, and how it is paused and killed.
#
# A node's tasks are woken only by the world: by a socket, a timer of its clock, or its disk. All of
# these use `Process.when_running`, so a paused process stops with all its tasks, and handles what
# came meanwhile when it is resumed (SIGSTOP, SIGCONT).


class Process:
    """One incarnation of a host's program. `number` counts the host's incarnations from 0."""

    __slots__ = ("_asleep", "address", "host", "is_alive", "is_paused", "number", "shielded")

    def __init__(self, host: str, address: str, number: int) -> None:
        self.host = host
        self.address = address
        self.number = number
        self.is_alive = True
        self.is_paused = False
        self.shielded: dict[int, trio.CancelScope] = {}
        """Scopes that only the process's death cancels, by an arbitrary number."""
        self._asleep: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def when_running(self, work: Callable[..., object], *args: Any) -> None:
        """Run `work` now, or when the process is resumed; never once it is dead."""
        if self.is_paused:
            self._asleep.append((work, args))
        elif self.is_alive:
            work(*args)

    def resume(self) -> None:
        """Resume with all that came while it was paused, in order."""
        self.is_paused = False
        asleep, self._asleep = self._asleep, []
        for work, args in asleep:
            self.when_running(work, *args)

    def end(self) -> None:
        """End the process: only cancellation wakes its tasks from now on."""
        self.is_alive = self.is_paused = False
        self._asleep = []
        for scope in list(self.shielded.values()):
            scope.cancel()


CURRENT: ContextVar[Process] = ContextVar("simulated process")
"""The process of the running task; child tasks inherit it."""


class Park:
    """Where one task of a process waits for the world. Wake-ups may be spurious: check again."""

    __slots__ = ("_process", "_task")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._task: trio.lowlevel.Task | None = None

    async def wait(self) -> None:
        """Wait until `wake` is called (while the process runs)."""
        assert self._task is None, "one task waits here"
        self._task = trio.lowlevel.current_task()

        def abort(_: Callable[[], object]) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self) -> None:
        """Wake the waiting task."""
        if self._task is not None:
            self._process.when_running(self._wake)

    def _wake(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)


# Virtual time and clocks.

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


# A simulated host's clocks: they may run at another rate, and the wall clock may be off.
#
# All waits of a node use these clocks (`system.node.machine.Clock`), so a wrong rate affects only
# the node's own timers (DESIGN.md decision 9).

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
    """A process's view of its host's clocks; implements `system.node.machine.Clock`."""

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
