"""One key of a store of texts: decided by a search for an order of its gets, puts and appends.

The texts that gets show determine nearly all of the order of appends. The search for the rest is
checkers.kernels.text_order. It finds an order of all operations, which is replayed on a text
here, or refutes that there is one. The longest prefix that has an order is found by searching
prefixes.

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
"""Memory for each operation before the search starts, without the texts (measured)."""


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision:
    """Decide a key's history.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time was over before the search started.
        WitnessError: the order that was found is no linearization: a bug in the search.
    """
    limits.require_memory(OPERATION_BYTES * len(problem.kind))
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
    """Verify an order on a text, and by the times of its operations.

    Raises:
        WitnessError: it is no linearization of the history.
    """
    require_times(problem, order)
    _state_after(problem, texts, order)


def _state_after(problem: Problem, texts: Sequence[str], order: Ints) -> str:
    """Return the text that the key holds after operations.

    Raises:
        WitnessError: one of them is not possible at its place.
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
    """Return the part up to the first return that cannot be passed, with an order before it."""

    def order_until(until: int) -> Ints | None:
        found = TextOrder(problem, states, until)
        return found.order() if found.explains(limits) else None

    def state_after(order: Ints) -> State:
        return _state_after(problem, kind_texts(problem), order)

    end, order = first_impassable(problem, reached, order_until)
    return part_until(problem, end, order, METHOD, state_after)
