"""Hypothesis finds the simplest choices from a known failure, the same each time."""

from __future__ import annotations

import pytest

from shaketable.system.sim.shrinking import (
    StopSearch,
    simplest_flags,
    simplest_numbers,
)


def test_what_is_needless_goes() -> None:
    assert simplest_flags(40, lambda flags: flags[3] and flags[-1]) == tuple(
        n in (3, 39) for n in range(40)
    )
    assert simplest_flags(5, lambda flags: True) == (False,) * 5
    assert simplest_flags(0, lambda flags: True) == ()


def test_numbers_become_as_small_as_they_can() -> None:
    found = simplest_numbers((50, 0, 1000, 1), lambda n: n[0] >= 5 and n[0] + n[2] >= 47)
    assert found[0] >= 5
    assert found[0] + found[2] == 47
    assert found[1] == found[3] == 0


def test_what_does_not_fail_again_stays_as_it_was() -> None:
    assert simplest_numbers((3, 1), lambda n: False) == (3, 1)


def test_the_search_asks_the_same_questions_each_time() -> None:
    def ask() -> list[tuple[bool, ...]]:
        asked: list[tuple[bool, ...]] = []

        def fails(flags: tuple[bool, ...]) -> bool:
            asked.append(flags)
            return sum(flags) >= 4 and flags[2]

        simplest_flags(16, fails)
        return asked

    assert ask() == ask()


def test_it_starts_from_what_is_known_and_needs_few_questions() -> None:
    asked: list[tuple[bool, ...]] = []

    def fails(flags: tuple[bool, ...]) -> bool:
        asked.append(flags)
        return all(flags[::8])

    simplest_flags(32, fails)
    assert asked[0] == (True,) * 32
    assert len(asked) < 100


def test_a_condition_can_leave_at_once() -> None:
    asked = 0

    def fails(flags: tuple[bool, ...]) -> bool:
        nonlocal asked
        asked += 1
        if asked == 5:
            raise StopSearch
        return flags[0]

    with pytest.raises(StopSearch):
        simplest_flags(30, fails)
    assert asked == 5
