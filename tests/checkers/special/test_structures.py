"""Stacks, priority queues, deques, semaphores and sets, judged as brute force judges them.

A sample; tests/soaks/structures.py judges tens of thousands.
"""

from __future__ import annotations

from collections import Counter

import pytest

from shaketable.checkers.api import Event, Operation, Outcome, check
from tests.support.structure_fuzz import STRUCTURES, examine, examine_middle

SMALL, MIDDLE = 250, 10


@pytest.mark.parametrize("model", STRUCTURES)
def test_brute_force_says_the_same(model):
    seen: Counter[str] = Counter()
    for seed in range(SMALL):
        seen.update(examine(model, 7_000_000 + seed))
    assert seen["valid"] > SMALL / 4
    assert seen["invalid"] > SMALL / 10


@pytest.mark.parametrize("model", STRUCTURES)
def test_the_search_says_the_same_of_larger_ones(model):
    for seed in range(MIDDLE):
        examine_middle(model, 7_000_000 + seed)


def at_once(*operations: tuple[str, int | None]) -> list[Operation]:
    """Return operations one after the other: (f, input or output)."""
    found = []
    for n, (f, value) in enumerate(operations):
        is_put = f.startswith(("push", "insert"))
        found.append(
            Operation(
                0, f, 10 * n, 10 * n + 5,
                input=value if is_put else None, output=None if is_put else value,
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("model", "initial", "operations"),
    [
        ("stack", "[1, 2]", [("pop", 2), ("push", 3), ("pop", 3), ("pop", 1), ("pop", None)]),
        ("deque", "[1, 2]", [("pop-front", 1), ("pop-back", 2), ("peek-back", None)]),
        ("priority-queue", "[5, 1]", [("poll", 5), ("insert", 3), ("poll", 3), ("poll", 1)]),
        ("min-priority-queue", "[5, 1]", [("poll", 1), ("insert", 7), ("poll", 5), ("peek", 7)]),
    ],
)
def test_what_is_inside_at_first_is_taken(model, initial, operations):
    assert check(at_once(*operations), model, initial=initial).outcome is Outcome.VALID
    assert check(at_once(*operations), model).outcome is Outcome.INVALID


def test_a_semaphore_may_have_a_limit():
    asked = [("release", 1), ("release", 0), ("acquire", 1), ("acquire", 1), ("acquire", 0)]
    history = at_once(*asked)
    assert check(history, "semaphore", initial="[1, 2]").outcome is Outcome.VALID
    assert check(history, "semaphore", initial=1).outcome is Outcome.INVALID


def test_a_deep_stack_with_an_error_is_explained():
    """The two operations that are out of order are found among thousands."""
    pushed = [("push", n) for n in range(3000)]
    popped = [("pop", n) for n in range(2999, -1, -1)]
    assert check(at_once(*pushed, *popped)).outcome is Outcome.VALID
    popped[1000], popped[1001] = popped[1001], popped[1000]
    verdict = check(at_once(*pushed, *popped))
    assert verdict.outcome is Outcome.INVALID
    assert "had put another on top of it" in verdict.findings[0].message


def test_a_stack_that_few_clients_fill_with_one_value_needs_no_search():
    """Orders of concurrent pushes multiply; the sets of bits of `words` do not."""
    events = []
    for n in range(60):
        events += [Event(p, "invoke", "push", (n + p) % 2) for p in range(3)]
        events += [Event(p, "ok", "push", (n + p) % 2) for p in range(3)]
    for n in range(180):
        events += [Event(0, "invoke", "pop"), Event(0, "ok", "pop", n % 2)]
    verdict = check(events)
    assert verdict.outcome is not Outcome.UNKNOWN
    assert "by_words" in verdict.counts


@pytest.mark.parametrize(
    ("events", "model"),
    [
        ([("push", 1), ("pop", None)], "stack"),
        ([("push-front", 1), ("pop-back", None)], "deque"),
        ([("insert", 1), ("poll", None)], "priority-queue"),
        ([("add", 1), ("contains", 1)], "membership-set"),
        ([("add", 1), ("count", 1)], "multiset"),
    ],
)
def test_the_operations_tell_the_model(events, model):
    history = [Operation(0, f, n, n + 1, input=value, output=1 if f in ("contains", "count") else
                         1 if f.startswith(("p", "poll")) and value is None else None)
               for n, (f, value) in enumerate(events)]  # fmt: skip
    verdict = check(history)
    assert f"linearizable as {model}" in verdict.summary
