"""One key of a store of texts: decided by putting its gets, puts and appends in order.

The texts that gets show say nearly everything about the order of appends. The search for one is
checkers.kernels.text_order; it answers with an order of all operations, which is replayed on a
text here, or with a proof that there is none. How far a history can be explained is found by
asking again for its beginnings.

Source: as checkers.kernels.text_order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from checkers.search.budget import UNLIMITED, Limits, Memory
from checkers.search.found import Part, Witness
from checkers.search.problem import NEVER, Ints, Problem
from checkers.search.replay import WitnessError
from checkers.special.decision import Decision
from checkers.special.text_order import TextOrder, memory_of
from checkers.special.text_states import (
    APPEND,
    GET,
    TextStates,
    kind_texts,
    number_states,
    text_of,
)

METHOD = "texts"
SHOWN_MAX = 200
"""Steps of the longest prefix that a refutation carries."""
OPERATION_BYTES = 450
"""What is held for each operation before the search begins, beside the texts (measured)."""


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision:
    """Decide a key's history.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
        WitnessError: the order that was found explains nothing: a bug in the search.
    """
    limits.begin(OPERATION_BYTES * len(problem.kind))
    texts = kind_texts(problem)
    states = number_states(problem, texts, limits, Memory(memory_of(limits)))
    found = TextOrder(problem, states, NEVER)
    if found.explains(limits):
        _replay(problem, texts, found.order())
        return Decision(METHOD)
    return Decision(METHOD, part=_part(problem, states, found.reached, limits))


def _replay(problem: Problem, texts: Sequence[str], order: Ints) -> None:
    """Prove an order on a text, and by the times of its operations.

    Raises:
        WitnessError: it does not explain the history.
    """
    named = np.bincount(order, minlength=problem.kind.size)
    if named.max(initial=0) > 1 or not named[problem.return_ns != NEVER].all():
        raise WitnessError("an operation takes effect twice, or one that returned never")
    if (np.maximum.accumulate(problem.call_ns[order]) > problem.return_ns[order]).any():
        raise WitnessError("an operation takes effect before the call of another that it follows")
    _carried_out(problem, texts, order)


def _carried_out(problem: Problem, texts: Sequence[str], order: Ints) -> str:
    """Return the text that the key holds after operations.

    Raises:
        WitnessError: one of them cannot happen where it stands.
    """
    code = problem.kinds.code.tolist()
    held = text_of(problem.start)
    for kind in problem.kind[order].tolist():
        if code[kind] == APPEND:
            held += texts[kind]
        elif code[kind] != GET:
            held = texts[kind]
        elif held != texts[kind]:
            raise WitnessError("a get shows another text than the key holds")
    return held


def _part(problem: Problem, states: TextStates, reached: int, limits: Limits) -> Part:
    """Find the first return that cannot be passed, and an order of all that leads up to it.

    The search that failed had come as far as `reached`, mostly just short of that return.
    """
    returns = np.unique(problem.return_ns[problem.return_ns != NEVER])
    low = int(np.searchsorted(returns, reached)) - 1  # can be passed
    high = len(returns) - 1  # cannot
    order = _order_until(problem, states, int(returns[low]), limits) if low >= 0 else None
    stride = 1
    while high - low > 1:
        middle = min(low + stride, (low + high) // 2)
        found = _order_until(problem, states, int(returns[middle]), limits)
        if found is not None:
            low, order, stride = middle, found, 2 * stride
        else:
            high = middle
    return _told(problem, int(returns[high]), np.empty(0, np.int64) if order is None else order)


def _order_until(problem: Problem, states: TextStates, until: int, limits: Limits) -> Ints | None:
    """Return an order that explains the history up to that time, None if there is none."""
    found = TextOrder(problem, states, until)
    return found.order() if found.explains(limits) else None


def _told(problem: Problem, end: int, order: Ints) -> Part:
    """Make the part out of the last steps of the prefix and what was open at its end."""
    stuck = int(np.flatnonzero(problem.return_ns == end)[0])
    steps = order[-SHOWN_MAX:]
    begin = order[: len(order) - len(steps)]
    start = _carried_out(problem, kind_texts(problem), begin)
    states, state = [start], start
    for row in steps.tolist():
        reached = problem.step(state, int(problem.kind[row]))
        assert isinstance(reached, str), "a model that refuses what was carried out"
        state = reached
        states.append(state)
    is_gone = np.zeros(len(problem.op), np.bool_)
    is_gone[begin] = True
    seen = problem.return_ns != NEVER
    known = np.flatnonzero(seen & ~is_gone & (problem.call_ns <= end))
    known = known[np.argsort(problem.call_ns[known], kind="stable")]
    first_ns = int(problem.call_ns[known].min())
    unknown = np.flatnonzero(~seen & ~is_gone & (problem.call_ns <= end))
    return Part(
        method=METHOD,
        first_ns=first_ns,
        last_ns=end,
        operations=problem.op[known],
        unknown=problem.op[unknown],
        prefix=Witness(problem.op[steps], np.arange(1, len(states), dtype=np.int32), tuple(states)),
        prefix_start=start,
        stuck=int(problem.op[stuck]),
        before=int((problem.return_ns < first_ns).sum()),
        states=(start,) if not len(begin) else (),
    )
