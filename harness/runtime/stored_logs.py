"""Counts the entries of nodes' logs during a run, in a process of its own.

The links among the nodes run in the harness's process. Importing the log reader, compiling it, or
reading a large log there would hold the GIL for seconds, stall every link, and cost the group its
leader: a fault that no campaign asked for. Source: our own measurement.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import multiprocess
import trio

from shaketable.harness.contracts.abilities import ShowsLogs
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import NodeLayout, Target
from shaketable.harness.guard import die_with_parent
from shaketable.harness.runtime.clients.workers import bare_main

if TYPE_CHECKING:
    import pyarrow as pa

COUNT_TIMEOUT_S: Final = 120.0
"""A log of a gigabyte takes some seconds, and the first read on a machine compiles."""
WARM_UP_TIMEOUT_S: Final = 60.0
EXIT_TIMEOUT_S: Final = 3.0
POLL_S: Final = 0.02

ReadLog = Callable[[Path, str], Iterable["pa.RecordBatch"]]


@dataclass(frozen=True, slots=True)
class Stored:
    """The contents of a log: all `entries`, the `messages` of users among them, and its size."""

    entries: int
    messages: int
    bytes_: int


class CountsLogs(Protocol):
    """Counts what nodes have stored."""

    async def count(self, layout: NodeLayout) -> Stored:
        """Count the entries of a node's log; HarnessError if it cannot be read."""
        ...


class StoredLogs:
    """Counts the entries of nodes' logs in a process that the first request starts.

    Args:
        read_log: reads a node's log there, as `Target.read_log`; it must be picklable, which a
            target with open connections is not.
        on_start: called with the process: its name, its pid.
    """

    def __init__(
        self, read_log: ReadLog, on_start: Callable[[str, int], None] = lambda _name, _pid: None
    ) -> None:
        self._read_log = read_log
        self._on_start = on_start
        self._process: Any = None
        self._pipe: Any = None
        self._asked = 0
        self.is_warming_up = False
        """Whether the reader is being compiled: a count has to wait for that."""
        self._warmed_up = trio.Event()
        self._turn = trio.Lock()

    async def count(self, layout: NodeLayout) -> Stored:
        """Count the entries of a node's log; damaged ones count too.

        Raises:
            HarnessError: it cannot be read, or not in time.
        """
        async with self._turn:
            self._start()
            self._asked += 1
            with suppress(OSError):  # it has just ended: there will be no answer
                self._pipe.send((self._asked, layout.directory, layout.node))
            with trio.move_on_after(COUNT_TIMEOUT_S):
                return await self._answer(layout.node)
            await self._end()
            raise HarnessError(f"the log of {layout.node} was not read in {COUNT_TIMEOUT_S:g} s")

    async def warm_up(
        self,
        layouts: Sequence[NodeLayout],
        until_ready: Callable[[float], Awaitable[bool]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Read logs and discard the result as soon as there are any, to compile the reader early.

        Source: numba, which compiles at the first call if its cache is cold.
        """
        self.is_warming_up = True
        task_status.started()
        try:
            await until_ready(WARM_UP_TIMEOUT_S)
            for layout in layouts:
                with suppress(HarnessError):  # of a running node: the next read may succeed
                    await self.count(layout)
        finally:
            self.is_warming_up = False
            self._warmed_up.set()

    async def until_warm(self, timeout_s: float) -> bool:
        """Wait for the end of `warm_up`, which must be called; False if it is not in time."""
        with trio.move_on_after(timeout_s):
            await self._warmed_up.wait()
            return True
        return False

    async def end(self) -> None:
        """End the process (idempotent)."""
        async with self._turn:
            await self._end()

    def _start(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        assert threading.current_thread() is threading.main_thread(), "it dies with its thread"
        context = multiprocess.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(
            target=_serve,
            args=(self._read_log, theirs, os.getpid()),
            name="stored-logs",
            daemon=True,
        )
        with bare_main():
            process.start()
        theirs.close()
        self._process = process
        self._on_start("stored-logs", self._process.pid)

    async def _answer(self, node: str) -> Stored:
        while True:
            try:
                while self._pipe.poll():
                    number, stored, problem = self._pipe.recv()
                    if number != self._asked:  # of a request that was given up
                        continue
                    if problem is not None:
                        raise HarnessError(f"the log of {node} cannot be read: {problem}")
                    return Stored(*stored)
            except (EOFError, OSError) as error:
                await self._end()
                raise HarnessError(f"what reads the log of {node} ended: {error!r}") from error
            await trio.sleep(POLL_S)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with trio.CancelScope(shield=True), trio.move_on_after(EXIT_TIMEOUT_S):
            while process.is_alive():  # noqa: ASYNC110 - another process sets no Event of ours
                await trio.sleep(POLL_S)
        self._pipe.close()


def reads_logs(target: Target) -> bool:
    """True unless a target declares that the logs of its nodes cannot be read."""
    return not isinstance(target, ShowsLogs) or target.logs_readable


def _serve(read_log: ReadLog, pipe: Connection, parent_pid: int) -> None:
    """Answer (number, directory, node) by (number, (entries, messages, bytes), problem)."""
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness handles Ctrl-C
    while True:
        try:
            number, directory, node = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((number, count_log(read_log, directory, node), None))
        except Exception as error:
            pipe.send((number, None, f"{type(error).__name__}: {error}"))


def count_log(read_log: ReadLog, directory: Path, node: str) -> tuple[int, int, int]:
    """Read a node's log in this process; return the fields of `Stored`."""
    import pyarrow.compute as pc  # noqa: PLC0415 - here alone, for this process is for it

    entries = messages = size = 0
    for batch in read_log(directory, node):
        entries += batch.num_rows
        messages += batch.num_rows - batch["key"].null_count
        size += pc.sum(batch["size"]).as_py() or 0
    return entries, messages, size
