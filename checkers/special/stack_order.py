"""Stacks with unique values: decided by what can have been at the bottom, without a search.

A history is linearizable iff all values can be taken away, one after the other, each of which can
have been at the bottom of what is left (checkers.kernels.stack_bottoms), and every answer that the
stack was empty has a moment at which no value was certainly inside. O(n log n) at any concurrency.

What is stuck has no order by itself. It is made small: values are left out as long as the rest is
stuck.

Source: Lee & Mathur 2025 (arXiv 2410.04581), section 5; Abdulla et al. 2025 (arXiv 2509.17795).
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.stack_bottoms import DONE, FACTS, NONE, Stacked, take_away_all
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import Ints, Problem
from shaketable.checkers.special.decision import Decision
from shaketable.checkers.special.value_spans import (
    NAMED_MAX,
    NO_ROW,
    Core,
    Roles,
    Spans,
    decide_spans,
    wrong_empty,
)

METHOD = "bottoms"
ROLES = Roles(put=2, take=1, see=0)
"""Places of push, pop and peek among the names in sorted order."""


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide a stack's history; None if values repeat, or indeterminate pops leave it open.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    return decide_spans(METHOD, problem, ROLES, _conflict, _heights, limits)


def _heights(spans: Spans) -> tuple[Ints, Ints]:
    """Let a value hide those whose pushes were over before its own was called."""
    return spans.put_end, spans.put_call


def _conflict(spans: Spans, limits: Limits) -> Core | None:
    empty = wrong_empty(spans, "in the stack")
    if empty is not None:
        return empty
    limits.check_time()
    values = stuck(spans)
    if not len(values):
        return None
    values = smallest_stuck(spans, values, limits)
    return _explained(spans, values)


def stuck(spans: Spans) -> Ints:
    """Return the values that cannot be taken away; those of any of them alone are stuck as well."""
    # Where all operations of a value have a moment in common, it can be pushed and popped there.
    inside = np.flatnonzero(spans.put_end < spans.take_call)
    if len(inside) < 2:
        return np.empty(0, np.int64)
    stacked = _stacked(spans.of(inside))
    take_away_all(stacked)
    return np.asarray(inside[stacked.left > 0])


def _stacked(spans: Spans) -> Stacked:
    """Return the arrays of the kernel, before anything was done."""
    count = len(spans.put)
    number = np.arange(count)
    value = np.concatenate((number, number, spans.seen.value))
    call = np.concatenate((spans.put_call, spans.take_call, spans.seen.call))
    end = np.concatenate((spans.put_end, spans.take_end, spans.seen.end))
    # Only the cells at which something starts or ends differ from those before them.
    times = np.unique(np.concatenate((call, end)))
    call, end = np.searchsorted(times, call), np.searchsorted(times, end)
    inside = np.stack((end[:count], call[count : 2 * count]), axis=1)
    cells = len(times)
    order = np.argsort(call, kind="stable")
    value, call, end = value[order], call[order], end[order]
    by_value = np.lexsort((call, value))
    place = np.empty(len(order), np.int64)
    place[by_value] = np.arange(len(order))
    leaves = _power_of_two(cells)
    least = _tree_over(np.where(np.arange(leaves) < cells, 0, DONE), np.minimum)
    return Stacked(
        inside=inside.astype(np.int64),
        op=np.stack((value, call, end, place), axis=1).astype(np.int64),
        by_value=by_value.astype(np.int64),
        first_of=np.searchsorted(value[by_value], np.arange(count + 1)).astype(np.int64),
        started=np.searchsorted(call, np.arange(cells), side="right").astype(np.int64),
        least=least,
        added=np.zeros(2 * leaves, np.int64),
        numbers=np.zeros(2 * leaves, np.int64),
        latest=_tree_of_latest(end),
        latest_of=_tree_of_latest(end[by_value]),
        left=np.bincount(value, minlength=count).astype(np.int64),
        cleared=np.empty(count, np.int64),
        alone=np.full(count, NONE, np.int64),
        alone_before=np.full(leaves, NONE, np.int64),
        at=np.zeros(FACTS, np.int64),
    )


def _power_of_two(count: int) -> int:
    return 1 << max(1, (count - 1).bit_length())


def _tree_of_latest(end: Ints) -> Ints:
    leaves = np.full(_power_of_two(len(end)), NONE, np.int64)
    leaves[: len(end)] = end
    return _tree_over(leaves, np.maximum)


def _tree_over(leaves: Ints, join: np.ufunc) -> Ints:
    """Return a tree over a power of two of leaves: the root at 1, leaf n at their number + n."""
    tree = np.empty(2 * len(leaves), np.int64)
    tree[0], tree[len(leaves) :] = NONE, leaves
    level = len(leaves)
    while level > 1:
        below, level = tree[level : 2 * level], level // 2
        tree[level : 2 * level] = join(below[::2], below[1::2])
    return tree


def smallest_stuck(spans: Spans, values: Ints, limits: Limits) -> Ints:
    """Return stuck values of which none can be left out: without any the others are not stuck.

    In the order of their pushes, the first values up to some place are stuck; the one at that
    place is needed. It is kept, and of those before it again the fewest first ones are added.
    """
    here = spans.of(values)
    pool = np.argsort(here.put_call, kind="stable")
    kept = np.empty(0, np.int64)
    while not len(kept) or not len(_stuck_among(here, kept)):
        low, high = 0, len(pool)  # the kept ones and the first `low` are not stuck; `high` are
        while high - low > 1:
            limits.check_time()
            middle = (low + high) // 2
            left = _stuck_among(here, np.concatenate((kept, pool[:middle])))
            if not len(left):
                low = middle
                continue
            # What is stuck is so by itself, so what is not is not needed.
            is_left = np.isin(pool[:middle], left)
            low, pool = int(is_left[:low].sum()), pool[:middle][is_left]
            high = len(pool)
        kept = np.append(kept, pool[high - 1])
        pool = pool[: high - 1]
    return np.asarray(values[np.sort(kept)])


def _stuck_among(spans: Spans, values: Ints) -> Ints:
    some = np.sort(values)
    return np.asarray(some[stuck(spans.of(some))])


def _explained(spans: Spans, values: Ints) -> Core:
    """Say why some values are stuck; the operation that returned last is the first one named."""
    rows = spans.rows(values)
    end = spans.event_of[1]
    rows.sort(key=lambda row: -int(end[row]))
    two = _one_above_another(spans, values)
    if two is not None:
        return two
    known = [row for row in rows if end[row] < spans.cells] or rows
    ordered = [known[0], *[row for row in rows if row != known[0]]]
    listed = ", ".join(f"{{{n}}}" for n in range(1, min(len(ordered), NAMED_MAX)))
    why = (
        f"{{0}} has no place: with {listed} the stack is never empty, and none of these"
        f" {len(values)} values can have been at its bottom all the time"
    )
    return Core(values, tuple(ordered), why)


def _one_above_another(spans: Spans, values: Ints) -> Core | None:
    """Return the plain case: a value was taken while another was certainly on top of it."""
    if len(values) != 2 or np.isin(spans.seen.value, values).any():
        return None
    below, above = values.tolist()
    if spans.put_end[below] > spans.put_call[above]:
        below, above = above, below
    is_plain = (
        spans.put_end[below] <= spans.put_call[above]
        and spans.put_end[above] <= spans.take_call[below]
        and spans.take_end[below] <= spans.take_call[above]
    )
    if not is_plain or NO_ROW in (spans.put[above], spans.take[below]):
        return None
    ops = [int(spans.take[below]), int(spans.put[above])]
    why = "{0} took a value though {1} had put another on top of it"
    if spans.put[below] != NO_ROW:
        why += f", after {{{len(ops)}}} was over"
        ops.append(int(spans.put[below]))
    if spans.take[above] == NO_ROW:
        why += ", and no client had taken that one"
    else:
        why += f", and {{{len(ops)}}} began only afterwards"
        ops.append(int(spans.take[above]))
    return Core(values, tuple(ops), why)
