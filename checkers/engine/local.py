"""The engine without Spark: the same pure functions, one partition after the other.

For tests, quick looks (`check --engine local`) and machines without Java. Memory grows
with the history; the pipeline for real campaigns is checkers.engine.spark.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.engine.job import CheckJob, Progress, no_progress
from checkers.engine.judge import (
    BUCKET_ENTRIES,
    PARTITIONS,
    SCHEMAS,
    conclude,
    judge_partition,
    needs,
)
from harness.errors import HarnessError
from harness.history.schema import ENTRIES, OPERATIONS
from harness.plugins import Checker
from harness.verdict import Verdict


def run_local(job: CheckJob, progress: Progress = no_progress) -> list[Verdict]:
    """Run every checker of `job`; return their verdicts in the order of `job.checkers`.

    A checker that raises gives UNKNOWN with its traceback in `Verdict.data["traceback"]`.

    Raises:
        HarnessError: the operations cannot be read.
    """
    tables: dict[str, pa.Table] = {}
    unreadable: list[str] = []
    if needs(job.checkers, "operations"):
        progress("reading the operations")
        tables["operations"] = _read_operations(job)
    if needs(job.checkers, "entries"):
        progress("reading the nodes' logs")
        tables["entries"], unreadable = _read_logs(job)
    runnable = [c for c in job.checkers if not (unreadable and "entries" in c.tables)]
    found = []
    for partition in PARTITIONS:
        checkers = [checker for checker in runnable if checker.partition == partition]
        if checkers:
            progress("judging " + ", ".join(checker.name for checker in checkers))
            parts = _partitions(checkers, tables, partition)
            found += [judge_partition(checkers, part, job.context) for part in parts]
    findings = pa.concat_tables(found) if found else judge_partition((), {}, job.context)
    return conclude(job.checkers, findings, job.context, unreadable)


def _read_operations(job: CheckJob) -> pa.Table:
    parts = [OPERATIONS.empty_table()]
    for path in job.operations:
        try:
            parts.append(pq.ParquetFile(path).read().select(OPERATIONS.names).cast(OPERATIONS))
        except (OSError, pa.ArrowException, KeyError) as error:
            raise HarnessError(f"operations {path} cannot be read: {error}") from error
    return pa.concat_tables(parts)


def _read_logs(job: CheckJob) -> tuple[pa.Table, list[str]]:
    """Decode all nodes' logs; also say which ones cannot be read."""
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
