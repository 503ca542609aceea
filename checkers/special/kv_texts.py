"""One key of a store of texts: decided by putting its gets, puts and appends in order.

The texts that gets show say nearly everything about the order of appends. The search for one is
checkers.kernels.text_order; it answers with an order of all operations, which is replayed on a
text here, or with a proof that there is none. How far a history can be explained is found by
asking again for its beginnings.

Source: as checkers.kernels.text_order.
"""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.checkers.search.budget import UNLIMITED, Limits, Memory, TimeSpentError
from shaketable.checkers.search.found import Part
from shaketable.checkers.search.problem import NEVER, Ints, Problem, State
from shaketable.checkers.search.replay import WitnessError
from shaketable.checkers.special.decision import Decision
from shaketable.checkers.special.order_proof import (
    first_impassable,
    open_part,
    part_until,
    require_times,
)
from shaketable.checkers.special.text_order import TextOrder, memory_of
from shaketable.checkers.special.text_states import (
    APPEND,
    GET,
    TextStates,
    kind_texts,
    number_states,
    text_of,
)

METHOD = "texts"
OPERATION_BYTES = 450
"""What is held for each operation before the search begins, beside the texts (measured)."""


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision:
    """Decide a key's history.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over before it has begun.
        WitnessError: the order that was found explains nothing: a bug in the search.
    """
    limits.begin(OPERATION_BYTES * len(problem.kind))
    texts = kind_texts(problem)
    states = number_states(problem, texts, limits, Memory(memory_of(limits)))
    found = TextOrder(problem, states, NEVER)
    try:
        is_explained = found.explains(limits)
    except TimeSpentError:
        return Decision(METHOD, part=open_part(problem, found.reached, METHOD), why="time")
    if is_explained:
        _replay(problem, texts, found.order())
        return Decision(METHOD)
    return Decision(METHOD, part=_part(problem, states, found.reached, limits))


def _replay(problem: Problem, texts: Sequence[str], order: Ints) -> None:
    """Prove an order on a text, and by the times of its operations.

    Raises:
        WitnessError: it does not explain the history.
    """
    require_times(problem, order)
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
    """Find the first return that cannot be passed, and an order of all that leads up to it."""

    def order_until(until: int) -> Ints | None:
        found = TextOrder(problem, states, until)
        return found.order() if found.explains(limits) else None

    def carried_out(order: Ints) -> State:
        return _carried_out(problem, kind_texts(problem), order)

    end, order = first_impassable(problem, reached, order_until)
    return part_until(problem, end, order, METHOD, carried_out)
