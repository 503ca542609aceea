"""What a refutation says of its prefix and its stuck operation is true: held to brute force."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from search_problems import is_linearizable, never, random_register, register_problem

from shaketable.checkers.linearizability.refutation import longest_prefix
from shaketable.checkers.search import attempt, driver
from shaketable.checkers.search.driver import search
from shaketable.checkers.search.problem import NEVER
from shaketable.harness.contracts.verdict import Outcome


@pytest.mark.parametrize(("stall", "width", "counted"), [(1, 1, 0), (2, 2, 1), (5, 4, 40)])
def test_a_prefix_goes_as_far_as_any_order_goes(monkeypatch, stall, width, counted):
    monkeypatch.setattr(driver, "STALL_NODES", stall)
    monkeypatch.setattr(driver, "EVENTS_FIRST", width)
    monkeypatch.setattr(attempt, "COUNTED_KINDS_MAX", counted)
    methods = []
    for seed in range(900_000 + stall * 1000, 900_000 + stall * 1000 + 600):
        problem = register_problem(*random_register(Random(seed), 16))
        found = search(problem, is_over=never, memory_bytes_max=1 << 28)
        if found.outcome is Outcome.INVALID:
            prefix = longest_prefix(found.part, problem)
            assert _untrue(problem, found.part, prefix) == [], f"seed {seed}"
            methods.append(found.part.method)
    assert min(methods.count("search"), methods.count("window")) > 20


def _untrue(problem, part, prefix):
    """Return which statements about the prefix are wrong."""
    row = {int(op): n for n, op in enumerate(problem.op)}
    call, end = problem.call_ns, problem.return_ns
    placed = [row[op] for op, _ in prefix.steps]
    stuck = row[prefix.stuck]
    inside = (call > part.first_ns) if part.method == "window" else np.full(len(call), True)
    lacking = np.setdiff1d(np.flatnonzero(inside & (end != NEVER)), placed)
    latest = max((int(call[n]) for n in placed), default=0)
    so_far = -(2**62)
    is_in_order = True
    for n in placed:
        is_in_order = is_in_order and end[n] >= so_far
        so_far = max(so_far, int(call[n]))
    statements = {
        "each one once": len(set(placed)) == len(placed),
        "in the order of time": is_in_order,
        "the states are reached": any(_leads(problem, s, prefix.steps, row) for s in part.states),
        "nothing is left out that was over": not (end[lacking] < latest).any(),
        "it gets to the stuck one": not (end[lacking] < end[stuck]).any(),
        "the stuck one cannot follow": problem.step(prefix.state, problem.kind[stuck]) is None,
        "no order gets past it": not is_linearizable(_until(problem, int(end[stuck]))),
    }
    return [statement for statement, is_true in statements.items() if not is_true]


def _leads(problem, state, steps, row):
    for op, after in steps:
        state = problem.step(state, int(problem.kind[row[op]]))
        if state is None or state != after:
            return False
    return True


def _until(problem, time_ns):
    """The history up to a time: what is open then need not happen."""
    keep = np.flatnonzero(problem.call_ns <= time_ns)
    end = np.where(problem.return_ns > time_ns, NEVER, problem.return_ns)
    return replace(
        problem, kind=problem.kind[keep], call_ns=problem.call_ns[keep],
        return_ns=end[keep], op=problem.op[keep],
    )  # fmt: skip
