"""Errors by kind over time: what differs in numbers and nodes alone is one kind."""

from __future__ import annotations

import pyarrow as pa

from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.plotting import client_plots as kinds
from shaketable.reports.plotting.client_plots import error_kinds, kind_of

S = 1_000_000_000


def table(*rows: tuple[float, str | None, str | None]) -> pa.Table:
    """Return operations (called at, returned a second later if "fail", outcome, error)."""
    whole = []
    for op, (call_s, outcome, error) in enumerate(rows):
        row = dict.fromkeys(OPERATIONS.names)
        row.update(op=op, process=0, f="append", key="q", call_ns=round(call_s * S))
        row.update(outcome=outcome, error=error)
        row["return_ns"] = None if outcome == "info" else round((call_s + 1) * S)
        whole.append(row)
    return pa.Table.from_pylist(whole, schema=OPERATIONS)


def test_texts_that_differ_in_nodes_and_numbers_are_one_kind() -> None:
    assert kind_of("timed out after 1.0 s: no answer from n0") == kind_of(
        "timed out after 2.5 s: no answer from n11"
    )
    assert kind_of("refused") != kind_of("reset")
    assert kind_of("") == kinds.OTHERS
    assert len(kind_of("x" * 9_999)) == kinds.KIND_CHARACTERS_MAX


def test_each_counts_when_it_was_known() -> None:
    rows = [(1.0, "fail", "no leader"), (1.2, "info", "no answer from n0"), (3, "ok", None)]
    found = error_kinds(table(*rows), 10 * S)
    assert found is not None
    rates = {name: (total, rate) for name, total, rate in found.kinds}
    assert {name: total for name, (total, _) in rates.items()} == {
        "no leader": 1, "no answer from a node": 1,
    }  # fmt: skip
    per_slice = round(1 / found.width_s)
    assert rates["no leader"][1][2 * per_slice] * found.width_s == 1
    place = round(1.2 * per_slice)
    assert rates["no answer from a node"][1][place - 1 : place + 1].sum() * found.width_s == 1


def test_rare_kinds_are_added_up_and_nothing_is_lost() -> None:
    words = [chr(97 + n) * 4 for n in range(20)]
    rows = [(n / 10, "fail", word) for n, word in enumerate(words) for _ in range(20 - n)]
    found = error_kinds(table(*rows), 10 * S)
    assert found is not None
    assert len(found.kinds) == kinds.KINDS_MAX + 1
    assert found.kinds[-1][0] == kinds.OTHERS
    assert sum(total for _, total, _ in found.kinds) == len(rows)


def test_a_run_without_errors_has_none() -> None:
    assert error_kinds(table((1, "ok", None)), S) is None
