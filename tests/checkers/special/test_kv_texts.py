"""Keys of a store of texts: an order of gets, puts and appends, or the return none gets past."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from shaketable.checkers.kernels import order_search
from shaketable.checkers.models.register import Kv
from shaketable.checkers.search.budget import Limits, Memory, MemorySpentError, TimeSpentError
from shaketable.checkers.search.problem import NEVER
from shaketable.checkers.search.replay import WitnessError
from shaketable.checkers.special import texts as text_search
from shaketable.checkers.special.texts import TextOrder, kind_texts, number_states
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS
from tests.support.brute_force import is_linearizable
from tests.support.checker_histories import op
from tests.support.random_objects import random_history
from tests.support.synthetic_histories import as_table, kv

MODEL = Kv()
UNLIMITED = Limits(lambda: False)
PIECES = ("", "a", "b", "ab", "ba", "ä", "\ud800")


def get(process, called, returned, text):
    return op(process, "get", called, returned, extra=json.dumps({"output": text}))


def change(f, process, called, returned, text):
    row = op(process, f, called, returned, extra=json.dumps({"input": text}))
    return row if returned is not None else row | {"outcome": "info"}


def problem_of(rows, initial=""):
    numbered = [row | {"op": n, "key": "k"} for n, row in enumerate(rows)]
    return MODEL.encode(pa.Table.from_pylist(numbered, OPERATIONS), initial)


def repetitive_rows(rng):
    """Every operation overlaps many others, and the texts are made of few pieces."""
    pieces = rng.sample(PIECES, rng.randint(1, 4))
    size, span, reach = rng.randint(4, 10), rng.choice((8, 30)), rng.choice((2, 6, 20))
    held, rows = rng.choice(("", "a")), []
    initial = held
    for n, moment in enumerate(sorted(rng.randint(0, span) for _ in range(size))):
        begin, end = moment - rng.randint(0, reach), moment + rng.randint(0, reach)
        f = rng.choice(("get", "put", "append", "append"))
        is_known = rng.random() > 0.25
        if f == "get":
            shown = held if rng.random() > 0.1 else held[:-1] + rng.choice(pieces)
            rows.append(get(n, begin, end, shown))
            continue
        text = rng.choice(pieces)
        rows.append(change(f, n, begin, end if is_known else None, text))
        if is_known or rng.random() < 0.5:
            held = text if f == "put" else held + text
    rng.shuffle(rows)
    return [row | {"op": n, "key": "k"} for n, row in enumerate(rows)], initial


def random_rows(seed):
    rng = Random(seed)
    if seed % 2:
        return repetitive_rows(rng)
    return random_history("kv", rng, size_max=10, unknown=0.25), rng.choice(("", "", "1", "a"))


def until(rows, end):
    """The history up to a time: nobody knows yet what returns later."""
    seen = [row for row in rows if row["outcome"] != "fail" and row["call_ns"] <= end]
    return [
        row if row["outcome"] == "ok" and row["return_ns"] <= end else row | {"outcome": "info"}
        for row in seen
    ]


def first_that_cannot_be_passed(initial, rows):
    for end in sorted({row["return_ns"] for row in rows if row["outcome"] == "ok"}):
        if not is_linearizable(MODEL, initial, until(rows, end)):
            return end
    return None


@pytest.mark.parametrize("block", range(8))
def test_random_keys_get_the_verdict_of_brute_force(block):
    seen = {True: 0, False: 0}
    for seed in range(120 * block, 120 * block + 120):
        rows, initial = random_rows(seed)
        problem = MODEL.encode(pa.Table.from_pylist(rows, OPERATIONS), initial)
        end = first_that_cannot_be_passed(initial, rows)
        decision = text_search.decide(problem)
        assert (decision.outcome is Outcome.VALID) == (end is None), (seed, rows)
        seen[end is None] += 1
        if decision.part is not None:
            (stuck,) = (row for row in rows if row["op"] == decision.part.stuck)
            assert stuck["return_ns"] == end, (seed, rows)
    assert min(seen.values()) > 20


@pytest.mark.parametrize("clients", [5, 20, 50])
@pytest.mark.parametrize("unknown", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("resets", [0.0, 0.1, 0.5])
def test_many_clients_and_unknown_outcomes_are_no_trouble(clients, unknown, resets):
    operations = kv(clients, 3000, clients, unknown, keys=1, resets=resets)
    problem = MODEL.encode(as_table(operations), "")
    states = number_states(problem, kind_texts(problem), UNLIMITED, Memory(NEVER))
    found = TextOrder(problem, states, NEVER)
    assert found.explains(UNLIMITED)
    visited = found.arrays.at[order_search.VISITED]  # nearly one order for each operation
    assert visited < 10_000
    assert text_search.decide(problem).outcome is Outcome.VALID


def wrong_get():
    """The last get shows appends the other way round than the one before."""
    return [
        change("put", 0, 0, 1, "p"),
        change("append", 0, 2, 9, "a"),
        change("append", 1, 2, 9, "b"),
        get(2, 10, 11, "pba"),
        get(2, 12, 13, "pab"),
        get(2, 14, 15, "pba"),
    ]


def test_the_part_names_the_return_that_cannot_be_passed():
    decision = text_search.decide(problem_of(wrong_get()))
    part = decision.part
    assert decision.outcome is Outcome.INVALID
    assert part.stuck == 4
    assert [number for number, _ in part.prefix.steps()] == [0, 2, 1, 3]
    assert part.prefix.states[-1] == "pba"


def test_a_part_begins_where_its_prefix_does(monkeypatch):
    monkeypatch.setattr("shaketable.checkers.special.decision.SHOWN_MAX", 2)
    part = text_search.decide(problem_of(wrong_get())).part
    assert part.prefix_start == "pb"
    assert [state for _, state in part.prefix.steps()] == ["pba", "pba"]
    assert part.before == 1
    assert part.operations.tolist() == [1, 3, 4]


@pytest.mark.parametrize("clients", [5, 20])
@pytest.mark.parametrize("kind", ["stale", "never"])
def test_a_wrong_get_deep_in_a_history_is_refuted(clients, kind):
    operations = kv(7, 10_000, clients, 0.02, keys=1)
    gets = [o for o in operations if o.f == "get" and o.returned is not None]
    wrong = gets[2 * len(gets) // 3]
    wrong.text = gets[len(gets) // 2].text if kind == "stale" else wrong.text + "?"
    problem = MODEL.encode(as_table(operations), "")
    states = number_states(problem, kind_texts(problem), UNLIMITED, Memory(NEVER))
    found = TextOrder(problem, states, NEVER)
    assert not found.explains(UNLIMITED)
    assert found.arrays.at[order_search.VISITED] < 30_000
    assert text_search.decide(problem).part.stuck == operations.index(wrong)


def test_a_text_that_was_overwritten_does_not_come_back():
    rows = [
        change("put", 0, 0, 1, "p"),
        change("append", 0, 2, 3, "a"),
        get(1, 4, 5, "pa"),
        change("put", 0, 6, 7, "q"),
        get(1, 8, 9, "pa"),
    ]
    decision = text_search.decide(problem_of(rows))
    assert decision.part.stuck == 4
    rows[0] |= {"outcome": "info"}
    rows.append(change("put", 3, 0, None, "p"))  # both happened: the append stood before
    assert text_search.decide(problem_of(rows)).outcome is Outcome.INVALID
    rows.append(change("append", 4, 0, None, "a"))
    assert text_search.decide(problem_of(rows)).outcome is Outcome.VALID


def test_a_key_may_begin_with_a_text():
    rows = [change("append", 0, 0, 1, "b"), get(0, 2, 3, "ab")]
    assert text_search.decide(problem_of(rows, "a")).outcome is Outcome.VALID
    assert text_search.decide(problem_of(rows)).outcome is Outcome.INVALID


def test_long_texts_are_held_once():
    """A thousand appends that no put ends, and gets of up to 200,000 characters."""
    rows, text = [], ""
    for n in range(1000):
        text += f"{n:0200}"
        rows.append(change("append", 0, 10 * n, 10 * n + 12, f"{n:0200}"))
        if n % 5 == 0:
            rows.append(get(1, 10 * n + 13, 10 * n + 18, text))
    decision = text_search.decide(problem_of(rows), Limits(lambda: False, 16_000_000))
    assert decision.outcome is Outcome.VALID


def test_the_replay_believes_no_order():
    problem = problem_of(wrong_get()[:4])
    texts = kind_texts(problem)
    text_search._replay(problem, texts, np.array([0, 2, 1, 3]))
    for wrong in ([0, 2, 1], [0, 2, 3, 3], [0, 1, 2, 3], [2, 0, 1, 3]):
        with pytest.raises(WitnessError):
            text_search._replay(problem, texts, np.array(wrong))


def test_a_kernel_that_errs_is_found_out(monkeypatch):
    """The planted bug: two appends change places."""
    right = TextOrder.order
    monkeypatch.setattr(TextOrder, "order", lambda found: right(found)[[0, 2, 1, 3]])
    with pytest.raises(WitnessError):
        text_search.decide(problem_of(wrong_get()[:4]))


def test_what_no_write_makes_needs_no_memory():
    problem = problem_of([change("put", 0, 0, 1, "p"), get(1, 2, 3, "q")])
    states = number_states(problem, kind_texts(problem), UNLIMITED, Memory(NEVER))
    assert not TextOrder(problem, states, NEVER).explains(Limits(lambda: False, 1))


def test_budgets_end_it(monkeypatch):
    problem = MODEL.encode(as_table(kv(1, 3000, 20, 0.0, keys=1)), "")
    with pytest.raises(MemorySpentError):  # at once
        text_search.decide(problem, Limits(lambda: False, 100_000))
    texts = kind_texts(problem)
    with pytest.raises(MemorySpentError):  # while texts are numbered
        number_states(problem, texts, UNLIMITED, Memory(50_000))
    states = number_states(problem, texts, UNLIMITED, Memory(NEVER))
    monkeypatch.setattr("shaketable.checkers.special.decision.NODES_FIRST", 64)
    found = TextOrder(problem, states, NEVER)
    begun = sum(array.nbytes for array in found.arrays)
    with pytest.raises(MemorySpentError):  # while it searches
        found.explains(Limits(lambda: False, begun + 1000))
    left = iter([True] * 10)
    with pytest.raises(TimeSpentError):  # before it has begun
        text_search.decide(problem, Limits(lambda: next(left)))
    monkeypatch.setattr(text_search, "VISITS_MAX", 50)
    left = iter([False] * 20 + [True] * 1000)
    decision = text_search.decide(problem, Limits(lambda: next(left)))  # in the midst
    assert decision.outcome is Outcome.UNKNOWN
    assert decision.why == "time"
    assert decision.part.before > 0
