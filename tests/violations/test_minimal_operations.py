"""Of the many operations that a finding names, the page shows those that prove it."""

from __future__ import annotations

import pyarrow as pa

from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.run_page.violations import OperationLookup
from shaketable.reports.run_view import Violation
from shaketable.reports.violation_page.moments import OPERATIONS_MAX, minimal_operations

KEY = "kv/0"
MS = 1_000_000
COUNT = 100
ACCUSED, WRITTEN, OVER, OVER_SEEN = 99, 3, 7, 11


def lookup() -> OperationLookup:
    rows = [
        {"op": n, "process": n % 5, "f": "write", "key": KEY, "input": n, "call_ns": n * MS,
         "return_ns": n * MS + MS // 2, "outcome": "ok"}
        for n in range(COUNT)
    ]  # fmt: skip
    rows[ACCUSED] |= {"f": "read", "input": None, "output": WRITTEN}
    return OperationLookup(pa.Table.from_pylist(rows, OPERATIONS), ())


def violation(named: list[int], stale: object) -> Violation:
    details = {"accused": [ACCUSED], "stale": stale}
    finding = {"kind": "not-linearizable", "operations": named, "details": details}
    return Violation(
        "not-linearizable", "", KEY, None, None, None, None, None, (), (), finding=finding
    )


def test_the_writes_that_prove_a_read_stale_are_shown_however_early_they_were() -> None:
    stale = {"read": ACCUSED, "written": WRITTEN, "over": OVER, "written_seen": None,
             "over_seen": OVER_SEEN, "since_ns": 5}  # fmt: skip
    for named in ([ACCUSED, *range(COUNT - 1)], [ACCUSED, *range(50, 90)]):
        shown = [row.op for row in minimal_operations(violation(named, stale), lookup())]
        assert len(shown) == OPERATIONS_MAX
        assert {WRITTEN, OVER, OVER_SEEN, ACCUSED} <= set(shown)
        assert shown == sorted(shown)


def test_without_such_a_proof_the_nearest_are_shown() -> None:
    for stale in (None, "no", {"written": "x", "over": None}):
        broken = violation([ACCUSED, *range(COUNT - 1)], stale)
        shown = [row.op for row in minimal_operations(broken, lookup())]
        assert shown == list(range(COUNT - OPERATIONS_MAX, COUNT))
