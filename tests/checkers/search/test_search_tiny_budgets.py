"""Budgets that end a search at any moment: never another verdict, never a crash, no byte more."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from shaketable.checkers.search import attempt, driver
from shaketable.checkers.search.budget import TimeSpentError
from shaketable.checkers.search.driver import search
from shaketable.checkers.search.problem import NEVER
from shaketable.harness import discovery
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS
from tests.support.random_objects import OBJECTS, random_history
from tests.support.volume import volume

SMALL = (
    (driver, "STALL_NODES", (1, 2, 5)),
    (driver, "BACK_EVENTS", (1, 3)),
    (driver, "BACK_EVENTS_MAX", (1, 8)),
    (driver, "EVENTS_FIRST", (1, 2, 4)),
    (attempt, "COUNTED_KINDS_MAX", (0, 1, 40)),
    (attempt, "SLICE_NODES", (1, 3)),
    (attempt, "NODES_FIRST", (1, 2, 8)),
    (attempt, "USED_FIRST", (1, 2)),
    (attempt, "STEPS_FIRST", (1, 2, 16)),
    (attempt, "ALL_KINDS_MAX", (0, 64)),
)
BYTES = 1 << 28
BUDGETS = 6
LARGE = 1 << 23
"""A search that needs more bytes takes seconds: it is ended at one random moment only."""


@pytest.mark.parametrize("name", OBJECTS)
def test_a_search_may_be_ended_at_any_moment(monkeypatch, name):
    model = discovery.get("models", name)
    outcomes = set()
    for seed in range(volume(40)):
        rng = Random(seed)
        rows = random_history(
            name, rng, size_max=rng.choice((5, 12, 20)), unknown=rng.choice((0.1, 0.5, 0.9))
        )
        problem = model.encode(pa.Table.from_pylist(rows, OPERATIONS), model.initial(None))
        if not problem.kind.size:
            continue
        for module, constant, values in SMALL:
            monkeypatch.setattr(module, constant, rng.choice(values))
        truth = search(problem, is_over=lambda: False, memory_bytes_max=BYTES)
        budgets = BUDGETS if truth.bytes_max < LARGE else 1
        counts = {rng.randint(1, truth.bytes_max + 100) for _ in range(budgets)}
        for count in counts | {truth.bytes_max}:
            found = search(problem, is_over=lambda: False, memory_bytes_max=count)
            assert found.bytes_max <= count
            outcomes.add(_checked(problem, found, truth))
        for looks in (0, 1, 2, 3, 5, 8):
            left = iter(range(looks))
            found = search(
                problem, is_over=lambda left=left: next(left, None) is None, memory_bytes_max=BYTES
            )
            outcomes.add(_checked(problem, found, truth))
    assert outcomes == {Outcome.VALID, Outcome.INVALID, Outcome.UNKNOWN}


def _checked(problem, found, truth):
    assert found.outcome in (truth.outcome, Outcome.UNKNOWN)
    assert (found.why in ("time", "memory")) == (found.outcome is Outcome.UNKNOWN)
    if found.outcome is Outcome.UNKNOWN and found.part is not None:
        part = found.part
        assert part.stuck in part.operations
        assert problem.return_ns[np.flatnonzero(problem.op == part.stuck)[0]] == part.last_ns
        assert part.last_ns < NEVER
    return found.outcome


def test_what_was_tried_to_the_end_stays_refuted_though_no_budget_is_left(monkeypatch):
    """A window would only make the counterexample shorter."""

    def spent(self, deepest, stall):
        raise TimeSpentError

    model = discovery.get("models", "cas-register")
    monkeypatch.setattr(driver.Windows, "around", spent)
    outcomes = []
    for seed in range(300):
        rows = random_history("cas-register", Random(seed), size_max=8)
        problem = model.encode(pa.Table.from_pylist(rows, OPERATIONS), model.initial(None))
        found = search(problem, is_over=lambda: False, memory_bytes_max=BYTES)
        outcomes.append(found.outcome)
        if found.outcome is Outcome.INVALID:
            assert found.part.stuck in found.part.operations
    assert outcomes.count(Outcome.INVALID) > 20
    assert Outcome.UNKNOWN not in outcomes
