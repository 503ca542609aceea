"""Registers decided without a search: one with unique values, and several with names.

Where written values are unique, zones decide. In any linearization all operations on one value, its
write and the reads of it, are consecutive. Let f be the earliest return among them and s the latest
call. If f of one value is before s' of another, some operation on the first value returned before
some operation on the second was called, so the first value comes before the second. A history is
linearizable iff every value read was written (or is the first one), no read returned before its
write was called, and no two values must each come before the other: f < s' and f' < s.

In terms of forward zones (f < s) and backward zones (s <= f): no two forward zones overlap, and
no backward zone lies inside a forward one. The first value was written before all else. An
indeterminate write that was never read can be left out; one that was read never returns. At equal
times calls come before returns, so only a strictly earlier return precedes a call.

All of it is sorting: O(n log n) at any concurrency.

Of registers with names, those that no transaction uses together are decided by themselves.
Linearizability is local, so each group of registers that are connected by transactions is an object
of its own. A register whose transactions use no other one is an ordinary register: a transaction
reads it, writes it, or compares and sets it.

Source: Gibbons & Korach 1997, Testing shared memories, section 4; Herlihy & Wing 1990 (locality).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from shaketable.checkers.models.encoding import StepByKind
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.driver import search
from shaketable.checkers.search.problem import (
    NEVER,
    Access,
    Bools,
    Does,
    Family,
    Ints,
    Kinds,
    Problem,
    Vectors,
)
from shaketable.checkers.special.decision import Accusation, Decision, memory_of
from shaketable.harness.contracts.verdict import Outcome

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


# Registers with names.

GROUPS_METHOD = "register-groups"
GROUPED_OPERATION_BYTES = 400
"""What the passes hold at a time for each operation, at the most."""
NO_GROUP = -1
"""Of a transaction that needs nothing and writes nothing."""


def decide_groups(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide registers group by group; None if they are one group of several registers.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    assert isinstance(problem.step, StepByKind), "the problem is made by its model"
    limits.require_memory(GROUPED_OPERATION_BYTES * len(problem.kind))
    vectors = problem.step.vectors(problem.start)
    if (vectors.change[:, 0] == Does.NEVER).any():
        return None
    group_of_entry = _groups(vectors)
    single = np.bincount(group_of_entry, minlength=vectors.entries) == 1
    if not single.any() and len(np.unique(group_of_entry)) <= 1:
        return None
    for group, rows in _rows_of_groups(problem, vectors, group_of_entry):
        limits.check_time()
        one = _register(problem, vectors, group, rows) if single[group] else _only(problem, rows)
        found = decide(one, limits)
        if found is not None and found.accusation is not None:
            return replace(found, method=GROUPS_METHOD)
        if found is None:
            decided = search(one, is_over=limits.is_over, memory_bytes_max=memory_of(limits))
            if decided.outcome is not Outcome.VALID:
                return Decision(GROUPS_METHOD, part=decided.part, why=decided.why)
    return Decision(GROUPS_METHOD)


def _groups(vectors: Vectors) -> Ints:
    """Return for each entry the least one that transactions connect it with (union-find)."""
    parent = list(range(vectors.entries))

    def root(entry: int) -> int:
        while parent[entry] != entry:
            parent[entry] = parent[parent[entry]]
            entry = parent[entry]
        return entry

    entries, first = vectors.change[:, 1].tolist(), vectors.first.tolist()
    for start, stop in pairwise(first):
        for entry in entries[start + 1 : stop]:
            one, other = sorted((root(entries[start]), root(entry)))
            parent[other] = one
    return np.array([root(entry) for entry in range(vectors.entries)], np.int64)


def _rows_of_groups(
    problem: Problem, vectors: Vectors, group_of_entry: Ints
) -> Iterator[tuple[int, Ints]]:
    """Yield each group with the operations on it, in the order of the problem."""
    has_any = vectors.first[1:] > vectors.first[:-1]
    group_of_kind = np.full(len(has_any), NO_GROUP, np.int64)
    group_of_kind[has_any] = group_of_entry[vectors.change[vectors.first[:-1][has_any], 1]]
    group = group_of_kind[problem.kind]
    order = np.argsort(group, kind="stable")
    bounds = np.flatnonzero(np.diff(group[order], prepend=NO_GROUP - 1, append=NO_GROUP - 1))
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if group[order[start]] != NO_GROUP:
            yield int(group[order[start]]), order[start:stop]


def _only(problem: Problem, rows: Ints) -> Problem:
    """Return the problem of some operations alone, with the kinds that they have."""
    used, kind = np.unique(problem.kind[rows], return_inverse=True)
    assert isinstance(problem.step, StepByKind), "the problem is made by its model"
    kinds = problem.kinds
    return replace(
        problem,
        kind=kind.astype(np.int32),
        kinds=Kinds(
            kinds.code[used], kinds.a[used], kinds.b[used], kinds.observes[used],
            kinds.overwrites[used],
        ),
        step=problem.step.only(used.astype(np.int64)),
        call_ns=problem.call_ns[rows],
        return_ns=problem.return_ns[rows],
        op=problem.op[rows],
    )  # fmt: skip


def _register(problem: Problem, vectors: Vectors, entry: int, rows: Ints) -> Problem:
    """Return the transactions on one register as a problem about one value."""
    used = np.unique(problem.kind[rows]).astype(np.int64)
    access, a, b = _accesses(vectors, used)
    observes = access == Access.READ
    # An indeterminate one that changes nothing need not happen.
    observing = used[observes]
    rows = rows[(problem.return_ns[rows] != NEVER) | ~np.isin(problem.kind[rows], observing)]
    left = np.isin(used, problem.kind[rows])
    one = _only(problem, rows)
    seen = vectors.seen[: vectors.seen_start[1]]
    initial = int(seen[seen[:, 0] == entry, 1].sum())  # one row at the most
    access, a, b, observes = access[left], a[left], b[left], observes[left]
    values = np.unique(np.concatenate((a, b, [initial])))
    kinds = Kinds(
        access, np.searchsorted(values, a), np.searchsorted(values, b), observes,
        access == Access.WRITE,
    )  # fmt: skip
    number = int(np.searchsorted(values, initial))
    return replace(one, family=Family.VALUE, initial=number, values=len(values), kinds=kinds)


def _accesses(vectors: Vectors, kinds: Ints) -> tuple[Ints, Ints, Ints]:
    """Return what some kinds do to their one register: codes of Access, and their values."""
    access, a, b = (np.zeros(len(kinds), np.int64) for _ in range(3))
    for n, kind in enumerate(kinds.tolist()):
        changes = vectors.change[vectors.first[kind] : vectors.first[kind + 1]].tolist()
        does = {does: value for does, _, value in changes}
        if Does.SET not in does or does[Does.SET] == does.get(Does.EXPECT):
            access[n], a[n] = Access.READ, does[Does.EXPECT]
        elif Does.EXPECT in does:
            access[n], a[n], b[n] = Access.CAS, does[Does.EXPECT], does[Does.SET]
        else:
            access[n], b[n] = Access.WRITE, does[Does.SET]
    return access, a, b
