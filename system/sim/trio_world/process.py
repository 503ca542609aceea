"""A simulated process: what its tasks wait on, and how it is paused and killed.

A node's tasks are woken only by the world: by a socket, a timer of its clock, or its disk. All of
these use `Process.when_running`, so a paused process stops with all its tasks, and handles what
came meanwhile when it is resumed (SIGSTOP, SIGCONT).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import trio


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
