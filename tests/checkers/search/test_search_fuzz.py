"""The search against an independent answer, on thousands of small random histories."""

from random import Random

import pytest
from search_problems import as_table, is_linearizable, never, random_register, register_problem

from shaketable.checkers.search import attempt, driver
from shaketable.checkers.search.driver import search
from shaketable.harness.contracts.verdict import Outcome

BYTES_MAX = 1 << 28
EACH = 600


@pytest.mark.parametrize("size_max", [6, 12, 18])
@pytest.mark.parametrize("is_table", [False, True])
def test_it_agrees_on_small_registers(size_max, is_table):
    _agree(range(size_max * 10_000, size_max * 10_000 + EACH), size_max, is_table=is_table)


@pytest.mark.parametrize(("stall", "width"), [(1, 1), (2, 2), (4, 4), (20, 2)])
def test_windows_tried_at_every_chance_refute_only_what_is_wrong(monkeypatch, stall, width):
    monkeypatch.setattr(driver, "STALL_NODES", stall)
    monkeypatch.setattr(driver, "BACK_EVENTS", 1 + stall % 3)
    monkeypatch.setattr(driver, "BACK_EVENTS_MAX", 2 * width)
    monkeypatch.setattr(driver, "EVENTS_FIRST", width)
    methods = _agree(range(stall * 7_000, stall * 7_000 + EACH), 16)
    assert "window" in methods


@pytest.mark.parametrize("counted_max", [0, 1])
def test_unknown_outcomes_that_stand_alone_are_bits(monkeypatch, counted_max):
    monkeypatch.setattr(attempt, "COUNTED_KINDS_MAX", counted_max)
    _agree(range(70_000, 70_000 + EACH), 12)
    _agree(range(80_000, 80_000 + EACH // 2), 12, is_table=True)


def _agree(seeds, size_max, *, is_table=False):
    """Check each seed's history; return by which methods the wrong ones were refuted."""
    outcomes, methods = set(), set()
    for seed in seeds:
        operations, values = random_register(Random(seed), size_max)
        problem = register_problem(operations, values)
        expected = Outcome.VALID if is_linearizable(problem) else Outcome.INVALID
        found = search(
            as_table(problem) if is_table else problem, is_over=never, memory_bytes_max=BYTES_MAX
        )
        assert found.outcome is expected, f"seed {seed}"
        outcomes.add(found.outcome)
        if found.part:
            methods.add(found.part.method)
    assert outcomes == {Outcome.VALID, Outcome.INVALID}
    return methods
