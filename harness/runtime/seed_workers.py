"""Runs pure tasks of a simulator in several processes, and gives their results in order.

Processes are started by spawn, die with this one, and leave Ctrl-C to it. One that dies in
the middle of a task ends the whole with an error that names the task: it might be the very
seed that matters.
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
"""Results for each process that may wait for the one of a task before theirs."""
EXIT_TIMEOUT_S: Final = 3.0

Task = TypeVar("Task")
Result = TypeVar("Result")


class TaskFailedError(Exception):
    """A task raised what it should not; its traceback is a note of this."""


class SeedWorkers(Generic[Task, Result]):
    """Processes that run `work(task)` for tasks; both must be importable and picklable.

    Use as a context manager: on every way out no process is left. With one job the work is
    done in a process, too: what it does to module state is nobody's here.
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
        """Yield the results in the order of the tasks, each as soon as those before it are.

        Tasks are drawn one by one as processes get free; at most `jobs` are under way.

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
    """One process and the task that it does."""

    def __init__(self, context: Any, work: Callable[[Any], Any]) -> None:
        self.pipe, theirs = context.Pipe()
        self.number = -1
        self._task: Any = None
        self.process = context.Process(target=_serve, args=(work, theirs, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, number: int, task: Any) -> None:
        self.number, self._task = number, task
        with contextlib.suppress(OSError):  # it died: `take` tells
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
    """Do tasks until the pipe ends."""
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
