"""Transactions as columns: what a kernel scans is what the JSON library would have decoded."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shaketable.checkers.models.encoding import freeze
from shaketable.checkers.transactions import history
from shaketable.checkers.transactions.history import (
    NotTransactionsError,
    Transactions,
    load_transactions,
)
from shaketable.harness.history.schema import OPERATIONS
from tests.support.synthetic_transactions import blind_writes, list_append


def steps_of(txns: Transactions) -> list[list[tuple[Any, ...]]]:
    return [[tuple(txns.step(place)) for place in txns.places(n)] for n in range(len(txns))]


def table(*extras: str | None, outcome: str = "ok") -> pa.Table:
    rows = [
        {"op": n, "process": n, "f": "txn", "call_ns": n, "return_ns": n + 5, "outcome": outcome,
         "extra": extra}
        for n, extra in enumerate(extras)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, OPERATIONS)


@pytest.mark.parametrize("make", [list_append, blind_writes])
def test_generated_transactions_are_scanned(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make(7, 300, 5)
    monkeypatch.setattr(history, "SCANNED_ROWS", 70)
    scanned = load_transactions(rows)
    assert scanned.names.values is None, "decoded, not scanned"
    monkeypatch.setattr(history, "_scanned", lambda *_: None)
    decoded = load_transactions(rows)
    assert decoded.names.values is not None
    assert steps_of(scanned) == steps_of(decoded)
    for name in ("op", "process", "call_ns", "end_ns", "outcome", "starts", "kind"):
        assert np.array_equal(getattr(scanned, name), getattr(decoded, name)), name


SPACED = '{ "output" : [ [ "append" , "x" , 1 ] ,[ "r", 3 ,[ 1 , -2 ] ],["r","x",null], ["r",3] ] }'


def test_spaces_and_order_of_members_do_not_matter() -> None:
    answered = SPACED[:-1] + ', "input": [["append", "x", 1], ["r", 3, null]]}'
    txns = load_transactions(table(answered, '{"output": [], "input": []}', outcome="ok"))
    assert txns.names.values is not None, "a list is read in a register here, so it is decoded"
    expected = [
        ("append", "x", 1), ("r", 3, (1, -2)), ("r", "x", None), ("r", 3, None),
    ]  # fmt: skip
    assert steps_of(txns) == [expected, []]
    appends = '{"input": [["append", 3, 1]]}'
    scanned = load_transactions(table(answered, appends))
    assert scanned.names.values is None
    assert steps_of(scanned) == [expected, [("append", 3, 1)]]


@pytest.mark.parametrize("outcome", ["fail", "info"])
def test_reads_without_an_answer_are_left_out(outcome: str) -> None:
    given = '{"input": [["r", "x", [7]], ["w", "x", 2], ["read", "x"]]}'
    txns = load_transactions(table(given, None, '{"input": null}', outcome=outcome))
    assert txns.names.values is None
    assert steps_of(txns) == [[("w", "x", 2)], [], []]


ODD = [
    '[["w", "x", "text"]]',
    '[["w", "x", 1.5]]',
    '[["w", "x", true]]',
    '[["w", "x", 123456789012345678901]]',
    '[["w", "x\\u0041", 1]]',
    '[["w", [1, 2], 1]]',
    '[["w", null, 1]]',
    '[["w", "x", {"a": 1}]]',
    '[["w", "x"]]',
    '[["w", "x", 1], ["r", "x", "]"]]',
    '[["r", "x", [1, [2]]]]',
    '[["r", "x", {"]": "["}]]',
]


@pytest.mark.parametrize("steps", ODD)
def test_what_is_not_expected_is_decoded(steps: str) -> None:
    txns = load_transactions(table(f'{{"output": {steps}}}'))
    assert txns.names.values is not None
    recorded = [(f, key, value[0] if value else None) for f, key, *value in json.loads(steps)]
    assert steps_of(txns) == [list(map(freeze, map(list, recorded)))]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ('{"input": [["w", "x", 1]], "output": 3}', "is no list of"),
        ('{"input": [["r", "x", null]]}', "has no answer to its reads"),
        ('{"output": [["cas", "x", 1]]}', "is no list of"),
        ('{"output": [["w", "x", 1], ["append", "x", 2]]}', "has writes and appends on the key x"),
        (None, "is no list of"),
    ],
)
def test_what_is_no_transaction_is_refused(extra: str | None, message: str) -> None:
    with pytest.raises(NotTransactionsError, match=message):
        load_transactions(table(extra))


def test_damaged_rows_are_never_scanned() -> None:
    """Each byte of a row is damaged in turn; what is scanned then is what JSON says it is."""
    rng = random.Random(3)
    row = '{"output": [["append", "x", 12], ["r", 3, null], ["r", "x", [1, 2]]]}'
    scanned = 0
    for place in range(len(row)):
        for byte in rng.sample('[]{}",:0 a\\-.', 6):
            damaged = row[:place] + byte + row[place + 1 :]
            rows = table(damaged)
            codes = np.zeros(1, np.int8)
            found = history._scanned(history._by_call(rows), codes)
            if found is not None:
                scanned += 1
                assert steps_of(found) == steps_of(history._decoded(history._by_call(rows), codes))
    assert scanned > 20


def test_rows_are_taken_by_call() -> None:
    rows = list_append(7, 40, 5)
    shuffled = rows.take(pa.array(random.Random(1).sample(range(40), 40)))
    assert steps_of(load_transactions(shuffled)) == steps_of(load_transactions(rows))


def test_no_row_is_no_transaction() -> None:
    assert len(load_transactions(OPERATIONS.empty_table())) == 0
