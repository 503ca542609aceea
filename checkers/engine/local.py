"""The engine without Spark: the same pure functions, one partition after the other.

For tests, quick checks (`check --engine local`) and machines without Java. Operations by key are
judged file by file, on all processors if there are many; for all else memory grows with the
history. The pipeline for real campaigns is checkers.spark.pipeline.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.engine.judge import (
    BUCKET_ENTRIES,
    PARTITIONS,
    SCHEMAS,
    TAGGED,
    CheckJob,
    Progress,
    conclude,
    judge_partition,
    judges_by_key,
    judges_partial_logs,
    needs,
    no_progress,
    with_clock,
    without_unreadable,
)
from shaketable.checkers.engine.key_files import coded, plan, read_files
from shaketable.checkers.engine.key_judge import judge_tables, split_times
from shaketable.checkers.engine.local_processes import judge_in_processes
from shaketable.checkers.engine.log_evidence import with_log_evidence
from shaketable.harness.contracts.plugins import Checker
from shaketable.harness.contracts.verdict import Verdict
from shaketable.harness.history.schema import ENTRIES, OPERATIONS

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
        progress("judging " + ", ".join(checker.name for checker in by_key))
        found += _judge_by_key(job, by_key)
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


def _judge_by_key(job: CheckJob, checkers: Sequence[Checker]) -> Iterator[pa.Table]:
    """Judge operations key by key: file by file if they are sorted, in processes if many."""
    planned = plan(job.operations, workers=os.cpu_count() or 1)
    rows = sum(task.rows for task in planned.tasks)
    if rows >= ROWS_FOR_PROCESSES and len(planned.tasks) > 1 and (os.cpu_count() or 1) > 1:
        yield from judge_in_processes(planned.tasks, checkers, job.context)
        return
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
