"""Runs pure tasks of a simulator in several processes, and yields their results in order.

Processes are started by spawn, die with this one, and leave Ctrl-C to it. If one dies in the middle
of a task, everything ends with an error that names the task: it may be the very seed that matters.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, Final, Generic, TypeVar

import multiprocess

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.guard import die_with_parent

JOBS_MAX: Final = 64
WAITING_MAX: Final = 8
"""How many results per process may wait for that of an earlier task."""
EXIT_TIMEOUT_S: Final = 3.0

Task = TypeVar("Task")
Result = TypeVar("Result")


class TaskFailedError(Exception):
    """A task raised an unexpected exception; its traceback is added as a note."""


class SeedWorkers(Generic[Task, Result]):
    """Processes that run `work(task)` for tasks; both must be importable and picklable.

    Use as a context manager: on every way out no process is left. A single job runs in its own
    process, too, so its changes of module state do not affect the caller.
    """

    def __init__(self, work: Callable[[Task], Result], jobs: int) -> None:
        assert 1 <= jobs <= JOBS_MAX, f"{jobs} jobs"
        context = multiprocess.get_context("spawn")
        self._workers = [_Worker(context, work) for _ in range(jobs)]

    def __enter__(self) -> SeedWorkers[Task, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join(EXIT_TIMEOUT_S)
            worker.pipe.close()

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results in the order of the tasks, each as soon as the earlier ones are done.

        Tasks are drawn one by one as processes get free; at most `jobs` run at once.

        Raises:
            HarnessError: the process of a task died.
            UsageError: a task raised it.
            TaskFailedError: a task raised anything else.
        """
        coming = enumerate(tasks)
        done: dict[int, Result] = {}
        following = 0
        idle = list(self._workers)
        busy: dict[Any, _Worker] = {}
        while True:
            while idle and len(done) < WAITING_MAX * len(self._workers):
                task = next(coming, None)
                if task is None:
                    break
                worker = idle.pop()
                worker.give(*task)
                busy[worker.pipe] = worker
            if not busy:
                return
            for pipe in wait(list(busy)):
                worker = busy.pop(pipe)
                done[worker.number] = worker.take()
                idle.append(worker)
            while following in done:
                yield done.pop(following)
                following += 1


class _Worker:
    """One process and its current task."""

    def __init__(self, context: Any, work: Callable[[Any], Any]) -> None:
        self.pipe, theirs = context.Pipe()
        self.number = -1
        self._task: Any = None
        self.process = context.Process(target=_serve, args=(work, theirs, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, number: int, task: Any) -> None:
        self.number, self._task = number, task
        with contextlib.suppress(OSError):  # it died: `take` reports it
            self.pipe.send(task)

    def take(self) -> Any:
        try:
            kind, value = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(EXIT_TIMEOUT_S)
            code = self.process.exitcode
            raise HarnessError(
                f"the process that ran {self._task} died (exit code {code})"
            ) from None
        if kind == "usage":
            raise UsageError(value)
        if kind == "error":
            failed = TaskFailedError(f"{self._task}: {value[0]}")
            failed.add_note(value[1])
            raise failed
        return value


def _serve(work: Callable[[Any], Any], pipe: Any, parent_pid: int) -> None:
    """Run tasks until the pipe ends."""
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                answer = ("result", work(task))
            except UsageError as error:
                answer = ("usage", str(error))
            except Exception as error:
                answer = ("error", (f"{type(error).__name__}: {error}", traceback.format_exc()))
            pipe.send(answer)
