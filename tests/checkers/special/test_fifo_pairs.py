"""FIFO queues whose values repeat: an order of pairs, or the return that no order gets past."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from shaketable.checkers.kernels import order_search
from shaketable.checkers.models.queue_models import FifoQueue
from shaketable.checkers.search.budget import Limits, MemorySpentError, TimeSpentError
from shaketable.checkers.search.problem import NEVER
from shaketable.checkers.search.replay import WitnessError
from shaketable.checkers.special import queues
from shaketable.checkers.special.queues import QueueOrder
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS
from tests.support.brute_force import is_linearizable
from tests.support.checker_histories import op
from tests.support.hard_queue import hard_queue
from tests.support.random_objects import random_history
from tests.support.synthetic_histories import as_table, fifo_queue

MODEL = FifoQueue()
UNLIMITED = Limits(lambda: False)


def problem_of(rows, initial=()):
    numbered = [row | {"op": n, "key": "k"} for n, row in enumerate(rows)]
    return MODEL.encode(pa.Table.from_pylist(numbered, OPERATIONS), initial)


def random_rows(seed):
    rng = Random(seed)
    rows = random_history("fifo-queue", rng, size_max=rng.choice((6, 10)), unknown=0.25)
    rows = [row for row in rows if row["f"] != "peek"]  # the search decides where there are some
    for row in rows:  # few values, so that they repeat
        for name in ("input", "output"):
            row[name] = None if row[name] is None else row[name] % 2 + 1
    return rows, rng.choice(((), (), (1,), (2, 1)))


@pytest.mark.parametrize("block", range(8))
def test_random_queues_get_the_verdict_of_brute_force(block, monkeypatch):
    if block % 2:  # the search must do without the rule that spares it
        monkeypatch.setattr(queues, "_taken_too_often", lambda _: None)
    seen = {True: 0, False: 0}
    for seed in range(150 * block, 150 * block + 150):
        rows, initial = random_rows(seed)
        problem = MODEL.encode(pa.Table.from_pylist(rows, OPERATIONS), initial)
        expected = is_linearizable(MODEL, initial, rows)
        decision = queues.decide_by_pairs(problem)
        assert (decision.outcome is Outcome.VALID) == expected, (seed, rows)
        seen[expected] += 1
        if decision.part is not None:
            assert decision.part.stuck in set(problem.op.tolist()), seed
    assert min(seen.values()) > 20


@pytest.mark.parametrize("clients", [5, 20, 50])
@pytest.mark.parametrize("unknown", [0.0, 0.02])
def test_many_clients_and_unknown_outcomes_are_no_trouble(clients, unknown):
    operations = fifo_queue(clients, 3000, clients, unknown)
    problem = MODEL.encode(as_table(operations), ())
    queue = QueueOrder(problem, NEVER)
    assert queue.explains(UNLIMITED)
    assert (
        queue.arrays.at[order_search.VISITED] < 100_000
    )  # orders that were looked at: nearly one for each pair
    assert queues.decide_by_pairs(problem).outcome is Outcome.VALID


def test_long_queues_need_no_more_memory():
    """A drain: 4,000 values wait before the first is taken."""
    rows = [op(n % 3, "enqueue", 10 * n, 10 * n + 25, input=n % 7) for n in range(4000)]
    rows += [op(n % 3, "dequeue", 50_000 + 10 * n, 50_005 + 10 * n) for n in range(4000)]
    for n in range(4000):
        rows[4000 + n]["output"] = n % 7
    problem = problem_of(rows)
    decision = queues.decide_by_pairs(problem, Limits(lambda: False, 4_000_000))
    assert decision.outcome is Outcome.VALID


def wrong_order():
    """Two of each value, so counting accuses nobody; 2 leaves the queue before the second 1."""
    return [
        op(0, "enqueue", 0, 1, input=1),
        op(0, "enqueue", 2, 3, input=1),
        op(0, "enqueue", 4, 5, input=2),
        op(1, "dequeue", 10, 11, output=1),
        op(1, "dequeue", 12, 13, output=2),
        op(1, "dequeue", 14, 15, output=1),
    ]


def test_the_part_names_the_return_that_cannot_be_passed():
    decision = queues.decide_by_pairs(problem_of(wrong_order()))
    part = decision.part
    assert decision.outcome is Outcome.INVALID
    assert part.stuck == 4
    assert [number for number, _ in part.prefix.steps()] == [0, 1, 2, 3]
    assert part.prefix.states[-1] == (1, 2)


def test_a_part_begins_where_its_prefix_does(monkeypatch):
    monkeypatch.setattr("shaketable.checkers.special.decision.SHOWN_MAX", 3)
    part = queues.decide_by_pairs(problem_of(wrong_order())).part
    assert part.prefix_start == (1,)
    assert [state for _, state in part.prefix.steps()] == [(1, 1), (1, 1, 2), (1, 2)]
    assert part.before == 1
    assert part.operations.tolist() == [1, 2, 3, 4]


def test_counting_alone_accuses_what_was_taken_too_often():
    rows = [
        op(0, "enqueue", 0, 1, input=1),
        op(0, "dequeue", 2, 3, output=1),
        op(1, "dequeue", 2, 4, output=1),
        op(0, "enqueue", 5, 6, input=1),
    ]
    accusation = queues.decide_by_pairs(problem_of(rows)).accusation
    assert accusation.ops == (2, 1)
    assert "taken 2 times" in accusation.why
    assert "1 enqueue of it had" in accusation.why


def test_an_empty_queue_is_found_between_two_pairs_only():
    rows = [
        op(0, "enqueue", 0, 1, input=1),
        op(1, "enqueue", 0, 9, input=1),
        op(2, "dequeue", 2, 3, output=1),
        op(2, "dequeue", 4, 5, output=None),
        op(2, "dequeue", 6, 8, output=1),
    ]
    assert queues.decide_by_pairs(problem_of(rows)).outcome is Outcome.VALID
    rows[1]["return_ns"] = 3  # before the queue was found empty: now it is in between
    assert queues.decide_by_pairs(problem_of(rows)).outcome is Outcome.INVALID


def test_the_replay_believes_no_order():
    problem = problem_of(wrong_order()[:4])
    order = np.array([0, 1, 2, 3])
    queues._replay(problem, order)
    for wrong in ([0, 1, 2], [0, 1, 3, 3], [3, 0, 1, 2], [2, 0, 1, 3]):
        with pytest.raises(WitnessError):
            queues._replay(problem, np.array(wrong))


def test_a_kernel_that_errs_is_found_out(monkeypatch):
    """The planted bug: the order's first two change places."""
    right = QueueOrder.order
    monkeypatch.setattr(QueueOrder, "order", lambda queue: right(queue)[[1, 0, 2, 3]])
    with pytest.raises(WitnessError):
        queues.decide_by_pairs(problem_of(wrong_order()[:4]))


def test_budgets_end_it():
    problem = MODEL.encode(as_table(fifo_queue(1, 2000, 20, 0.0)), ())
    with pytest.raises(MemorySpentError):
        queues.decide_by_pairs(problem, Limits(lambda: False, 100_000))
    with pytest.raises(MemorySpentError):  # while it searches
        QueueOrder(problem, NEVER).explains(Limits(lambda: False, 200_000))
    looks = iter([True] * 10)
    with pytest.raises(TimeSpentError):  # before it has begun
        queues.decide_by_pairs(problem, Limits(lambda: next(looks)))


def test_time_that_is_over_names_where_the_search_stood():
    easy = [op(0, "enqueue", -20, -19, input=0), op(0, "dequeue", -18, -17, output=0)]
    hard = [row | {"outcome": "ok"} for row in hard_queue()]
    problem = problem_of([*easy, *hard])
    looks = iter([False] * 20 + [True] * 1000)
    decision = queues.decide_by_pairs(problem, Limits(lambda: next(looks)))
    assert decision.outcome is Outcome.UNKNOWN
    assert decision.why == "time"
    assert decision.part.last_ns in (2001, 2003)  # behind what any order explains
    assert decision.part.before == 66
    assert len(decision.part.operations) > 20


def test_a_refutation_stays_one_where_the_time_does_not_suffice_to_explain_it():
    rows = [op(0, "enqueue", 1000 + 2 * n, 1001 + 2 * n, input=n % 3) for n in range(300)]
    rows += [op(1, "dequeue", 5000 + 2 * n, 5001 + 2 * n, output=n % 3) for n in range(300)]
    rows[400]["output"], rows[401]["output"] = rows[401]["output"], rows[400]["output"]
    problem = problem_of(rows)
    found = queues.decide_by_pairs(problem)
    assert found.part.stuck == 400
    looks = iter([False] * 2 + [True] * 1000)
    hurried = queues.decide_by_pairs(problem, Limits(lambda: next(looks)))
    assert hurried.outcome is Outcome.INVALID
    assert problem.return_ns[hurried.part.stuck] >= problem.return_ns[400]
