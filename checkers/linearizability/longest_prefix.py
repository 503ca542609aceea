"""Extends the linearizable prefix of a failing part as far as possible, to explain its end.

The search abandons a configuration as soon as it cannot lead to a linearization, often long before
an answer contradicts the state: a write may make a later read impossible. A reader of the
refutation wants to see that write applied and the read fail, even if the read returned a little
after the part that the search examined.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shaketable.checkers.search.problem import NEVER, Part, Problem, State, Witness

OPERATIONS_MAX = 200
"""Operations of the part that are tried, the last ones, and as many of those called after it."""
CONFIGURATIONS_MAX = 1_000
"""Configurations that are visited from one start before the best so far is taken."""
STARTS_MAX = 8
"""States at the part's start that are tried, besides the prefix that the search found."""

TRIMMED_MAX = 2_000
"""Length of an order from which superfluous indeterminate operations are still removed."""
REMOVALS_MAX = 50
"""Indeterminate operations whose removal is tried."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A linearization of operations of the part, and the operation that cannot come next.

    `steps` are (op id, state after it), `state` the last of these; `stuck` is the operation that
    returns next and cannot be linearized. `operations` are the part's, and those that were called
    after it and before `stuck` returned; without indeterminate ones.
    """

    steps: tuple[tuple[int, State], ...]
    state: State
    stuck: int
    operations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An operation that may be linearized; `must`: it has to be, in the part, before it returns."""

    op: int
    kind: int
    call_ns: int
    return_ns: int
    must: bool


@dataclass(frozen=True, slots=True)
class _Path:
    """Steps, and the index of the first candidate that must be linearized and was not."""

    steps: tuple[tuple[int, State], ...]
    state: State
    stuck: int


def as_found(part: Part) -> Prefix:
    """Return the part's prefix as the search found it."""
    steps = tuple(part.prefix.steps())
    state = steps[-1][1] if steps else part.prefix_start
    return Prefix(steps, state, part.stuck, tuple(part.operations.tolist()))


def longest_prefix(part: Part, problem: Problem) -> Prefix:
    """Return the longest prefix: the search's, extended, or one from another start.

    Operations that were called before a window may have taken effect before it. If no prefix
    reaches as far as the window was proven to be passable, the search's is returned.
    """
    given = as_found(part)
    candidates = _candidates(part, problem)
    places = {each.op: place for place, each in enumerate(candidates)}
    if part.stuck not in places:
        return given
    path = _follow(candidates, given.steps, given.state, problem)
    for state in part.states[:STARTS_MAX]:
        other = _follow(candidates, (), state, problem)
        path = other if other.stuck > path.stuck else path
    if path.stuck == len(candidates):
        return given  # the contradiction lies outside of what is tried here
    stuck = candidates[path.stuck]
    if part.method == "window" and stuck.return_ns < part.last_ns:
        return given
    later = [
        each.op
        for each in sorted(candidates, key=lambda each: (each.call_ns, each.op))
        if part.last_ns < each.call_ns <= stuck.return_ns and each.return_ns < NEVER
    ]
    return Prefix(path.steps, path.state, stuck.op, (*given.operations, *later))


def needed_steps(problem: Problem, witness: Witness, last: int) -> tuple[tuple[int, State], ...]:
    """Return the last steps of an order, without indeterminate operations that it does not need.

    Those would only puzzle the reader. A long order is not changed.
    """
    if len(witness) > TRIMMED_MAX:
        return tuple(witness.steps(last))
    row = {op: n for n, op in enumerate(problem.op.tolist())}
    order = [row[op] for op in witness.op.tolist()]
    steps = _steps(problem, order) or ()
    optional = [n for n in order if problem.return_ns[n] == NEVER]
    for unknown in optional[::-1][:REMOVALS_MAX]:
        fewer = [n for n in order if n != unknown]
        tried = _steps(problem, fewer)
        if tried is not None:
            order, steps = fewer, tried
    return steps[-last:]


def _steps(problem: Problem, order: list[int]) -> tuple[tuple[int, State], ...] | None:
    """Apply operations in an order; return None if one of them cannot happen."""
    state, steps = problem.start, []
    for n in order:
        reached = problem.step(state, int(problem.kind[n]))
        if reached is None:
            return None
        state = reached
        steps.append((int(problem.op[n]), state))
    return tuple(steps)


def _candidates(part: Part, problem: Problem) -> list[_Candidate]:
    """Return the operations that the prefix may contain, in the order of their returns."""
    ops = np.concatenate((part.operations, part.unknown, [part.stuck]))
    inside = np.flatnonzero(np.isin(problem.op, ops) & (problem.call_ns <= part.last_ns))
    later = np.flatnonzero(problem.call_ns > part.last_ns)
    inside = inside[np.argsort(problem.call_ns[inside], kind="stable")][-OPERATIONS_MAX:]
    later = later[np.argsort(problem.call_ns[later], kind="stable")][:OPERATIONS_MAX]
    rows = np.concatenate((inside, later))
    rows = rows[np.argsort(problem.return_ns[rows], kind="stable")]
    # A window starts at a return; calls at that time come before it. What was open then may have
    # taken effect before the window, so it need not happen in it, and observers among it are
    # useless.
    must = problem.return_ns[rows] != NEVER
    if part.method == "window":
        is_inside = problem.call_ns[rows] > part.first_ns
        keep = is_inside | ~problem.kinds.observes[problem.kind[rows]]
        rows, must = rows[keep], (must & is_inside)[keep]
    return [
        _Candidate(
            int(problem.op[row]), int(problem.kind[row]),
            int(problem.call_ns[row]), int(problem.return_ns[row]), is_needed,
        )
        for row, is_needed in zip(rows.tolist(), must.tolist(), strict=True)
    ]  # fmt: skip


def _follow(
    candidates: list[_Candidate], given: tuple[tuple[int, State], ...], state: State,
    problem: Problem,
) -> _Path:  # fmt: skip
    """Extend `given` depth-first: pass the most returns, then linearize the most operations.

    A candidate may come next if no required operation had returned before its call. Operations
    that need not happen and that nothing needs are left out: they would only puzzle the reader.
    """
    done = {op for op, _ in given}
    everything = frozenset(n for n, each in enumerate(candidates) if each.op not in done)
    optional = frozenset(n for n in everything if not candidates[n].must)
    best: tuple[tuple[int, int, int], _Path] = ((-1, 0, 0), _Path(given, state, 0))
    seen: set[tuple[frozenset[int], State]] = set()
    stack: list[tuple[frozenset[int], State, tuple[tuple[int, State], ...]]] = [
        (everything, state, ())
    ]
    while stack and len(seen) < CONFIGURATIONS_MAX:
        left, state, order = stack.pop()
        if (left, state) in seen:
            continue
        seen.add((left, state))
        first = min(left - optional, default=len(candidates))
        end = candidates[first].return_ns if first < len(candidates) else NEVER
        used = sum(not candidates[n].must for n in everything - left)
        merit = (first, len(order) - used, -used)
        if merit > best[0]:
            best = (merit, _Path((*given, *order), state, first))
        for n in sorted(left, reverse=True):
            if candidates[n].call_ns <= end:
                after = problem.step(state, candidates[n].kind)
                if after is not None:
                    step = (candidates[n].op, after)
                    stack.append((_without(left, n, candidates), after, (*order, step)))
    return best[1]


def _without(left: frozenset[int], n: int, candidates: list[_Candidate]) -> frozenset[int]:
    """Remove n, and the optional operations that returned before n was called: precedence."""
    call = candidates[n].call_ns
    gone = {m for m in left if not candidates[m].must and candidates[m].return_ns < call}
    return left - gone - {n}
