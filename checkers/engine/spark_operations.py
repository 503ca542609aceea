"""Operations judged by key in Spark: files as they were written, or sorted first.

A row of the first data frame is a task: its files are read by pyarrow on the executor and judged
key after key, so nothing is shuffled and the JVM sees findings alone. Executors must reach
the files under the paths that the driver uses (a shared folder, on a cluster).

Files of other origin, which are not sorted by key, are: Spark deals their rows out by key
and sorts each part, and the same code judges what comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from shaketable.checkers.engine.job import CheckJob
from shaketable.checkers.engine.judge import TAGGED
from shaketable.checkers.engine.key_files import Task, coded, plan, read_files
from shaketable.checkers.engine.key_judge import Spent, judge_tables, split_times
from shaketable.checkers.engine.memory_limit import limited_memory
from shaketable.checkers.engine.spark_frames import ddl, read_operations
from shaketable.harness.plugins import CheckContext, Checker

WORKERS_UNKNOWN = 16
"""What is taken for the workers behind a Spark Connect server."""

Judge = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def judge_by_key(
    session: Any, job: CheckJob, checkers: Sequence[Checker]
) -> tuple[pa.Table, Spent]:
    """Run checkers of operations by key; return rows of TAGGED, and what it took.

    Raises:
        HarnessError: a file cannot be read.
    """
    planned = plan(job.operations, workers=_workers(session))
    found = [TAGGED.empty_table()]
    if planned.tasks:
        count = len(planned.tasks)
        tasks = session.range(0, count, 1, count)
        judge = _judge_tasks(planned.tasks, tuple(checkers), job.context)
        found.append(tasks.mapInArrow(judge, ddl(TAGGED)).toArrow().cast(TAGGED))
    if planned.unsorted:
        found.append(_judge_unsorted(session, planned.unsorted, checkers, job.context))
    return split_times(pa.concat_tables(found))


def _workers(session: Any) -> int:
    """Return how many tasks Spark runs at a time; a Spark Connect server does not tell."""
    if not hasattr(session, "_jsparkSession"):
        return WORKERS_UNKNOWN
    return max(1, int(session.sparkContext.defaultParallelism))


def _judge_tasks(
    tasks: tuple[Task, ...], checkers: tuple[Checker, ...], context: CheckContext
) -> Judge:
    """Return the function that judges the tasks whose numbers it gets, on an executor."""

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with limited_memory(context.search.memory_bytes):
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    tables = read_files(tasks[number].paths)
                    for found in judge_tables(tables, checkers, context, time.perf_counter):
                        yield from found.to_batches()

    return judge


def _judge_unsorted(
    session: Any, paths: Sequence[Path], checkers: Sequence[Checker], context: CheckContext
) -> pa.Table:
    """Deal the rows of files out by key and sort them, then judge."""
    frame = read_operations(session, paths)
    dealt = frame.repartition("key").sortWithinPartitions("key", "call_ns", "op")
    judge = _judge_rows(tuple(checkers), context)
    return dealt.mapInArrow(judge, ddl(TAGGED)).toArrow().cast(TAGGED)


def _judge_rows(checkers: tuple[Checker, ...], context: CheckContext) -> Judge:
    """Return the function that judges sorted rows of OPERATIONS, on an executor."""

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with limited_memory(context.search.memory_bytes):
            tables = (coded(pa.Table.from_batches([batch])) for batch in batches)
            for found in judge_tables(tables, checkers, context, time.perf_counter):
                yield from found.to_batches()

    return judge
