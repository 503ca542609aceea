"""Disk work in threads: results, errors, cancellation, as many threads as jobs at once."""

from __future__ import annotations

import threading
import time

import pytest
import trio

from shaketable.system.node.disks import real_disk
from shaketable.system.node.disks.real_disk import DiskThreads

END_TIMEOUT_S = 20.0


def disk_thread_count() -> int:
    return sum(thread.name == "disk" for thread in threading.enumerate())


def test_results_and_errors_come_back() -> None:
    async def main() -> None:
        run = DiskThreads()
        assert await run(lambda: 7) == 7
        with pytest.raises(OSError, match="no disk"):
            await run(_fail)
        assert await run(threading.get_ident) != threading.get_ident()

    trio.run(main)


def _fail() -> None:
    raise OSError("no disk")


def test_jobs_at_once_have_threads_of_their_own_and_others_share() -> None:
    async def main() -> set[int]:
        run = DiskThreads()
        both = threading.Barrier(2, timeout=END_TIMEOUT_S)
        seen: set[int] = set()

        async def job() -> None:
            await run(both.wait)
            seen.add(await run(threading.get_ident))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(job)
            nursery.start_soon(job)
        for _ in range(5):
            seen.add(await run(threading.get_ident))
        return seen

    assert len(trio.run(main)) <= 2


def test_a_cancelled_task_waits_for_its_work() -> None:
    async def main() -> None:
        run = DiskThreads()
        began, may_end = threading.Event(), threading.Event()
        ended: list[str] = []

        def work() -> None:
            began.set()
            may_end.wait(END_TIMEOUT_S)
            ended.append("work")

        async def job() -> None:
            await run(work)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(job)
            while not began.is_set():
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
            may_end.set()
        assert ended == ["work"]

    trio.run(main)


def test_nothing_is_begun_for_a_task_that_is_cancelled_already() -> None:
    async def main() -> list[int]:
        done: list[int] = []
        with trio.CancelScope() as scope:
            scope.cancel()
            await DiskThreads()(lambda: done.append(1))
        return done

    assert trio.run(main) == []


def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_disk, "IDLE_S", 0.01)
    before = disk_thread_count()

    async def main() -> None:
        run = DiskThreads()
        for _ in range(50):  # taken just as it would end, now and then
            await run(lambda: None)
            await trio.sleep(0.0099)

    trio.run(main)
    deadline = time.monotonic() + END_TIMEOUT_S
    while disk_thread_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
