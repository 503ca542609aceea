"""One key of a store of texts: decided by a search for an order of its gets, puts and appends.

The texts that gets show determine nearly all of the order of appends. The search for the rest is
checkers.kernels.text_order. It finds an order of all operations, which is replayed on a text
here, or refutes that there is one. The longest prefix that has an order is found by searching
prefixes.

Source: as checkers.kernels.text_order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shaketable.checkers.kernels import text_arrays as arrays
from shaketable.checkers.kernels.order_search import CALLED, RETURNED
from shaketable.checkers.kernels.text_arrays import Texts
from shaketable.checkers.kernels.text_order import run
from shaketable.checkers.kernels.text_trie import NOWHERE
from shaketable.checkers.search.budget import UNLIMITED, Limits, Memory, TimeSpentError
from shaketable.checkers.search.problem import NEVER, Ints, Part, Problem, State
from shaketable.checkers.search.replay import WitnessError
from shaketable.checkers.special.decision import Decision
from shaketable.checkers.special.order_proof import (
    VISITS_MAX,
    OrderSearch,
    first_impassable,
    memory_of,
    open_part,
    part_until,
    require_times,
    search_arrays,
)
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


class TextOrder(OrderSearch):
    """A search for an order of one key's gets, puts and appends."""

    def __init__(self, problem: Problem, states: TextStates, until: int) -> None:
        returned = np.where(problem.return_ns <= until, problem.return_ns, NEVER)
        changes = states.kind != NOWHERE
        rows = np.flatnonzero((problem.call_ns <= until) & (changes | (returned != NEVER)))
        self.rows = rows[np.argsort(problem.call_ns[rows], kind="stable")]
        columns = (problem.call_ns, returned, states.kind, states.shown)
        operations = np.stack([column[self.rows] for column in columns], axis=1)
        is_get = operations[:, arrays.KIND] == NOWHERE
        self._is_hopeless = bool((is_get & (operations[:, arrays.SHOWN] == NOWHERE)).any())
        self.arrays = _texts(states, operations)

    def explains(self, limits: Limits) -> bool:
        """Search for an order; there is none if a get shows a text that no writes make."""
        return not self._is_hopeless and super().explains(limits)

    def run(self) -> int:
        """Search for up to VISITS_MAX orders; return the kernel's status."""
        return run(self.arrays, VISITS_MAX)

    def order(self) -> Ints:
        """Return the rows of the problem in the order that was found."""
        placed = int(self.arrays.at[arrays.PLACED])
        return np.asarray(self.rows[self.arrays.trail[:placed]])


def _texts(states: TextStates, operations: Ints) -> Texts:
    size, kinds = len(operations), len(states.kind_to)
    returned, kind = operations[:, RETURNED], operations[:, arrays.KIND]
    changes = int((kind != NOWHERE).sum())
    state_seen, kind_seen = _seen(states, operations)
    awaited, kind_awaited = _awaited(states, operations)
    links = np.empty((size + arrays.KINDS + kinds, arrays.LINKS), np.int32)
    arrays.link(operations, np.argsort(returned, kind="stable"), links)
    unknown = np.flatnonzero(returned == NEVER)
    unknown = unknown[np.argsort(kind[unknown], kind="stable")]
    spare = np.zeros((kinds + 1, 2), np.int32)
    spare[:, 0] = np.searchsorted(kind[unknown], np.arange(kinds + 1))
    has_spare = np.diff(spare[:, 0], append=spare[-1, 0])[:kinds] > 0
    puts_seen = (states.kind_to != arrays.APPENDS) & (kind_seen > arrays.UNSEEN)
    common = search_arrays(changes, arrays.AT_FACTS, arrays.UNSEEN, kinds + 2)
    common["at"][arrays.STATE] = states.start
    return Texts(
        first=states.first,
        last=states.last,
        parent=states.parent,
        put_above=states.put_above,
        put_kind=states.put_kind,
        edge_start=states.edge_start,
        edge=states.edge,
        kind_to=states.kind_to,
        state_seen=state_seen,
        kind_seen=kind_seen,
        awaited=awaited,
        kind_awaited=kind_awaited,
        operations=operations,
        links=links,
        spare=spare,
        spare_op=unknown.astype(np.int32),
        spare_puts=np.flatnonzero(has_spare & puts_seen).astype(np.int32),
        handled=np.zeros(kinds, np.int64),
        trail=np.empty(size, np.int32),
        before=np.empty((changes + 1, 2), np.int32),
        move=np.empty((kinds + 2, 3), np.int32),
        **common,
    )


def _seen(states: TextStates, operations: Ints) -> tuple[Any, Any]:
    """Return the latest return of a get, for each state and each kind."""
    state_seen = np.full(states.junk + 1, arrays.UNSEEN, np.int64)
    kind_seen = np.full(len(states.kind_to), arrays.UNSEEN, np.int64)
    gets = operations[operations[:, arrays.SHOWN] >= 0]
    np.maximum.at(state_seen, gets[:, arrays.SHOWN], gets[:, RETURNED])
    begin, edge = states.edge_start, states.edge
    arrays.propagate_seen(begin, edge, states.kind_to, state_seen, kind_seen)
    return state_seen, kind_seen


def _awaited(states: TextStates, operations: Ints) -> tuple[Any, Any]:
    """Return the latest call of a get, for each state and for each kind that it needs."""
    called = np.full(states.junk + 1, arrays.UNSEEN, np.int64)
    gets = operations[operations[:, arrays.SHOWN] >= 0]
    np.maximum.at(called, gets[:, arrays.SHOWN], gets[:, CALLED])
    awaited = np.full((states.junk + 1, 3), arrays.UNSEEN, np.int64)
    awaited[:, arrays.LATEST] = called
    awaited[:, arrays.LATEST_BELOW] = NOWHERE
    arrays.propagate_awaited(states.parent, states.put_kind, awaited)
    kind_awaited = np.full(len(states.kind_to), arrays.UNSEEN, np.int64)
    ways = np.zeros(states.junk + 1, np.int32)
    arrays.find_needed(
        states.edge_start, states.edge, states.put_kind, states.start, called, ways, kind_awaited
    )
    return awaited, kind_awaited
