"""Random problems for the linearizability search, and an independent answer to small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import numpy as np

from shaketable.checkers.search.problem import NEVER, Access, Family, Kinds, Problem

Move = tuple[int, int, int]
"""Access, a, b."""
Timed = tuple[Move, int, int]
"""A move, its call and its return."""


def register_problem(operations: Sequence[Timed], values: int, initial: int = 0) -> Problem:
    """Make a problem about one value."""
    kinds: dict[Move, int] = {}
    kind = [kinds.setdefault(move, len(kinds)) for move, _, _ in operations]
    moves = list(kinds)

    def step(state, k):
        access, a, b = moves[k]
        if access == Access.READ:
            return state if state == a else None
        if access == Access.NOT:
            return state if state != a else None
        if access == Access.WRITE:
            return b
        return b if state == a else None

    code = np.array([m[0] for m in moves], np.int64)
    return Problem(
        family=Family.VALUE,
        initial=initial,
        values=values,
        kind=np.array(kind, np.int32),
        call_ns=np.array([c for _, c, _ in operations], np.int64),
        return_ns=np.array([r for _, _, r in operations], np.int64),
        op=np.arange(len(operations), dtype=np.int64) * 10 + 7,
        kinds=Kinds(
            code,
            np.array([m[1] for m in moves], np.int64),
            np.array([m[2] for m in moves], np.int64),
            code <= Access.NOT,
            code == Access.WRITE,
        ),
        start=initial,
        step=step,
    )


def as_table(problem: Problem) -> Problem:
    """Return the same problem without its family's knowledge."""
    return replace(problem, family=Family.TABLE, initial=0, values=0)


def is_linearizable(problem: Problem) -> bool:
    """Answer by trying every order (Wing & Gong 1993), remembering (done, state)."""
    n = problem.kind.size
    call, end = problem.call_ns.tolist(), problem.return_ns.tolist()
    kind = problem.kind.tolist()
    required = sum(1 << i for i in range(n) if end[i] != NEVER)
    seen = set()
    stack = [(0, problem.start)]
    while stack:
        done, state = stack.pop()
        if done & required == required:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        first_return = min(end[i] for i in range(n) if not done >> i & 1)
        for i in range(n):
            if not done >> i & 1 and call[i] <= first_return:
                after = problem.step(state, kind[i])
                if after is not None:
                    stack.append((done | 1 << i, after))
    return False


def random_register(rng: Random, size_max: int = 12) -> tuple[list[Timed], int]:
    """Return operations of a register, mostly linearizable or nearly so, and how many values.

    Times are small numbers, so many are equal; some outcomes are unknown, some answers wrong.
    """
    values = rng.randint(2, 4)
    count = rng.randint(2, size_max)
    clients = rng.randint(1, 8)
    unique = rng.random() < 0.2
    if unique:
        values = count + 1
    span = rng.choice((2, 4, 8, 16))
    unknown, wrong = rng.choice((0, 0.1, 0.3)), rng.choice((0, 0.1, 0.3))
    state, free, operations, now = 0, [0] * clients, [], 0
    for n in range(count):
        client = rng.randrange(clients)
        # The instant at which it takes effect, inside its interval.
        now = max(now, free[client]) + rng.choice((0, 0, 1, 2))
        call = max(free[client], now - rng.randint(0, span))
        end = now + rng.randint(0, span)
        free[client] = end + rng.choice((0, 1))
        r = rng.random()
        value = n + 1 if unique else rng.randrange(values)
        is_unknown = rng.random() < unknown
        happens = not is_unknown or rng.random() < 0.5
        if r < 0.4 and not is_unknown:
            read = rng.randrange(values) if rng.random() < wrong else state
            move = (Access.READ, read, -1)
        elif r < 0.75:
            move = (Access.WRITE, -1, value)
            state = value if happens else state
        else:
            expected = state if rng.random() < 0.6 else rng.randrange(values)
            succeeds = expected == state
            if rng.random() < wrong:
                succeeds = not succeeds
            if expected == value:
                move = (Access.READ, expected, -1) if succeeds else (Access.NOT, expected, -1)
                if is_unknown:
                    continue
            elif is_unknown or succeeds:
                move = (Access.CAS, expected, value)
                state = value if happens and expected == state else state
            else:
                move = (Access.NOT, expected, -1)
        operations.append((tuple(int(x) for x in move), call, NEVER if is_unknown else end))
    return operations, values


def never() -> bool:
    """Give a search all the time that it wants."""
    return False


Step = Callable[[object, int], object]
