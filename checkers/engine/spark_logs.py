"""The nodes' logs in Spark: decoded on the executors into rows of ENTRIES."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from shaketable.checkers.engine.job import CheckJob, ReadLog
from shaketable.checkers.engine.judge import UNREADABLE
from shaketable.checkers.engine.spark_frames import ddl
from shaketable.harness.history.schema import ENTRIES


def decode_logs(session: Any, job: CheckJob) -> Any:
    """Return a data frame of all nodes' entries, decoded on the executors, a node a task."""
    schema = ddl(ENTRIES)
    logs = [(node, str(path)) for node, path in sorted(job.logs.items())]
    if not logs:
        return session.createDataFrame([], schema)
    nodes = session.createDataFrame(logs, "node string, path string")
    spread = nodes.repartitionByRange(len(logs), "node")
    return spread.mapInArrow(_decoder(job.read_log), schema)


def _decoder(read_log: ReadLog) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that turns rows of (node, path) into entries, on an executor."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                try:
                    yield from read_log(Path(row["path"]), row["node"])
                except Exception as error:  # a plug-in's reader: its failure is data
                    last = traceback.format_exception_only(error)[-1].strip()
                    lost = {"node": row["node"], "problem": f"{UNREADABLE}{last}"}
                    yield pa.RecordBatch.from_pylist([lost], ENTRIES)

    return decode


def unreadable_logs(entries: Any) -> list[str]:
    """Say which logs could not be read; this runs the decoding."""
    rows = entries.where(f"`index` is null and startswith(problem, '{UNREADABLE}')").collect()
    said = sorted((row["node"], row["problem"].removeprefix(UNREADABLE)) for row in rows)
    return [f"the log of {node}: {problem}" for node, problem in said]
