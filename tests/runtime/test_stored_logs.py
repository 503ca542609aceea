"""What nodes have stored is counted in a process of its own: its answers, its errors, its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Address, NodeLayout
from shaketable.harness.runtime.stored_logs import Stored, StoredLogs

PATIENCE_S = 60
NOWHERE = Address("127.0.0.1", 1)


def layout(folder: Path, node: str) -> NodeLayout:
    return NodeLayout(node, folder, NOWHERE, NOWHERE, {}, {})


def reads(main_pid: int) -> Any:
    """A function that goes to the other process by value; a node's name says what its log is."""

    def read_log(directory: Path, node: str) -> Iterator[pa.RecordBatch]:
        assert os.getpid() != main_pid
        if node == "damaged":
            raise ValueError("no log at all")
        if node == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        for key in ("a", None):
            yield pa.record_batch({"key": pa.array([key] * 3, pa.string()), "size": [10] * 3})

    return read_log


def run(main: Callable[[StoredLogs, list[int]], Awaitable[None]]) -> None:
    async def bounded() -> None:
        started: list[int] = []
        logs = StoredLogs(reads(os.getpid()), lambda _name, pid: started.append(pid))
        with trio.fail_after(PATIENCE_S):
            try:
                await main(logs, started)
            finally:
                await logs.end()
        for pid in started:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    trio.run(bounded)


def test_it_counts_in_one_process_that_ends(tmp_path: Path) -> None:
    async def main(logs: StoredLogs, started: list[int]) -> None:
        for _ in range(2):
            assert await logs.count(layout(tmp_path, "n0")) == Stored(6, 3, 60)
        assert len(started) == 1

    run(main)


def test_what_cannot_be_read_is_told_and_the_next_is_read(tmp_path: Path) -> None:
    async def main(logs: StoredLogs, started: list[int]) -> None:
        with pytest.raises(HarnessError, match="log of damaged cannot be read: ValueError: no log"):
            await logs.count(layout(tmp_path, "damaged"))
        with pytest.raises(HarnessError, match="what reads the log of deadly ended"):
            await logs.count(layout(tmp_path, "deadly"))
        assert await logs.count(layout(tmp_path, "n0")) == Stored(6, 3, 60)
        assert len(started) == 2

    run(main)


def test_a_question_given_up_leaves_the_next_its_own_answer(tmp_path: Path) -> None:
    async def main(logs: StoredLogs, _: list[int]) -> None:
        with trio.move_on_after(0):
            await logs.count(layout(tmp_path, "damaged"))
        assert await logs.count(layout(tmp_path, "n0")) == Stored(6, 3, 60)

    run(main)


def test_warming_up_waits_for_logs_and_bears_what_is_wrong_with_them(tmp_path: Path) -> None:
    async def main(logs: StoredLogs, started: list[int]) -> None:
        asked: list[float] = []

        async def until_ready(timeout_s: float) -> bool:
            assert not started, "there is nothing to read before"
            asked.append(timeout_s)
            assert logs.is_warming_up, "no disk may be lost meanwhile"
            return True

        layouts = [layout(tmp_path, node) for node in ("n0", "damaged", "deadly")]
        await logs.warm_up(layouts, until_ready)
        assert len(asked) == 1
        assert len(started) == 1
        assert not logs.is_warming_up

    run(main)


def test_whoever_needs_logs_read_waits_for_the_compilation(tmp_path: Path) -> None:
    async def main(logs: StoredLogs, started: list[int]) -> None:
        assert not await logs.until_warm(0.01)

        async def until_ready(_timeout_s: float) -> bool:
            return True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(logs.warm_up, [layout(tmp_path, "damaged")], until_ready)
            assert await logs.until_warm(PATIENCE_S)
            assert len(started) == 1

    run(main)
