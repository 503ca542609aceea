"""Operations are counted by function and outcome."""

from __future__ import annotations

import pyarrow as pa

from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.run_page.view import stats_rows


def test_operations_are_counted_by_function_and_outcome() -> None:
    rows = [
        {"f": "append", "outcome": "ok", "call_ns": 10, "return_ns": 15},
        {"f": "append", "outcome": "fail", "call_ns": 30, "return_ns": 90},
        {"f": "append", "outcome": "ok", "call_ns": 20, "return_ns": 29},
        {"f": "read", "outcome": "info", "call_ns": 40, "return_ns": None},
    ]
    table = pa.Table.from_pylist(rows, schema=pa.schema([OPERATIONS.field(n) for n in rows[0]]))
    append, read = stats_rows(table, ())
    assert (append.ok, append.fail, append.info) == (2, 1, 0)
    assert (read.ok, read.fail, read.info) == (0, 0, 1)
