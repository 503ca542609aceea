"""Follows a failing part as far as it can be followed, so that its end can be explained.

The search gives up on a way as soon as it knows that it leads nowhere, often long before an
answer contradicts the state: a write may stand there that makes a later read impossible. Who
reads the refutation wants to see that write done, and the read fail, though it may have returned
a little after what the search had to look at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkers.search.found import Part
from checkers.search.problem import NEVER, Problem, State

OPERATIONS_MAX = 200
"""Operations of the part that are tried, its last ones, and as many of those called after it."""
LOOKS_MAX = 1_000
"""Configurations that are looked at before the best so far is taken."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Operations of the part in an order that explains them, and who cannot come next.

    `steps` are (op id, state after it), `state` the last of these; `stuck` is the operation
    that returns next, and has no place. `operations` are the part's, and those that were called
    after it and before `stuck` returned; unknown outcomes left out.
    """

    steps: tuple[tuple[int, State], ...]
    state: State
    stuck: int
    operations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    op: int
    kind: int
    call_ns: int
    return_ns: int


def as_found(part: Part) -> Prefix:
    """Return the part's prefix as the search found it."""
    steps = tuple(part.prefix.steps())
    state = steps[-1][1] if steps else part.prefix_start
    return Prefix(steps, state, part.stuck, tuple(part.operations.tolist()))


def longest_prefix(part: Part, problem: Problem) -> Prefix:
    """Return the part's prefix, made longer by what can follow it.

    Operations that were called before the part begins may have taken effect before it: they
    are left as the search left them.
    """
    given = as_found(part)
    done = {op for op, _ in given.steps}
    candidates = [
        each
        for each in _candidates(part, problem)
        if each.op not in done
        and (not part.before or each.op == part.stuck or each.call_ns >= part.first_ns)
    ]
    if all(each.op != part.stuck for each in candidates):
        return given
    best = _follow(candidates, given.state, problem)
    placed = {op for op, _ in best}
    stuck = next((each for each in candidates if each.op not in placed), None)
    if stuck is None or stuck.return_ns == NEVER:
        return given  # what shows it lies farther away
    later = [
        each.op
        for each in sorted(candidates, key=lambda each: (each.call_ns, each.op))
        if part.last_ns < each.call_ns <= stuck.return_ns < NEVER and each.return_ns < NEVER
    ]
    state = best[-1][1] if best else given.state
    return Prefix((*given.steps, *best), state, stuck.op, (*given.operations, *later))


def _candidates(part: Part, problem: Problem) -> list[_Candidate]:
    ops = np.concatenate((part.operations, part.unknown, [part.stuck]))
    inside = np.flatnonzero(np.isin(problem.op, ops) & (problem.call_ns <= part.last_ns))
    later = np.flatnonzero(problem.call_ns > part.last_ns)
    inside = inside[np.argsort(problem.call_ns[inside], kind="stable")][-OPERATIONS_MAX:]
    later = later[np.argsort(problem.call_ns[later], kind="stable")][:OPERATIONS_MAX]
    rows = np.concatenate((inside, later))
    rows = rows[np.argsort(problem.return_ns[rows], kind="stable")]
    return [
        _Candidate(
            int(problem.op[row]), int(problem.kind[row]),
            int(problem.call_ns[row]), int(problem.return_ns[row]),
        )
        for row in rows.tolist()
    ]  # fmt: skip


def _follow(
    candidates: list[_Candidate], state: State, problem: Problem
) -> tuple[tuple[int, State], ...]:
    """Return the order that gets past the most returns, then places the most operations.

    One of unknown outcome that nothing needs is left out: it would only puzzle the reader.

    `candidates` are in the order of their returns, so the first that is left returns next.
    """
    everything = frozenset(range(len(candidates)))
    best: tuple[tuple[int, int, int], tuple[tuple[int, State], ...]] = ((-1, 0, 0), ())
    unknown = frozenset(n for n in everything if candidates[n].return_ns == NEVER)
    seen: set[tuple[frozenset[int], State]] = set()
    stack: list[tuple[frozenset[int], State, tuple[tuple[int, State], ...]]] = [
        (everything, state, ())
    ]
    while stack and len(seen) < LOOKS_MAX:
        left, state, order = stack.pop()
        if (left, state) in seen:
            continue
        seen.add((left, state))
        first = min(left, default=len(candidates))
        used = len(unknown - left)
        merit = (first, len(order) - used, -used)
        best = max(best, (merit, order), key=lambda each: each[0])
        end = candidates[first].return_ns if left else NEVER
        for n in sorted(left, reverse=True):
            if candidates[n].call_ns <= end:
                after = problem.step(state, candidates[n].kind)
                if after is not None:
                    stack.append((left - {n}, after, (*order, (candidates[n].op, after))))
    return best[1]
