"""A node of a window that tries no overwriters must not stand in for one that tries them."""

from __future__ import annotations

import pytest
from search_problems import Timed, register_problem

from shaketable.checkers.search import driver
from shaketable.checkers.search.problem import NEVER, Access
from shaketable.harness.contracts.verdict import Outcome

READ, WRITE, CAS = Access.READ, Access.WRITE, Access.CAS
A, V, U, W, X, Z, Z2, Q, R = range(9)
DETOUR = 9
"""Values from here on belong to one pair of cas each."""
QUIET = 20
END = 10_000
Named = dict[str, Timed]


def valid_history(detours: int) -> tuple[Named, list[str]]:
    """Return operations, and an order that explains them.

    The write `same` of unknown outcome changes nothing where V is the value already, and costs
    nothing in a window; by it all open overwriters become optional. The pairs of cas are open
    almost to the end: the whole search stalls among them, and windows are searched.
    """
    named: Named = {f"quiet{i}": ((READ, A, A), 2 * i, 2 * i + 1) for i in range(QUIET)}
    t = 2 * QUIET
    named |= {
        "same": ((WRITE, V, V), t, NEVER),
        "u": ((WRITE, U, U), t + 1, NEVER),
        "a to v": ((CAS, A, V), t + 2, t + 6),
        "u to w": ((CAS, U, W), t + 3, t + 5),
        "r": ((WRITE, R, R), t + 4, END - 5),
    }
    t += 10
    for i in range(detours):
        named[f"out{i}"] = (CAS, X, DETOUR + i), t + 2 * i, END + 1 + i
        named[f"back{i}"] = (CAS, DETOUR + i, X), t + 2 * i + 1, END + 50 + i
    t += 2 * detours
    named |= {
        "z2 to q": ((CAS, Z2, Q), t, NEVER),
        "q to w": ((CAS, Q, W), t + 1, NEVER),
        "x": ((WRITE, X, X), t + 2, END - 3),
        "w to z": ((CAS, W, Z), t + 3, END - 2),
        "z to z2": ((CAS, Z, Z2), t + 4, t + 5),
        "last": ((READ, V, V), END + 200, END + 201),
    }
    order = [name for name in named if name.startswith("quiet")]
    order += ["a to v", "u", "u to w", "w to z", "z to z2", "r", "x"]
    order += [f"{way}{i}" for i in range(detours) for way in ("out", "back")]
    return named, [*order, "same", "last"]


@pytest.mark.parametrize("detours", [2, 8, 9])
def test_a_window_does_not_refute_a_valid_history(detours: int) -> None:
    named, order = valid_history(detours)
    problem = register_problem(list(named.values()), DETOUR + detours)
    place, state, called = {name: i for i, name in enumerate(named)}, problem.start, -1
    for name in order:  # the order is a linearization
        called = max(called, named[name][1])
        assert called <= named[name][2]
        state = problem.step(state, int(problem.kind[place[name]]))
        assert state is not None
    assert {name for name in named if named[name][2] != NEVER} <= {*order}

    found = driver.search(problem, is_over=lambda: False, memory_bytes_max=1 << 30)

    assert found.outcome is Outcome.VALID
