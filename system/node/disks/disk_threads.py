"""Disk work of a process: in threads, so that a slow fsync stops no heartbeat.

`trio.to_thread` does this too, for all that a program may want of threads: it copies contexts,
names each thread for each job, counts jobs. With a flush a millisecond that was a tenth of a
node's time (docs/throughput.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import outcome
import trio

IDLE_S = 10.0
"""A thread that has had nothing to do for so long ends."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Job:
    """Work, and the task that waits for it in a run of trio."""

    work: Callable[[], Any]
    task: trio.lowlevel.Task
    token: trio.lowlevel.TrioToken


class DiskThreads:
    """Runs functions in threads of its own, as many as are waited for at once: a `DiskWork`.

    A cancelled task waits for its work under way: nobody else may touch the files meanwhile.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Job]] = []

    @trio.lowlevel.enable_ki_protection  # whoever gave work away waits for it
    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Run `work` and return what it returns, or raise what it raises."""
        await trio.lowlevel.checkpoint_if_cancelled()
        job = _Job(work, trio.lowlevel.current_task(), trio.lowlevel.current_trio_token())
        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = SimpleQueue()
            threading.Thread(target=self._serve, args=(jobs,), name="disk", daemon=True).start()
        jobs.put(job)
        done: Result = await trio.lowlevel.wait_task_rescheduled(_wait_for_it)
        return done

    def _serve(self, jobs: SimpleQueue[_Job]) -> None:
        """Do what comes, in a thread."""
        while True:
            try:
                job = jobs.get(timeout=IDLE_S)
            except Empty:
                try:
                    self._idle.remove(jobs)
                except ValueError:  # taken just now: a job comes
                    continue
                return
            result = outcome.capture(job.work)
            self._idle.append(jobs)
            with suppress(trio.RunFinishedError):  # ended by a failure of trio's own
                job.token.run_sync_soon(trio.lowlevel.reschedule, job.task, result)
            del job, result  # nothing of it is kept while there is nothing to do


def _wait_for_it(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
