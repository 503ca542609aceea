"""Priority queues with unique values: decided by what was certainly inside, without a search.

An answer that showed a value is right iff at some moment of it no value of a higher priority was
certainly inside: from the end of its insert to the start of its poll. An answer that the queue was
empty is right iff at some moment no value was. Nothing else is needed. O(n log n) at any
concurrency.

Source: Lee & Mathur 2025 (arXiv 2410.04581), section 6, as a minimum over intervals in place of a
sweep.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shaketable.checkers.kernels.cells import least_of_each, paint
from shaketable.checkers.models.encoding import StepByKind
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import Ints, Problem
from shaketable.checkers.special.decision import Decision
from shaketable.checkers.special.value_spans import (
    NO_ROW,
    Core,
    Roles,
    Spans,
    chain_core,
    cover,
    decide_spans,
    wrong_empty,
)

METHOD = "priorities"
ROLES = Roles(put=0, take=2, see=1)
"""Places of insert, poll and peek among the names in sorted order."""
NOTHING_INSIDE = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class Order:
    """Decides the histories of one kind of priority queue: the largest or the least value first."""

    largest_first: bool

    def decide(self, problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
        """Decide a history; None if values repeat, or indeterminate polls leave it open.

        Raises:
            MemorySpentError: it takes more memory than the limits allow.
            TimeSpentError: the time is over.
        """
        return decide_spans(METHOD, problem, ROLES, self._conflict, self._heights, limits)

    def _heights(self, spans: Spans) -> tuple[Ints, Ints]:
        """Let a value hide those of a lower priority."""
        rank = self._by_priority(spans)
        return rank, rank

    def _by_priority(self, spans: Spans) -> Ints:
        """Return each value's place from the lowest priority to the highest."""
        rank = _ranks(spans)
        return rank if self.largest_first else len(rank) - 1 - rank

    def _conflict(self, spans: Spans, limits: Limits) -> Core | None:
        empty = wrong_empty(spans, "in the queue")
        limits.check_time()
        return empty if empty is not None else self._overtaken(spans)

    def _overtaken(self, spans: Spans) -> Core | None:
        """Find an answer during which something of a higher priority was always inside."""
        rank = self._by_priority(spans)
        takes = np.flatnonzero(spans.take != NO_ROW)
        value = np.concatenate((takes, spans.seen.value))
        row = np.concatenate((spans.take[takes], spans.seen.row))
        call = np.concatenate((spans.take_call[takes], spans.seen.call))
        end = np.concatenate((spans.take_end[takes], spans.seen.end))
        inside = np.flatnonzero(spans.put_end < spans.take_call)
        if not len(row) or not len(inside):
            return None
        by = np.full(spans.cells, NO_ROW, np.int64)
        order = inside[np.argsort(-rank[inside], kind="stable")]
        paint(spans.put_end, spans.take_call, order, np.arange(spans.cells + 1), by)
        highest = np.where(by == NO_ROW, NOTHING_INSIDE, rank[by])
        least = np.empty(len(row), np.int64)
        least_of_each(highest, call, end, np.empty(2 * spans.cells, np.int64), least)
        wrong = np.flatnonzero(least > rank[value])
        if not len(wrong):
            return None
        at = int(wrong[np.argmin(end[wrong])])
        higher = inside[rank[inside] > rank[value[at]]]
        chain = cover(spans, higher, int(call[at]), int(end[at]))
        why = "{0} came too soon, something of a higher priority was in the queue all the time: "
        core = chain_core(spans, int(row[at]), chain, why)
        own = [each for each in spans.rows(value[at : at + 1]) if each not in core.ops]
        values = np.union1d(core.values, value[at : at + 1])
        return Core(values, (*core.ops, *own), core.why)


def _ranks(spans: Spans) -> Ints:
    """Return each value's place in ascending order: values may be any whole numbers."""
    step = spans.problem.step
    assert isinstance(step, StepByKind), "a priority queue's problem is made by its model"
    values = step.values(spans.number.tolist())
    order = sorted(range(len(values)), key=values.__getitem__)
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    return rank
