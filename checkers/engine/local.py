"""The engine without Spark: the same pure functions, one partition after the other.

For tests, quick checks (`check --engine local`) and machines without Java. Operations by key are
judged file by file, on all processors if there are many; for all else memory grows with the
history. The pipeline for real campaigns is checkers.spark.pipeline.

The processes that judge operations may die or hang. One gets one task at a time and sends back its
findings. One that dies takes only that task with it, which is judged again checker by checker, so
that only the checker at fault is UNKNOWN. A process that still runs GRACE_S after the deadline is
killed.
"""

from __future__ import annotations

import os
import resource
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.engine.compiling import compile_first
from shaketable.checkers.engine.judge import (
    BUCKET_ENTRIES,
    CRASHED,
    NOT_JUDGED,
    PARTITIONS,
    SCHEMAS,
    TAGGED,
    CheckJob,
    Progress,
    conclude,
    for_other_processes,
    judge_partition,
    judges_by_key,
    judges_partial_logs,
    needs,
    no_progress,
    unjudged,
    with_clock,
    without_unreadable,
)
from shaketable.checkers.engine.keys import Task, coded, judge_tables, plan, read_files, split_times
from shaketable.checkers.engine.log_evidence import with_log_evidence
from shaketable.harness.compiled import INTERPRETED_MAX
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import CheckContext, Checker
from shaketable.harness.contracts.verdict import Verdict
from shaketable.harness.history.schema import ENTRIES, OPERATIONS

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ROWS_FOR_PROCESSES = 2_000_000
"""Operations from which on judging in parallel processes pays off."""


def run_local(job: CheckJob, progress: Progress = no_progress) -> list[Verdict]:
    """Run every checker of `job`; return their verdicts in the order of `job.checkers`.

    The verdict of a checker that raises is UNKNOWN, with `Verdict.data["traceback"]`.

    Raises:
        HarnessError: the operations cannot be read.
    """
    job = with_log_evidence(with_clock(job), progress)
    by_key = [checker for checker in job.checkers if judges_by_key(checker)]
    others = [checker for checker in job.checkers if not judges_by_key(checker)]
    tables: dict[str, pa.Table] = {}
    unreadable: list[str] = []
    found = [TAGGED.empty_table()]
    if by_key:
        found += _judge_by_key(job, by_key, progress)
    if needs(others, "operations"):
        progress("reading the operations")
        tables["operations"] = _read_operations(job)
    if needs(others, "entries"):
        progress("reading the nodes' logs")
        tables["entries"], unreadable = _read_logs(job)
    if unreadable:
        job = without_unreadable(job, unreadable)
    runnable = [
        c
        for c in others
        if not (unreadable and "entries" in c.tables and not judges_partial_logs(c))
    ]
    for partition in PARTITIONS:
        checkers = [checker for checker in runnable if checker.partition == partition]
        if checkers:
            progress("judging " + ", ".join(checker.name for checker in checkers))
            parts = _partitions(checkers, tables, partition)
            found += [judge_partition(checkers, part, job.context) for part in parts]
    findings, _ = split_times(pa.concat_tables(found))
    return conclude(job.checkers, findings, job.context, unreadable)


def _judge_by_key(
    job: CheckJob, checkers: Sequence[Checker], progress: Progress
) -> Iterator[pa.Table]:
    """Judge operations key by key: file by file if they are sorted, in processes if many."""
    judging = "judging " + ", ".join(checker.name for checker in checkers)
    planned = plan(job.operations, workers=os.cpu_count() or 1)
    rows = sum(task.rows for task in planned.tasks)
    if rows > INTERPRETED_MAX:
        compile_first(progress)
    if rows >= ROWS_FOR_PROCESSES and len(planned.tasks) > 1 and (os.cpu_count() or 1) > 1:
        progress(judging)
        yield from judge_in_processes(planned.tasks, checkers, job.context)
        return
    progress(judging)
    for task in planned.tasks:
        tables = read_files(task.paths)
        yield from judge_tables(tables, checkers, job.context, time.perf_counter)
    if planned.unsorted:
        joined = pa.concat_tables(read_files([str(path) for path in planned.unsorted]))
        order = [(column, "ascending", "at_start") for column in ("key", "call_ns", "op")]
        ordered = joined.unify_dictionaries().take(pc.sort_indices(joined.cast(OPERATIONS), order))
        yield from judge_tables([coded(ordered)], checkers, job.context, time.perf_counter)


def _read_operations(job: CheckJob) -> pa.Table:
    tables = [table.cast(OPERATIONS) for table in read_files([str(p) for p in job.operations])]
    return pa.concat_tables([OPERATIONS.empty_table(), *tables])


def _read_logs(job: CheckJob) -> tuple[pa.Table, list[str]]:
    """Decode all nodes' logs; also return which ones cannot be read, and why."""
    batches, unreadable = [], []
    for node, directory in sorted(job.logs.items()):
        try:
            batches += list(job.read_log(directory, node))
        except Exception as error:
            last = traceback.format_exception_only(error)[-1].strip()
            unreadable.append(f"the log of {node}: {last}")
    return pa.Table.from_batches(batches, ENTRIES), unreadable


def _partitions(
    checkers: Sequence[Checker], tables: Mapping[str, pa.Table], partition: str
) -> Iterator[dict[str, pa.Table]]:
    """Split the tables that `checkers` read by key or bucket; yield each part once."""
    split: dict[str, dict[object, pa.Table]] = {}
    for name in [name for name in tables if needs(checkers, name)]:
        split[name] = _split(tables[name], partition)
    labels = {label for parts in split.values() for label in parts}
    for label in sorted(labels, key=lambda label: (label is not None, str(label))):
        yield {name: parts.get(label, SCHEMAS[name].empty_table()) for name, parts in split.items()}


def _split(table: pa.Table, partition: str) -> dict[object, pa.Table]:
    """Split one table by its key, or by the bucket of its index; a whole history is one part."""
    if partition == "history":
        return {None: table}
    labels = table["key"] if partition == "key" else pc.divide(table["index"], BUCKET_ENTRIES)
    codes = labels.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    names = codes.dictionary.to_pylist()
    numbers = codes.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(len(names) + 1))
    ordered = table.take(pa.array(order))
    return {
        name: ordered.slice(int(bounds[n]), int(bounds[n + 1] - bounds[n]))
        for n, name in enumerate(names)
    }


# Processes that judge operations, and may die or hang.

GRACE_S = 0.4
"""How long a process may run after the deadline: checkers stop by themselves."""


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
    from multiprocessing.connection import wait  # noqa: PLC0415 - only where there is much to judge

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
    import multiprocessing  # noqa: PLC0415 - as above

    spawned = multiprocessing.get_context("spawn")
    ours, theirs = spawned.Pipe()
    process = spawned.Process(
        target=_work, args=(theirs, for_other_processes(context)), daemon=True
    )
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
