"""Deques, and queues with peeks: refuted without a search where a part of them shows enough.

Leaving out all other values of a linearizable history leaves a linearizable one. What remains is

- a stack, of values that were put in at one end and taken out there, or never: decided by what can
  have
  been at the bottom (checkers.special.stacks);
- a queue, of values that were put in at one end and taken out at the other, or never: none may have
  been shown before one that was certainly put in earlier, and was still there.

Besides, no answer that nothing was there is given while some value was certainly inside, and none
shows a value that was never put in, or taken by another. Only histories of unique values are
looked at. That none of this is found proves nothing: the search decides.

Source: Lee & Mathur 2025 (arXiv 2410.04581) for stacks; Henzinger, Sezgin & Vafeiadis 2013 for
queues.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import NEVER, Ints, Problem
from shaketable.checkers.special.decision import Accusation, Decision
from shaketable.checkers.special.stacks import smallest_stuck, stuck
from shaketable.checkers.special.value_spans import (
    NO_ROW,
    OPERATION_BYTES,
    Core,
    Roles,
    Spans,
    accused,
    load,
    taken,
    wrong_empty,
)

METHOD = "ends"
FRONT, BACK = 0, 1
NO_END = -1
ROLES = Roles(put=0, take=1, see=2)


@dataclass(frozen=True, slots=True)
class Ends:
    """What the codes of a model's kinds (names in sorted order) do, and at which end."""

    role: tuple[int, ...]
    end: tuple[int, ...]


DEQUE = Ends(role=(2, 2, 1, 1, 0, 0), end=(BACK, FRONT) * 3)
"""peek-back, peek-front, pop-back, pop-front, push-back, push-front."""
QUEUE = Ends(role=(1, 0, 2), end=(FRONT, BACK, FRONT))
"""dequeue, enqueue, peek."""


def refute_deque(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Find what no deque allows; None if nothing was found.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    return _refute(problem, DEQUE, limits)


def refute_queue(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Find what no FIFO queue with peeks allows; None if nothing was found."""
    return _refute(problem, QUEUE, limits)


def _refute(problem: Problem, ends: Ends, limits: Limits) -> Decision | None:
    limits.require_memory(OPERATION_BYTES * len(problem.kind))
    kinds = replace(problem.kinds, code=np.array(ends.role, np.int64)[problem.kinds.code])
    spans = load(replace(problem, kinds=kinds), ROLES)
    limits.check_time()
    if spans is None:
        return None
    if isinstance(spans, Accusation):
        return Decision(METHOD, spans)
    end_of = np.append(np.array(ends.end, np.int64)[problem.kinds.code][problem.kind], NO_END)
    core = _core(spans, end_of, limits)
    return None if core is None else Decision(METHOD, accused(spans, core))


def _core(spans: Spans, end_of: Ints, limits: Limits) -> Core | None:
    """Find operations that have no order; `end_of` is by row, and NO_END for no row."""
    known = np.flatnonzero((spans.put != NO_ROW) & (spans.take != NO_ROW))
    gone = spans
    if len(spans.unknown_takes):  # they may have taken any value that is left
        left = np.flatnonzero(spans.take == NO_ROW)
        gone = taken(spans, left, int(spans.unknown_takes[0]))
    else:
        known = np.flatnonzero(spans.put != NO_ROW)
    empty = wrong_empty(gone, "inside")
    if empty is not None:
        return empty
    put_end, take_end = end_of[spans.put[known]], end_of[spans.take[known]]
    for end in (FRONT, BACK):
        mine = known[put_end == end]
        of_take = take_end[put_end == end]
        same = mine[(of_take == end) | (of_take == NO_END)]
        across = mine[of_take != end]
        core = _overtaken(spans, across, end_of, 1 - end) or _stuck(
            spans, same, end_of, end, limits
        )
        if core is not None:
            return core
    return None


def _stuck(spans: Spans, values: Ints, end_of: Ints, end: int, limits: Limits) -> Core | None:
    """Find values of a stack at one end that have no order."""
    there = spans.of(values)
    at_end = end_of[there.seen.row] == end
    seen = replace(
        there.seen,
        row=there.seen.row[at_end],
        value=there.seen.value[at_end],
        call=there.seen.call[at_end],
        end=there.seen.end[at_end],
    )
    there = replace(there, seen=seen)
    found = stuck(there)
    if not len(found):
        return None
    values = values[smallest_stuck(there, found, limits)]
    rows = _last_first(spans, values)
    why = (
        f"{{0}} has no place: these {len(values)} values were put in at one end and never taken out"
        " at the other, and no order of a stack is theirs"
    )
    return Core(values, rows, why)


def _overtaken(spans: Spans, values: Ints, end_of: Ints, end: int) -> Core | None:
    """Find a value that was shown at an end before one that was put in earlier and still there."""
    if not len(values):
        return None
    shown = np.where(spans.take == NO_ROW, NEVER, spans.take_end)
    at_end = end_of[spans.seen.row] == end
    np.minimum.at(shown, spans.seen.value[at_end], spans.seen.end[at_end])
    gone = np.where(spans.take == NO_ROW, NEVER, spans.take_call)
    ahead = values[np.argsort(spans.put_end[values], kind="stable")]
    latest = np.maximum.accumulate(gone[ahead])
    count = np.searchsorted(spans.put_end[ahead], spans.put_call[values], side="right")
    is_bad = (count > 0) & (shown[values] <= latest[np.maximum(count - 1, 0)])
    is_bad &= shown[values] != NEVER
    if not is_bad.any():
        return None
    at = int(np.flatnonzero(is_bad)[0])
    late = int(values[at])
    first = int(ahead[np.argmax(gone[ahead[: count[at]]])])
    pair = np.unique(np.array((first, late), np.int64))
    showed = np.flatnonzero(at_end & (spans.seen.value == late))
    showed = showed[spans.seen.end[showed] == shown[late]]
    row = int(spans.seen.row[showed[0]]) if len(showed) else int(spans.take[late])
    if len(showed) and spans.event_of[1][row] > shown[late]:  # it saw the value before it was taken
        row = int(spans.take[late])
    named = [row, int(spans.put[first]), int(spans.put[late])]
    others = [each for each in spans.rows(pair) if each not in named]
    why = "{0} showed a value though {1} was over before {2} began, and its value was still there"
    return Core(pair, (*named, *others), why)


def _last_first(spans: Spans, values: Ints) -> tuple[int, ...]:
    """Return the rows of some values, first the one that returned last."""
    rows = spans.rows(values)
    end = spans.event_of[1]
    known = [row for row in rows if end[row] != NEVER]
    last = max(known, key=lambda row: int(end[row]))
    return (last, *[row for row in rows if row != last])
