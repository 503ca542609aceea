"""One queue with millions of log operations, judged through Spark in one partition.

Writes the operations as an export does (files sorted by call, each saying in its footer that
the queue goes on in the next), plants a read that is stale and one of a wrong value,
checks `linearizable-log`, and says what was named.

    python -m tests.benchmarks.one_log_scale --operations 10000000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shaketable.checkers.engine.judge import CheckJob
from shaketable.checkers.engine.local import run_local
from shaketable.checkers.logs.linearizable_log import PLUGIN
from shaketable.checkers.spark.pipeline import SparkEngine
from shaketable.harness.contracts.plugins import CheckContext, Promises
from shaketable.harness.history.operation_files import (
    KEYS_IN_FOOTER,
    OPERATIONS_PER_FILE_MAX,
    FileKeys,
)
from shaketable.harness.history.schema import OPERATIONS
from tests.support.process_memory import Usage

KEY = "bench/0"
CLIENTS = 50
STEP_NS = 1000


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def history(low: int, high: int, rng: np.random.Generator, planted: tuple[int, int]) -> pa.Table:
    """Return operations `low` to `high`: of each five two appends, two reads and an end read.

    Append k takes effect at (k + 1) STEP_NS, inside its interval, as all others do; one in
    a hundred has no known outcome. `planted`: the turns of a read that finds nothing where
    something stands, and of one that finds the value before the one it asked for.
    """
    op = np.arange(low, high)
    turn, kind = op // 5, op % 5
    k = 2 * turn + (kind == 1)
    is_append, is_read = kind < 2, (kind == 2) | (kind == 3)
    moment = (k + 1) * STEP_NS
    call = moment - rng.integers(0, CLIENTS * STEP_NS, len(op))
    end = moment + rng.integers(0, CLIENTS * STEP_NS, len(op))
    offset = np.where(is_read, np.maximum(k - 10 * (kind - 2), 0), k)
    output = np.where(is_read, 3 * offset, k + 1)
    stale, wrong = planted
    is_stale, is_wrong = op == 5 * stale + 2, op == 5 * wrong + 3
    offset = np.where(is_stale, offset // 2, offset)
    output = np.where(is_wrong, 3 * (offset - 1), output)
    is_unknown = is_append & (rng.random(len(op)) < 0.01)
    columns = {
        "op": op,
        "process": op % CLIENTS,
        "f": pa.array(["append", "read", "end"]).take(
            pa.array(np.where(is_append, 0, 2 - is_read))
        ),
        "key": pa.repeat(pa.scalar(KEY), len(op)),
        "input": pa.array(3 * k, mask=~is_append),
        "output": pa.array(output, mask=is_append | is_stale),
        "offset": pa.array(offset, mask=(kind == 4) | is_unknown),
        "call_ns": call,
        "return_ns": pa.array(end, mask=is_unknown),
        "outcome": pa.array(["ok", "info"]).take(pa.array(is_unknown.astype(np.int64))),
    }
    arrays = [
        pa.array(columns[field.name]) if field.name in columns else pa.nulls(len(op), field.type)
        for field in OPERATIONS
    ]
    return pa.table(arrays, schema=OPERATIONS)


def write_files(
    folder: Path, operations: int, planted: tuple[int, int]
) -> tuple[list[Path], set[int]]:
    """Write the files; return them, and the ids of the operations that are wrong."""
    rng, paths, wrong = np.random.default_rng(1), [], set()
    for low in range(0, operations, OPERATIONS_PER_FILE_MAX):
        high = min(low + OPERATIONS_PER_FILE_MAX, operations)
        keys = FileKeys(first=KEY, last=KEY, keys=1, is_begun=low > 0, is_cut=high < operations)
        table = history(low, high, rng, planted).sort_by("call_ns")
        marks = np.isin(table["op"].to_numpy(), (5 * planted[0] + 2, 5 * planted[1] + 3))
        wrong |= {low + int(row) for row in np.flatnonzero(marks)}
        table = table.set_column(0, "op", pa.array(np.arange(low, high)))  # in order of calls
        paths.append(folder / f"operations-{low:012d}.parquet")
        about = {KEYS_IN_FOOTER: msgspec.json.encode(keys)}
        pq.write_table(table.replace_schema_metadata(about), paths[-1], compression="lz4")
    return paths, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--local", action="store_true", help="without Spark")
    options = parser.parse_args()
    turns = options.operations // 5
    planted = turns // 3, turns // 2
    with tempfile.TemporaryDirectory() as name:
        paths, expected = write_files(Path(name), options.operations, planted)
        promises = Promises(frozenset(), frozenset(("append", "read", "end")), True)
        context = CheckContext(("n0",), {}, promises)
        job = CheckJob(tuple(paths), {}, lambda *_: iter(()), context, (PLUGIN,))
        engine = SparkEngine(options.master)
        try:
            if not options.local:
                engine.start()
            start = time.monotonic()
            with Usage() as usage:
                (verdict,) = run_local(job) if options.local else engine.run(job)
            took = time.monotonic() - start
        finally:
            engine.stop()
    spent = {kind: round(cpu_s, 1) for kind, cpu_s in usage.cpu_s.items() if cpu_s > 0}
    say(f"{options.operations:,} operations of one queue: {took:.1f} s, CPU {spent}")
    peaks = {kind: round(size / 1e9, 2) for kind, size in usage.peak_of.items()}
    say(f"peak of all processes {usage.peak_bytes / 1e9:.2f} GB, {peaks}")
    say(f"{verdict.outcome.name}: {verdict.summary}")
    for finding in verdict.findings[:5]:
        say(f"  {finding.kind}: {finding.message}")
    named = {finding.operations[0] for finding in verdict.findings}
    say("exactly what was planted is named" if named == expected else f"WRONG: {sorted(named)}")
    sys.exit(named != expected)


if __name__ == "__main__":
    main()
