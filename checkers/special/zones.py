"""Registers whose written values are unique: decided by zones, without a search.

In any linearization all operations on one value, its write and the reads of it, are consecutive.
Let f be the earliest return among them and s the latest call. If f of one value is before s' of
another, some operation on the first value returned before some operation on the second was called,
so the first value comes before the second. A history is linearizable iff every value read was
written (or is the first one), no read returned before its write was called, and no two values
must each come before the other: f < s' and f' < s.

In terms of forward zones (f < s) and backward zones (s <= f): no two forward zones overlap, and
no backward zone lies inside a forward one. The first value was written before all else. An
indeterminate write that was never read can be left out; one that was read never returns. At equal
times calls come before returns, so only a strictly earlier return precedes a call.

All of it is sorting: O(n log n) at any concurrency.

Source: Gibbons & Korach 1997, Testing shared memories, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import NEVER, Access, Bools, Family, Ints, Problem
from shaketable.checkers.special.decision import Accusation, Decision

METHOD = "zones"
BEFORE_ALL = int(np.iinfo(np.int64).min)
NO_ROW = -1
OPERATION_BYTES = 125
"""What the passes hold at a time for each operation, at the most (measured)."""


@dataclass(frozen=True, slots=True)
class _Zones:
    """For each value that was written or read: its zone, and the rows that bound it.

    `write`, `first_return` and `last_call` are rows of the problem, NO_ROW for the write of the
    first value.
    """

    first: Ints  # f: the earliest return
    last: Ints  # s: the latest call
    write: Ints
    first_return: Ints
    last_call: Ints


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide a register's history; None if a value is written twice, or there is a cas.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    if problem.family is not Family.VALUE:
        return None
    limits.require_memory(OPERATION_BYTES * len(problem.kind))
    code = problem.kinds.code[problem.kind]
    is_read, is_write = code == Access.READ, code == Access.WRITE
    if not (is_read | is_write).all():
        return None
    value = np.where(is_read, problem.kinds.a[problem.kind], problem.kinds.b[problem.kind])
    writes = np.flatnonzero(is_write)
    count = np.bincount(value[writes], minlength=problem.values)
    count[problem.initial] += 1
    if count.max(initial=0) > 1:
        return None
    writer = np.full(problem.values, NO_ROW, dtype=np.int64)
    writer[value[writes]] = writes
    limits.check_time()
    return Decision(METHOD, _accusation(problem, value, is_read, writer, count == 1, limits))


def _accusation(
    problem: Problem, value: Ints, is_read: Bools, writer: Ints, exists: Bools, limits: Limits
) -> Accusation | None:
    reads = np.flatnonzero(is_read)
    nowhere = reads[~exists[value[reads]]]
    if len(nowhere):
        return _accuse(problem, [nowhere[0]], "{0} returned what no client ever wrote")
    known = reads[writer[value[reads]] != NO_ROW]
    early = known[problem.return_ns[known] < problem.call_ns[writer[value[known]]]]
    if len(early):
        rows = [early[0], writer[value[early[0]]]]
        return _accuse(problem, rows, "{0} had returned before {1} was called")
    zones = _zones(problem, value, is_read, writer)
    limits.check_time()
    pair = _overlap(zones)
    return None if pair is None else _accuse_pair(problem, zones, *pair)


def _zones(problem: Problem, value: Ints, is_read: Bools, writer: Ints) -> _Zones:
    """Return the zones of all values; indeterminate writes that were never read are left out."""
    is_seen = np.zeros(problem.values, dtype=np.bool_)
    is_seen[value[is_read]] = True
    keep = np.flatnonzero(is_read | (problem.return_ns != NEVER) | is_seen[value])
    order = keep[np.argsort(value[keep], kind="stable")]
    of = value[order]
    begins = np.flatnonzero(np.concatenate(([True], of[1:] != of[:-1])))[: len(of)]
    values = of[begins]
    returns, calls = problem.return_ns[order], problem.call_ns[order]
    first = np.minimum.reduceat(returns, begins) if len(of) else returns
    last = np.maximum.reduceat(calls, begins) if len(of) else calls
    group = np.cumsum(np.concatenate(([True], of[1:] != of[:-1])))[: len(of)] - 1
    first_return, last_call = np.empty_like(first), np.empty_like(last)
    for rows, hits in ((first_return, returns == first[group]), (last_call, calls == last[group])):
        rows[group[hits]] = order[hits]
    first = np.where(values == problem.initial, BEFORE_ALL, first)
    first_return = np.where(values == problem.initial, NO_ROW, first_return)
    return _Zones(first, last, writer[values], first_return, last_call)


def _overlap(zones: _Zones) -> tuple[int, int] | None:
    """Return two values that must each come before the other, None if there are none."""
    forward = np.flatnonzero(zones.first < zones.last)
    if not len(forward):
        return None
    forward = forward[np.argsort(zones.first[forward], kind="stable")]
    first, last = zones.first[forward], zones.last[forward]
    overlapping = np.flatnonzero(first[1:] < last[:-1])  # if any overlap, two neighbours do
    if len(overlapping):
        return int(forward[overlapping[0]]), int(forward[overlapping[0] + 1])
    backward = np.flatnonzero(zones.first >= zones.last)
    at = np.searchsorted(first, zones.last[backward], side="left") - 1
    inside = (at >= 0) & (zones.first[backward] < last[np.maximum(at, 0)])
    if not inside.any():
        return None
    which = int(np.flatnonzero(inside)[0])
    return int(forward[at[which]]), int(backward[which])


def _accuse_pair(problem: Problem, zones: _Zones, one: int, other: int) -> Accusation:
    """Accuse the operations that show that each of two values must come before the other."""
    names: list[int] = []
    parts = []
    for before, after in ((one, other), (other, one)):
        over, called = int(zones.first_return[before]), int(zones.last_call[after])
        if over == NO_ROW:
            parts.append(f"{_name(names, called)} came after the first value was there")
        else:
            parts.append(f"{_name(names, over)} was over before {_name(names, called)} began")
    writes = [int(zones.write[zone]) for zone in (one, other) if zones.write[zone] != NO_ROW]
    why = f"{' and '.join(parts)}, so each of the two values must come before the other"
    return _accuse(problem, [*names, *(row for row in writes if row not in names)], why)


def _name(names: list[int], row: int) -> str:
    """Return the placeholder of a row, which is added to `names` if it is not among them."""
    if row not in names:
        names.append(row)
    return f"{{{names.index(row)}}}"


def _accuse(problem: Problem, rows: list[int], why: str) -> Accusation:
    return Accusation(tuple(int(problem.op[row]) for row in rows), why)
