"""Judges tasks of operations in processes of this machine, which may die or hang.

A process gets one task at a time and sends back its findings. One that dies takes only that task
with it, which is judged again checker by checker, so that only the checker at fault is UNKNOWN. A
process that still runs GRACE_S after the deadline is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pyarrow as pa

from shaketable.checkers.engine.judge import CRASHED, NOT_JUDGED, unjudged
from shaketable.checkers.engine.key_files import Task, read_files
from shaketable.checkers.engine.key_judge import judge_tables
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import CheckContext, Checker

GRACE_S = 0.4
"""How long a process may run after the deadline: checkers stop by themselves."""

_spawned = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class _Unit:
    """A task, and the checkers that judge it together."""

    task: Task
    checkers: tuple[Checker, ...]


@dataclass(slots=True)
class _Worker:
    """A process, our end of its pipe, and what it is doing."""

    process: Any
    pipe: Connection
    unit: _Unit | None = None


def judge_in_processes(
    tasks: Sequence[Task], checkers: Sequence[Checker], context: CheckContext
) -> Iterator[pa.Table]:
    """Judge all tasks; yield rows of TAGGED, in any order.

    Raises:
        HarnessError: a file cannot be read.
    """
    units = deque(_Unit(task, tuple(checkers)) for task in tasks)
    workers = [_start(context) for _ in range(min(os.cpu_count() or 1, len(tasks)))]
    try:
        while units or any(worker.unit for worker in workers):
            for worker in workers:
                if worker.unit is None and units:
                    worker.unit = units.popleft()
                    worker.pipe.send(worker.unit)
            left_s = _left_s(context)
            ready = wait([w.pipe for w in workers if w.unit], left_s)
            if not ready:
                undone = [*units, *(w.unit for w in workers if w.unit)]
                yield from _left_out(undone)
                return
            for place, worker in enumerate(workers):
                if worker.unit is not None and worker.pipe in ready:
                    unit, worker.unit = worker.unit, None
                    found = _receive(worker)
                    if found is None:
                        workers[place] = _start(context)
                        yield from _retried(unit, worker, units)
                    else:
                        yield found
    finally:
        for worker in workers:
            _end(worker)


def _retried(unit: _Unit, worker: _Worker, units: deque[_Unit]) -> Iterator[pa.Table]:
    """Retry the checkers of a unit whose process died one by one; a single one is at fault."""
    worker.process.join()
    code = worker.process.exitcode
    worker.process.close()
    if len(unit.checkers) > 1:
        units.extend(_Unit(unit.task, (checker,)) for checker in unit.checkers)
        return
    how = f"by signal {-code}" if code is not None and code < 0 else f"with {code}"
    message = f"ProcessError: the process that judged {unit.task.paths[0]} ended {how}"
    yield unjudged(unit.checkers[0].name, CRASHED, message)


def _left_out(units: Sequence[_Unit]) -> Iterator[pa.Table]:
    for unit in units:
        message = f"the deadline passed before {unit.task.paths[0]} was judged"
        for checker in unit.checkers:
            yield unjudged(checker.name, NOT_JUDGED, message)


def _left_s(context: CheckContext) -> float | None:
    """Return how long the processes may still run, None for no limit."""
    clock, deadline = context.clock_unix_s, context.search.deadline_unix_s
    if clock is None or deadline is None:
        return None
    return max(0.0, deadline - clock()) + GRACE_S


def _start(context: CheckContext) -> _Worker:
    ours, theirs = _spawned.Pipe()
    process = _spawned.Process(target=_work, args=(theirs, context), daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends when the process does
    return _Worker(process, ours)


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.join()
    worker.process.close()


def _receive(worker: _Worker) -> pa.Table | None:
    """Return what a process found; None if it died.

    Raises:
        HarnessError: it could not read a file.
    """
    try:
        answer = worker.pipe.recv()
    except (EOFError, OSError):
        worker.pipe.close()
        return None
    if isinstance(answer, HarnessError):
        raise answer
    with pa.ipc.open_stream(answer) as stream:
        return stream.read_all()


def _work(pipe: Connection, context: CheckContext) -> None:
    """Judge the units that come through the pipe, until it ends."""
    while True:
        try:
            unit: _Unit = pipe.recv()
        except EOFError:
            return
        try:
            with limited_memory(context.search.memory_bytes):
                tables = read_files(unit.task.paths)
                found = list(judge_tables(tables, unit.checkers, context, time.perf_counter))
        except HarnessError as error:
            pipe.send(error)
            continue
        joined = pa.concat_tables(found)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, joined.schema) as stream:
            stream.write_table(joined)
        pipe.send(sink.getvalue().to_pybytes())


# Limits the memory of a process while checkers run in it: one that takes too much gets MemoryError.
#
# Source: getrlimit(2), RLIMIT_AS.

CHECKER_BYTES_MIN = 2 << 30
"""What a checker may take besides its search's memory, on the smallest machine: with less, correct
checkers would fail."""


@contextmanager
def limited_memory(search_bytes: int) -> Iterator[None]:
    """Let this process take no more than a share of the machine's memory beyond what it has.

    The share is half of the memory divided by the processors, since so many judge in parallel; at
    least CHECKER_BYTES_MIN and what a search may hold. Does nothing if the kernel does not report
    how much the process has.
    """
    taken = _address_space_bytes()
    if taken is None:
        yield
        return
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    share = machine // 2 // (os.cpu_count() or 1)
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = taken + max(share, CHECKER_BYTES_MIN + search_bytes)
    if before != resource.RLIM_INFINITY:
        limit = min(limit, before)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def _address_space_bytes() -> int | None:
    """Return the size of this process's address space."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return None
    return pages * resource.getpagesize()
