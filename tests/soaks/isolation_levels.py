"""Compares the isolation checker with exhaustive search on small random histories.

python -m tests.soaks.isolation_levels --count 20000
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from shaketable.checkers.transactions.isolation import PLUGIN
from shaketable.harness.contracts.plugins import CheckContext, Promises
from shaketable.harness.contracts.verdict import Verdict
from shaketable.harness.history.schema import OPERATIONS
from tests.support.isolation_brute_force import LEVELS, STRONG, Exhaustive, Txn, draw

CONTEXT = CheckContext((), {}, Promises(), initial="{}")


def table(txns: Sequence[Txn]) -> pa.Table:
    """Return transactions as rows of OPERATIONS."""
    rows: list[dict[str, Any]] = []
    for number, txn in enumerate(txns):
        asked = [[f, key, None if f == "r" else given] for f, key, given in txn.steps]
        extra: dict[str, Any] = {"input": asked}
        if txn.outcome == "ok":
            extra["output"] = txn.steps
        rows.append(
            {"op": number, "process": txn.process, "f": "txn", "call_ns": txn.call,
             "return_ns": txn.end, "outcome": txn.outcome, "extra": json.dumps(extra)}
        )  # fmt: skip
    return pa.Table.from_pylist(rows, OPERATIONS)


def judge(txns: Sequence[Txn]) -> Verdict:
    """Return the checker's verdict."""
    return PLUGIN.conclude(PLUGIN.check({"operations": table(txns)}, CONTEXT), CONTEXT)


def compare(seed: int, *, lists: bool) -> Counter[str]:
    """Compare all levels of one history; raise AssertionError where they differ."""
    txns = draw(seed, lists=lists)
    exhaustive = Exhaustive(txns, lists=lists)
    verdict = judge(txns)
    broken, holds = set(verdict.data["broken"]), set(verdict.data["holds"])
    assert not broken & holds, (seed, broken & holds)
    seen = Counter(histories=1)
    if not exhaustive.is_plain():
        assert "read-atomic" in broken, (seed, txns, verdict.summary)
        seen["not plain"] += 1
        return seen
    for level, decide in (LEVELS | STRONG).items():
        is_true = decide(exhaustive)
        if level in holds or level in broken:
            assert (level in holds) == is_true, (seed, level, is_true, txns, verdict.summary)
            seen[f"{level} {'holds' if is_true else 'broken'}"] += 1
        else:
            seen[f"{level} not judged"] += 1
    return seen


def main() -> None:
    """Compare as many histories as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    for lists in (False, True):
        seen: Counter[str] = Counter()
        for seed in range(given.first, given.first + given.count):
            seen.update(compare(seed, lists=lists))
        print("lists" if lists else "registers", dict(sorted(seen.items())))  # noqa: T201


if __name__ == "__main__":
    main()
