"""Threads for a process's disk work, so that a slow fsync does not delay heartbeats.

`trio.to_thread` does more per job: it copies contexts, names threads, and limits jobs. With one
flush per millisecond that took a tenth of a node's time (docs/throughput.md).
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
"""A thread ends after being idle for so long."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Job:
    """A function to run, and the trio task that waits for it."""

    work: Callable[[], Any]
    task: trio.lowlevel.Task
    token: trio.lowlevel.TrioToken


class DiskThreads:
    """Runs functions in its own threads, one per task that waits (implements `DiskWork`).

    A cancelled task still waits for its running work: no other task may use the files until then.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Job]] = []

    @trio.lowlevel.enable_ki_protection  # an interrupt must not abandon running work
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
        done: Result = await trio.lowlevel.wait_task_rescheduled(_refuse_abort)
        return done

    def _serve(self, jobs: SimpleQueue[_Job]) -> None:
        """Run jobs in this thread until it is idle for too long."""
        while True:
            try:
                job = jobs.get(timeout=IDLE_S)
            except Empty:
                try:
                    self._idle.remove(jobs)
                except ValueError:  # a caller has just taken this queue: a job will follow
                    continue
                return
            result = outcome.capture(job.work)
            self._idle.append(jobs)
            with suppress(trio.RunFinishedError):  # the trio run crashed meanwhile
                job.token.run_sync_soon(trio.lowlevel.reschedule, job.task, result)
            del job, result  # hold no references while idle


def _refuse_abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
