"""The special cases keep the budgets that the search keeps: time between passes, and bytes."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import pyarrow as pa
import pytest

from shaketable.checkers.linearizability.deciding import decide_without_search
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.search import driver
from shaketable.checkers.search.budget import Limits
from shaketable.checkers.special import counting, log_order, queues, registers, sets, value_spans
from shaketable.harness import discovery
from shaketable.harness.contracts.plugins import SearchBudget
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS
from tests.support.checker_histories import context, op

SIZE = 4_000
NAMES = {"stack": ("push", "pop"), "priority-queue": ("insert", "poll")}


def rows_of(model, size=SIZE, overlap=37):
    """A valid history: what is put in is soon seen; each seventh outcome is unknown."""
    rows = []
    for n in range(size // 2):
        begin = 20 * n
        inside = [begin, begin + overlap]
        behind = [begin + 10, begin + 10 + overlap]
        if model == "register":
            rows += [op(0, "write", *inside, input=n), op(0, "read", *behind, output=n)]
        elif model == "set":
            rows.append(op(0, "add", *inside, input=n))
            if n % 100 == 0:
                seen = json.dumps({"output": list(range(n + 1))})
                rows.append(op(0, "read", *behind, extra=seen))
        elif model == "append-log":
            rows.append(op(0, "append", *inside, input=n, offset=n))
            rows.append(op(0, "read", *behind, offset=n, output=n))
        elif model == "semaphore":
            rows += [op(0, "release", *inside), op(0, "acquire", *behind)]
        else:
            put, take = NAMES.get(model, ("enqueue", "dequeue"))
            rows += [op(0, put, *inside, input=n), op(0, take, *behind, output=n)]
        if n % 7 == 0 and model != "append-log":
            rows[-1 if model == "set" else -2].update(outcome="info", return_ns=None)
    return [row | {"op": number, "key": "k"} for number, row in enumerate(rows)]


def encoded(model, rows):
    table = pa.Table.from_pylist(rows, OPERATIONS)
    known = discovery.get("models", model)
    return known.encode(table, known.initial(None)), table


MODELS = (
    "register", "fifo-queue", "unordered-queue", "append-log", "set", "stack", "priority-queue",
    "semaphore",
)  # fmt: skip
BYTES = {
    "register": registers.OPERATION_BYTES,
    "fifo-queue": queues.OPERATION_BYTES,
    "unordered-queue": queues.OPERATION_BYTES,
    "append-log": log_order.OPERATION_BYTES,
    "set": sets.OPERATION_BYTES,
    "stack": value_spans.OPERATION_BYTES,
    "priority-queue": value_spans.OPERATION_BYTES,
    "semaphore": counting.PERMIT_OPERATION_BYTES,
}


@pytest.mark.parametrize("model", MODELS)
def test_between_two_passes_the_time_may_end(model):
    problem, table = encoded(model, rows_of(model))
    looks, decision = 0, None
    while decision is None:
        left = [looks]

        def is_over(left=left):
            left[0] -= 1
            return left[0] < 0

        decision = decide_without_search(model, problem, table, Limits(is_over))
        looks += 1
        assert looks < 1000
    assert looks > 3
    assert decision.outcome is Outcome.VALID


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("is_wrong", [False, True])
def test_what_is_estimated_is_not_exceeded(model, is_wrong):
    rows = rows_of(model)
    if is_wrong:
        late = len(rows) // 2
        rows = [row | {"op": n} for n, row in enumerate([*rows[:20], *rows[late:]])]
    problem, table = encoded(model, rows)
    estimates = []

    class Told(Limits):
        def require_memory(self, memory_bytes):
            estimates.append(memory_bytes)

    limits = Told(lambda: False)
    decide_without_search(
        model, problem, table, limits
    )  # imports and first calls are not what is measured
    tracemalloc.start()
    try:
        decision = decide_without_search(model, problem, table, limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert decision is not None
    assert peak <= max(estimates) + 30_000
    assert max(estimates) >= BYTES[model] * len(rows)
    short = Limits(lambda: False, max(estimates) - 1)
    assert decide_without_search(model, problem, table, short) is None
    enough = Limits(lambda: False, max(estimates))
    assert decide_without_search(model, problem, table, enough) == decision


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("budget", "why"), [(SearchBudget(time_s=0), "time"), (SearchBudget(memory_bytes=1), "memory")]
)
def test_a_spent_budget_leaves_the_verdict_open(model, budget, why, monkeypatch):
    monkeypatch.setattr(driver, "ORDERED_ANYWAY_MAX", 10)
    checker = Linearizable(discovery.get("models", model))
    tables = {"operations": pa.Table.from_pylist(rows_of(model, 100), OPERATIONS)}
    hurried = replace(context(), search=budget, clock_unix_s=lambda: 0.0)
    verdict = checker.conclude(checker.check(tables, hurried), hurried)
    assert verdict.outcome is Outcome.UNKNOWN
    assert f"the budget of {why}" in verdict.summary
    assert verdict.data["undecided"][0]["why"] == why


def test_a_fifo_queue_is_decided_where_the_budget_is_just_enough():
    problem, _ = encoded("fifo-queue", rows_of("fifo-queue", 20))
    enough = queues.OPERATION_BYTES * len(problem.kind)
    assert queues.decide_fifo(problem, Limits(lambda: False, enough)).outcome is Outcome.VALID
