"""A budget of time is for judging: what is compiled meanwhile does not count."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from shaketable.checkers.engine.judge import for_other_processes, with_clock
from shaketable.harness import budget_clock
from shaketable.harness.budget_clock import budget_clock_s, is_compiling, uncounted
from shaketable.harness.compiled import compiled
from shaketable.harness.contracts.plugins import CheckContext, Promises, SearchBudget
from tests.support.checker_histories import job


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(budget_clock, "time", clock)
    return clock


def test_it_stands_still_in_what_is_not_counted(clock: Clock) -> None:
    began_s = budget_clock_s()
    clock.now_s += 1
    with uncounted():
        clock.now_s += 60
        with uncounted():  # a kernel that calls another one
            clock.now_s += 30
        clock.now_s += 10
    clock.now_s += 2
    assert budget_clock_s() - began_s == 3


def test_time_counts_again_after_an_error(clock: Clock) -> None:
    began_s = budget_clock_s()

    def interrupted() -> None:
        with uncounted():
            clock.now_s += 60
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    clock.now_s += 2
    assert budget_clock_s() - began_s == 2


def test_what_takes_longer_than_loading_is_compiled(clock: Clock) -> None:
    assert not is_compiling()
    with uncounted():
        clock.now_s += 0.9
        assert not is_compiling()
        with uncounted():
            clock.now_s += 0.2
            assert is_compiling()
        assert is_compiling()
    assert not is_compiling()


def test_compiling_a_kernel_is_not_counted() -> None:
    names: dict[str, object] = {}
    exec("def added(first, second):\n    return first + second\n", names)  # in no file: not cached
    kernel = compiled(names["added"])  # type: ignore[arg-type]
    real_s, counted_s = time.time(), budget_clock_s()
    assert kernel(1, 2) == 3
    passed_s, counted_s = time.time() - real_s, budget_clock_s() - counted_s
    assert counted_s < passed_s / 2


def test_a_deadline_is_that_of_processes_that_compiled_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_clock, "_uncounted_s", 0.0)
    with uncounted():
        clock.now_s += 60
    ours = CheckContext(
        (), {}, Promises(),
        search=SearchBudget(deadline_unix_s=budget_clock_s() + 10), clock_unix_s=budget_clock_s,
    )  # fmt: skip
    theirs = for_other_processes(ours)
    assert theirs.search.deadline_unix_s == clock.now_s + 10
    of_a_test = replace(ours, clock_unix_s=lambda: 0.0)
    assert for_other_processes(of_a_test) is of_a_test


def test_checkers_get_this_clock(tmp_path: Path) -> None:
    assert with_clock(job(tmp_path, [], [])).context.clock_unix_s is budget_clock_s
