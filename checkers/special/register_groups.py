"""Registers with names: those that no transaction uses together are decided by themselves.

Linearizability is local, so each group of registers that are connected by transactions is an object
of its own. A register whose transactions use no other one is an ordinary register: a transaction
reads it, writes it, or compares and sets it.

Source: Herlihy & Wing 1990 (locality); Gibbons & Korach 1997 for a register.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from shaketable.checkers.models.encoding import StepByKind
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.driver import search
from shaketable.checkers.search.problem import (
    NEVER,
    Access,
    Does,
    Family,
    Ints,
    Kinds,
    Problem,
    Vectors,
)
from shaketable.checkers.special import zones
from shaketable.checkers.special.decision import Decision
from shaketable.checkers.special.order_proof import memory_of
from shaketable.harness.contracts.verdict import Outcome

METHOD = "register-groups"
OPERATION_BYTES = 400
"""What the passes hold at a time for each operation, at the most."""
NO_GROUP = -1
"""Of a transaction that needs nothing and writes nothing."""


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide registers group by group; None if they are one group of several registers.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    assert isinstance(problem.step, StepByKind), "the problem is made by its model"
    limits.require_memory(OPERATION_BYTES * len(problem.kind))
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
        found = zones.decide(one, limits)
        if found is not None and found.accusation is not None:
            return replace(found, method=METHOD)
        if found is None:
            decided = search(one, is_over=limits.is_over, memory_bytes_max=memory_of(limits))
            if decided.outcome is not Outcome.VALID:
                return Decision(METHOD, part=decided.part, why=decided.why)
    return Decision(METHOD)


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
