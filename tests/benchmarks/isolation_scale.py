"""Times the isolation checker on large histories of transactions, one thread.

Run: python tests/benchmarks/isolation_scale.py [--count 1000000] [--clients 20]

Histories are made by a serial execution (tests/support/synthetic_transactions.py). Seconds are
processor time, after a small history has loaded the kernels: of reading the transactions (the JSON
of OPERATIONS), of tracing reads, of the dependencies up to strict serializability, and of the weak
levels up to causal. Memory is the peak of the whole process, and what it had with the history's
table read.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import synthetic_transactions as made  # noqa: E402

from shaketable.checkers.transactions.forbidden_cycles import (  # noqa: E402
    Dependencies,
    WeakLevels,
)
from shaketable.checkers.transactions.history import load_transactions  # noqa: E402
from shaketable.checkers.transactions.observed import observe  # noqa: E402

KINDS = {"list-append": made.list_append, "blind writes": made.blind_writes}
WARM = 2_000


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start_s = time.process_time()
    yield
    seconds[name] = time.process_time() - start_s


def judge(table: pa.Table) -> tuple[dict[str, float], int]:
    """Judge a history; return the seconds of each part, and how many cycles were found."""
    seconds: dict[str, float] = {}
    with _timed(seconds, "read"):
        txns = load_transactions(table)
    with _timed(seconds, "trace"):
        observed = observe(txns, {})
    with _timed(seconds, "strong"):
        weak = WeakLevels(observed)
        strong = Dependencies(observed, weak)
        found = strong.search()
    with _timed(seconds, "weak"):
        found += weak.search(is_acyclic=strong.is_acyclic)
    return seconds, len(found)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    """Print a line for each kind of history."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    given = parser.parse_args()
    names = ("read", "trace", "strong", "weak")
    print(f"{'history':14s}" + "".join(f"{each:>8s}" for each in (*names, "all", "MB", "table")))  # noqa: T201
    for kind in given.kinds:
        judge(KINDS[kind](1, WARM, given.clients))
        table = KINDS[kind](2, given.count, given.clients)
        idle = _peak_mb()
        seconds, found = judge(table)
        assert not found, "a serial execution has no cycle"
        figures = [*(seconds[each] for each in names), sum(seconds.values())]
        shown = "".join(f"{each:8.2f}" for each in figures)
        print(f"{kind:14s}{shown}{_peak_mb():8.0f}{idle:8.0f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
