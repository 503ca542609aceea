"""Registers decided together, exactly: against the search, history by history."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from shaketable.checkers.kernels import open_sets
from shaketable.checkers.linearizability.deciding import NOTHING, decide_registers
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.harness import discovery
from shaketable.harness.history.schema import OPERATIONS, OPERATIONS_CODED
from tests.support.checker_histories import context, op
from tests.support.random_objects import random_history

KEYS = 300


def coded(histories):
    """Return histories as one coded table, each of a key of its own, and their bounds."""
    rows, bounds = [], [0]
    for number, history in enumerate(histories):
        ordered = sorted(history, key=lambda row: row["call_ns"])
        rows += [
            {**dict.fromkeys(OPERATIONS.names), **row, "key": f"k{number:03}", "op": len(rows) + n}
            for n, row in enumerate(ordered)
        ]
        if len(rows) > bounds[-1]:
            bounds.append(len(rows))
    return pa.Table.from_pylist(rows, OPERATIONS).cast(OPERATIONS_CODED), np.array(bounds)


@pytest.mark.parametrize("name", ["register", "cas-register"])
@pytest.mark.parametrize("initial", [None, "1"])
@pytest.mark.parametrize("lies", [0.0, 0.7])
def test_what_is_decided_is_what_the_search_says(monkeypatch, name, initial, lies):
    model = discovery.get("models", name)
    rng = [Random(f"{name} {initial} {lies} {n}") for n in range(KEYS)]
    table, bounds = coded([random_history(name, each, lies=lies) for each in rng])
    said = []
    real = open_sets.decide
    monkeypatch.setattr(
        "shaketable.checkers.linearizability.deciding.decide",
        lambda *args: said.append(args[-1]) or real(*args),
    )
    first = model.initial(initial)[0]
    decided = decide_registers(table, bounds, model.fs, first)
    searching = Linearizable(model, initial, use_special_cases=False)
    (verdicts,) = said
    seen = dict.fromkeys((open_sets.UNDECIDED, open_sets.LINEARIZABLE, open_sets.REFUTED), 0)
    for key, verdict in enumerate(verdicts.tolist()):
        seen[verdict] += 1
        rows = table.slice(bounds[key], bounds[key + 1] - bounds[key]).cast(OPERATIONS)
        kinds = set(searching.check({"operations": rows}, context())["kind"].to_pylist())
        if verdict == open_sets.LINEARIZABLE and decided.is_decided[key]:
            assert kinds == {"checked"}, rows.to_pylist()
        if verdict == open_sets.REFUTED:
            assert "not-linearizable" in kinds, rows.to_pylist()
    assert seen[open_sets.LINEARIZABLE] > 20
    if lies:
        assert seen[open_sets.REFUTED] > 20


def read(call, end, output, **more):
    return op(0, "read", call, end, output=output, **more)


def write(call, end, value, outcome="ok", **more):
    return op(0, "write", call, end, outcome, input=value, **more)


def decided(*histories, initial=0, fs=frozenset(("read", "write", "cas"))):
    table, bounds = coded(histories)
    return decide_registers(table, bounds, fs, initial)


def test_planted_bugs_are_left_to_the_checker_and_clean_ones_are_not():
    clean = [write(0, 10, 1), read(5, 7, 0), read(8, 20, 1), read(21, 22, 1)]
    stale = [write(0, 10, 1), read(11, 12, 0)]
    backwards = [write(0, 30, 1), read(5, 7, 1), read(8, 9, 0)]
    touching = [write(0, 10, 1), read(10, 12, 0)]  # closed intervals: they overlap
    assert decided(clean, stale, backwards, touching).is_decided.tolist() == [
        True, False, False, True,
    ]  # fmt: skip


def test_unknown_outcomes_may_take_effect_at_any_time_or_never():
    never = [write(0, None, 5, "info"), read(1, 2, 0), read(30, 31, 0)]
    late = [write(0, None, 5, "info"), read(1, 2, 0), read(30, 31, 5)]
    twice = [
        write(0, None, 5, "info"),
        write(3, 4, 0),
        read(5, 6, 5),
        write(7, 8, 0),
        read(9, 9, 5),
    ]
    found = decided(never, late, twice)
    assert found.is_decided.tolist() == [True, True, False]
    assert found.counts == {
        "partitions": 2, "operations": 4, "unknown_outcomes": 2, "by_open_sets": 2,
    }  # fmt: skip


def test_what_it_cannot_hold_is_left():
    crowd = [write(n, 100, n) for n in range(open_sets.OPEN_MAX + 1)]
    values = [row for n in range(40) for row in (write(2 * n, 2 * n + 1, n + 1),)]
    text = [write(0, 1, None, extra='{"input": "a"}')]
    other = [op(0, "append", 0, 1, input=1)]
    refused = [op(0, "append", 0, 1, "fail", input=1), read(2, 3, 0)]
    turned = [read(5, 3, 0)]
    lowest = [write(0, 1, NOTHING), read(2, 3, None)]
    failed = [write(0, 1, 1, "fail")]
    found = decided(crowd, values, text, other, refused, turned, lowest, failed)
    assert not found.is_decided.any()
    assert found.counts == {}
    assert not decided([read(0, 1, 1)], initial="a").is_decided.any()


@pytest.mark.parametrize("initial", [NOTHING, 2**63, -(2**63) - 1, 2**80])
def test_a_first_value_that_stands_for_null_or_fits_no_column_is_left(initial):
    """A read of nothing would find what stands for nothing there."""
    assert not decided([read(0, 1, None)], initial=initial).is_decided.any()
    assert decided([read(0, 1, 2**63 - 1)], initial=2**63 - 1).is_decided.all()


def test_a_cas_of_what_a_plain_register_does_not_know_is_left():
    history = [op(0, "cas", 0, 1, input=1, expected=0)]
    assert not decided(history, fs=frozenset(("read", "write"))).is_decided.any()
    assert decided(history).is_decided.all()


def test_the_keys_left_are_cut_out_whole():
    good, bad = [read(0, 1, 0)], [read(0, 1, 3), read(2, 3, 4)]
    table, bounds = coded([good, bad, good, bad])
    found = decide_registers(table, bounds, frozenset(("read", "write")), 0)
    rows, begins = found.others(table, bounds)
    assert begins.tolist() == [0, 2, 4]
    assert rows["key"].to_pylist() == ["k001", "k001", "k003", "k003"]
