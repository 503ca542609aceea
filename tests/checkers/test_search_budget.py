"""What a search may spend: the engine's clock, one partition's time, one deadline for all."""

from __future__ import annotations

import pickle
import time

from shaketable.harness.contracts.plugins import CheckContext, Promises, SearchBudget


def context(budget: SearchBudget, clock=None) -> CheckContext:
    return CheckContext((), {}, Promises(), search=budget, clock_unix_s=clock)


def test_time_is_counted_from_the_begin_of_each_partition() -> None:
    now = [1000.0]
    budget = context(SearchBudget(time_s=5), lambda: now[0])
    first = budget.begin_search()
    now[0] += 4.9
    second = budget.begin_search()
    assert not first()
    now[0] += 0.2
    assert (first(), second()) == (True, False)


def test_the_deadline_ends_every_partition() -> None:
    now = [1000.0]
    budget = context(SearchBudget(time_s=60, deadline_unix_s=1005.0), lambda: now[0])
    is_over = budget.begin_search()
    now[0] = 1004.9
    assert not is_over()
    now[0] = 1005.0
    assert is_over()
    assert budget.begin_search()(), "what begins after the deadline is over at once"


def test_without_a_clock_time_never_runs_out() -> None:
    assert not context(SearchBudget(time_s=0, deadline_unix_s=0)).begin_search()()


def test_a_context_with_a_clock_can_be_sent_elsewhere() -> None:
    there = pickle.loads(pickle.dumps(context(SearchBudget(time_s=0), time.time)))
    assert there.begin_search()()
