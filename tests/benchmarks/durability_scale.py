"""Durability at scale: three nodes' logs against as many acknowledgements, through Spark.

Writes the logs in DLedger's layout and the acknowledgements as Parquet into a temporary
folder, plants three losses (two on every node, one on two nodes) and one altered entry,
reads the logs alone for their speed, judges through Spark, and says what was named.

    python tests/benchmarks/durability_scale.py --entries 10000000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[2]))

from shaketable.checkers.engine.judge import CheckJob, SegmentedReader
from shaketable.checkers.logs.committed_prefix import CommittedPrefix
from shaketable.checkers.logs.durability import Durability
from shaketable.checkers.spark.pipeline import SparkEngine
from shaketable.harness.contracts.plugins import CheckContext, Promises
from shaketable.harness.history.schema import OPERATIONS
from shaketable.harness.targets.logs.dledger_files import log_segments, read_entries, read_segment
from tests.support.dledger_bulk import Bulk
from tests.support.process_memory import Usage

NODES = ("n0", "n1", "n2")
ROW_GROUP = 1_000_000


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def timed(what: str):
    start = time.monotonic()
    yield
    say(f"{what:<42}{time.monotonic() - start:8.1f} s")


def planted(bulk: Bulk) -> tuple[dict[str, dict[int, int]], list[int], int]:
    """Return what each node holds instead, the lost entries, and the altered one.

    What stands instead of a loss was appended with unknown outcome; the value of the
    altered entry was never appended.
    """
    lost = [bulk.entries // 7, bulk.entries // 2, bulk.entries - 2]
    altered = bulk.entries // 3
    everywhere = {lost[0]: bulk.entries, lost[1]: bulk.entries + 1, altered: 2 * bulk.entries}
    instead = {node: dict(everywhere) for node in NODES}
    for node in NODES[1:]:
        instead[node][lost[2]] = bulk.entries + 2
    return instead, lost, altered


def write_operations(path: Path, bulk: Bulk, lost: list[int]) -> None:
    """Write an acknowledged append for each entry, and what took the place of the lost ones."""
    with pq.ParquetWriter(path, OPERATIONS) as writer:
        for low in range(0, bulk.entries, ROW_GROUP):
            writer.write_table(appends(np.arange(low, min(low + ROW_GROUP, bulk.entries)), bulk))
        unknown = appends(np.arange(bulk.entries, bulk.entries + 3), bulk).to_pylist()
        lacks = {"outcome": "info", "offset": None, "return_ns": None}
        keys = [f"bench/{index % bulk.queues}" for index in lost]
        rows = [{**row, **lacks, "key": key} for row, key in zip(unknown, keys, strict=True)]
        writer.write_table(pa.Table.from_pylist(rows, OPERATIONS))


def appends(index: np.ndarray, bulk: Bulk) -> pa.Table:
    n = len(index)
    keys = pa.array([f"bench/{queue}" for queue in range(bulk.queues)])
    columns = {
        "op": 2 * index,
        "process": index % 10,
        "f": pa.repeat(pa.scalar("append"), n),
        "key": keys.take(pa.array(index % bulk.queues)),
        "input": index,
        "offset": index // bulk.queues,
        "call_ns": 1000 * index,
        "return_ns": 1000 * index + 5000,
        "outcome": pa.repeat(pa.scalar("ok"), n),
        "node": pa.repeat(pa.scalar("n0"), n),
    }
    return pa.table(
        [
            pa.array(columns[f.name]) if f.name in columns else pa.nulls(n, f.type)
            for f in OPERATIONS
        ],
        schema=OPERATIONS,
    )


def read_alone(folder: Path, bulk: Bulk) -> None:
    next(read_entries(folder / "n0", "n0"))  # compile, or load what was compiled
    start, start_cpu, rows = time.monotonic(), time.process_time(), 0
    for batch in read_entries(folder / "n0", "n0"):
        assert batch["problem"].null_count == batch.num_rows
        rows += batch.num_rows
    took, took_cpu = time.monotonic() - start, time.process_time() - start_cpu
    assert rows == bulk.entries
    wall, cpu = bulk.log_bytes / 1e6 / took, bulk.log_bytes / 1e6 / took_cpu
    say(f"one core reads a log at {wall:,.0f} MB/s, {cpu:,.0f} MB for each second of CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--body-bytes", type=int, default=200)
    parser.add_argument("--file-bytes", type=int, default=1 << 30)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--folder", default=None, help="where to make the temporary folder")
    parser.add_argument("--turns", type=int, default=1, help="how often to judge")
    parser.add_argument("--clean", action="store_true", help="plant nothing")
    options = parser.parse_args()
    bulk = Bulk(options.entries, options.queues, options.body_bytes, options.file_bytes)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        run(Path(name), bulk, options)


def run(folder: Path, bulk: Bulk, options: argparse.Namespace) -> None:
    instead, lost, altered = planted(bulk)
    with timed(f"writing {3 * bulk.log_bytes / 1e9:.1f} GB of logs"):
        for node in NODES:
            bulk.write(folder / node, node, {} if options.clean else instead[node])
    with timed("writing the operations"):
        write_operations(folder / "operations.parquet", bulk, lost)
    read_alone(folder, bulk)
    promises = Promises(frozenset(), frozenset(("append", "read", "end")), True)
    committed = dict.fromkeys(NODES, bulk.entries - 1)
    job = CheckJob(
        operations=(folder / "operations.parquet",),
        logs={node: folder / node for node in NODES},
        read_log=read_entries,
        context=CheckContext(NODES, committed, promises),
        checkers=(Durability(), CommittedPrefix()),
        segments=SegmentedReader(log_segments, read_segment),
    )
    engine = SparkEngine(options.master)
    with timed("starting Spark"):
        engine.start()
    try:
        for turn in range(options.turns):
            with Usage() as usage, timed(f"from the logs to the verdicts, {turn + 1}"):
                verdicts = engine.run(job)
            spent = {kind: f"{cpu_s:.1f}" for kind, cpu_s in usage.cpu_s.items() if cpu_s > 0}
            say(f"seconds of CPU: {sum(usage.cpu_s.values()):.1f}, {spent}")
    finally:
        engine.stop()
    kinds = {kind: f"{size / 1e9:.2f}" for kind, size in sorted(usage.peak_of.items())}
    say(f"peak of all processes {usage.peak_bytes / 1e9:.2f} GB; each kind's own peak: {kinds}")
    for verdict in verdicts:
        say(f"{verdict.checker}: {verdict.outcome.name}: {verdict.summary}")
        for finding in verdict.findings:
            say(f"  {finding.kind}: {finding.message}")
    named = {(f.kind, f.operations[0] // 2) for f in verdicts[0].findings}
    expected = {("lost-append", index) for index in lost} | {("altered", altered)}
    expected = set() if options.clean else expected
    say("exactly what was planted is named" if named == expected else "WRONG FINDINGS")
    sys.exit(named != expected)


if __name__ == "__main__":
    main()
