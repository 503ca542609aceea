"""Many keys in one call: the same findings as key by key, for every model."""

from __future__ import annotations

import itertools
import json
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from shaketable.checkers.linearizability import linearizable
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.harness import discovery
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.schema import OPERATIONS, OPERATIONS_CODED
from tests.support.checker_histories import context
from tests.support.random_objects import OBJECTS, random_history

KEYS = 40


def keys_of(model, seed):
    """Return histories of some keys as one coded table, sorted by key and call, and the bounds."""
    rows, bounds = [], [0]
    for number in range(KEYS):
        history = random_history(model, Random(f"{seed}-{number}"), lies=0.7)
        rows += [row | {"key": f"k{number:02}", "op": 1000 + len(rows) + n}
                 for n, row in enumerate(history)]  # fmt: skip
        if len(rows) > bounds[-1]:
            bounds.append(len(rows))
    return pa.Table.from_pylist(rows, OPERATIONS).cast(OPERATIONS_CODED), np.array(bounds)


def in_order(findings):
    return [
        row
        for row in findings.sort_by([("kind", "ascending"), ("key", "ascending")]).to_pylist()
        if row["kind"] != "checked"
    ]


def sums(findings):
    total = {}
    for row in findings.to_pylist():
        if row["kind"] == "checked":
            for name, count in json.loads(row["details"]).items():
                # Together, keys may be decided by a method that takes many at once.
                what = "by" if name.startswith("by_") else name
                if name != "cited":
                    total[what] = total.get(what, 0) + count
    return total


@pytest.mark.parametrize("shared_max", [0, linearizable.VALUES_SHARED_MAX])
@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_keys_together_are_judged_as_one_by_one(monkeypatch, name, shared_max):
    monkeypatch.setattr(linearizable, "VALUES_SHARED_MAX", shared_max)
    checker = Linearizable(discovery.get("models", name))
    coded, bounds = keys_of(name, name)
    together = checker.check_keys(coded, bounds, context())
    alone = [
        checker.check({"operations": coded.slice(begin, end - begin).cast(OPERATIONS)}, context())
        for begin, end in itertools.pairwise(bounds)
    ]
    alone = pa.concat_tables(alone)
    counts, counts_alone = sums(together), sums(alone)
    closed, closed_alone = (each.pop("closed_by_reads", 0) for each in (counts, counts_alone))
    # What is decided without a search has nothing closed.
    assert closed <= closed_alone if name.endswith("register") else closed == closed_alone
    assert counts == counts_alone
    found = in_order(together)
    assert [(row["kind"], row["key"]) for row in found] == [
        (row["kind"], row["key"]) for row in in_order(alone)
    ]
    assert found == in_order(alone)
    assert 2 <= len(found) < KEYS


def test_elements_of_another_key_explain_nothing():
    """The keys share a numbering of their operations: whoever adds 5 to one adds it to no other."""
    reads = {"f": "read", "extra": json.dumps({"output": [5]})}
    rows = [
        reads | {"op": 0, "key": "a", "call_ns": 0, "return_ns": 1},
        {"op": 1, "key": "b", "call_ns": 0, "return_ns": 1, "f": "add", "input": 5},
        reads | {"op": 2, "key": "b", "call_ns": 2, "return_ns": 3},
        {"op": 3, "key": "c", "call_ns": 2, "return_ns": 3, "f": "remove", "input": 5},
        {"op": 4, "key": "d", "call_ns": 0, "return_ns": 1, "f": "add", "input": 6},
        reads | {"op": 5, "key": "d", "call_ns": 2, "return_ns": 3, "extra": '{"output": [6]}'},
    ]
    coded = pa.Table.from_pylist(
        [dict.fromkeys(OPERATIONS.names) | {"process": 0, "outcome": "ok"} | row for row in rows],
        OPERATIONS,
    ).cast(OPERATIONS_CODED)
    checker = Linearizable(discovery.get("models", "set"))
    found = checker.check_keys(coded, np.array([0, 1, 3, 4, 6]), context())
    assert [row["key"] for row in in_order(found)] == ["a"]
    assert sums(found)["by"] == 4


def test_an_operation_that_no_model_knows_is_told_key_by_key():
    coded, bounds = keys_of("mutex", 1)
    checker = Linearizable(discovery.get("models", "register"))
    with pytest.raises(UsageError):
        checker.check_keys(coded, bounds, context())
