"""One key of a store of texts: decided by a search for an order of its gets, puts and appends.

The texts that gets show determine nearly all of the order of appends. The search for the rest is
checkers.kernels.text_order. It finds an order of all operations, which is replayed on a text
here, or refutes that there is one. The longest prefix that has an order is found by searching
prefixes. Before, the texts that the key can hold are numbered, and it is found where puts and
appends lead from each.

Source: as checkers.kernels.text_order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels import text_arrays as arrays
from shaketable.checkers.kernels import text_trie as tries
from shaketable.checkers.kernels.order_search import CALLED, RETURNED
from shaketable.checkers.kernels.text_arrays import Texts
from shaketable.checkers.kernels.text_order import run
from shaketable.checkers.kernels.text_trie import NOWHERE, Reach, Trie
from shaketable.checkers.models.encoding import StepByKind
from shaketable.checkers.search.budget import UNLIMITED, Limits, Memory, TimeSpentError
from shaketable.checkers.search.problem import NEVER, Ints, Part, Problem, State
from shaketable.checkers.search.replay import WitnessError
from shaketable.checkers.special.decision import (
    VISITS_MAX,
    Decision,
    OrderSearch,
    first_impassable,
    memory_of,
    open_part,
    part_until,
    require_times,
    search_arrays,
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


Int32s = npt.NDArray[np.int32]

APPEND, GET, PUT = range(3)
"""Codes of the kinds of kv: the places of the names in sorted order."""


# The texts that a key can hold.

CHUNK_BYTES = 1 << 16
"""Texts are inserted into a trie so many bytes at a time; a longer one by itself."""
STEPS_MAX = 1_000_000
"""Steps between two checks of the clock."""
EDGES_FIRST = 1 << 10
NODES_FIRST = 1 << 10
NODE_BYTES = 13


@dataclass(frozen=True, slots=True)
class TextStates:
    """The arrays of checkers.kernels.text_arrays.Texts that depend on the texts only.

    `kind` and `shown` have an element for each operation: what it puts or appends, and the state
    that it shows, NOWHERE for a text that the key can never hold. `start` is the first state.
    """

    first: Int32s
    last: Int32s
    parent: Int32s
    put_above: Int32s
    put_kind: Int32s
    edge_start: Int32s
    edge: Int32s
    kind_to: Int32s
    kind: Ints
    shown: Ints
    start: int

    @property
    def junk(self) -> int:
        """Return the state of all texts that no get shows."""
        return len(self.parent)


class _TrieBuilder:
    """A trie under construction."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        memory.take(NODE_BYTES * NODES_FIRST)
        self.trie = _empty_trie(NODES_FIRST)
        self.used = 1

    def insert(self, texts: Sequence[str], limits: Limits) -> Int32s:
        """Insert texts; return their nodes."""
        nodes = []
        for text, start in _chunks(texts):
            self._make_room(self.used + text.size)
            node = np.empty(len(start) - 1, np.int32)
            self.used = tries.insert(self.trie, self.used, text, start, node)
            nodes.append(node)
            limits.check_time()
        return np.concatenate([np.empty(0, np.int32), *nodes])

    def _make_room(self, size: int) -> None:
        old = self.trie
        if size <= len(old.child):
            return
        size = max(size, len(old.child) * 3 // 2)
        self._memory.take(NODE_BYTES * size)
        self.trie = _empty_trie(size)
        for name in Trie._fields:
            getattr(self.trie, name)[: self.used] = getattr(old, name)[: self.used]
        self._memory.give_back(old)

    def find(self, texts: Sequence[str], limits: Limits) -> Int32s:
        """Return the nodes of texts, NOWHERE for those that have none."""
        nodes = []
        for text, start in _chunks(texts):
            node = np.empty(len(start) - 1, np.int32)
            tries.find(self.trie, text, start, node)
            nodes.append(node)
            limits.check_time()
        return np.concatenate([np.empty(0, np.int32), *nodes])


def _empty_trie(size: int) -> Trie:
    child, sibling = np.full(size, NOWHERE, np.int32), np.full(size, NOWHERE, np.int32)
    return Trie(child, sibling, np.zeros(size, np.int32), np.zeros(size, np.uint8))


def _chunks(texts: Sequence[str]) -> Iterator[tuple[npt.NDArray[np.uint8], Ints]]:
    """Join texts a chunk at a time; yield their bytes, and where each starts."""
    if sum(map(len, texts)) <= CHUNK_BYTES and (whole := "".join(texts)).isascii():
        if texts:
            start = np.cumsum([0, *map(len, texts)], dtype=np.int64)
            yield np.frombuffer(whole.encode() + b"\0", np.uint8), start
        return
    held: list[bytes] = []
    size = 0
    for each in texts:
        text = each.encode("utf-8", "surrogatepass")  # UTF-8 preserves which text is a prefix
        if held and size + len(text) > CHUNK_BYTES:
            yield _joined(held)
            held, size = [], 0
        held.append(text)
        size += len(text)
    if held:
        yield _joined(held)


def _joined(texts: list[bytes]) -> tuple[npt.NDArray[np.uint8], Ints]:
    start = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return np.frombuffer(b"".join(texts) + b"\0", np.uint8), start


def text_of(value: Any) -> str:
    """Return a value as the text that the store holds; None is the empty text."""
    return "" if value is None else str(value)


def kind_texts(problem: Problem) -> list[str]:
    """Return for each of the problem's kinds the text that it gets, puts or appends."""
    step = problem.step
    assert isinstance(step, StepByKind), "a key's problem is made by its model"
    kinds = problem.kinds
    number = np.where(kinds.code == GET, kinds.b, kinds.a)
    values = step.values(number.tolist())
    return [value if value.__class__ is str else text_of(value) for value in values]


def number_states(
    problem: Problem, texts: Sequence[str], limits: Limits, memory: Memory
) -> TextStates:
    """Number what the key can hold; `texts` are those of the problem's kinds.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    code = problem.kinds.code
    distinct: tuple[dict[str, int], ...] = ({}, {}, {})
    number = np.array(
        [
            distinct[c].setdefault(text, len(distinct[c]))
            for c, text in zip(code.tolist(), texts, strict=True)
        ],
        np.int64,
    )
    appended, got, put = (list(numbers) for numbers in distinct)
    shown = _TrieBuilder(memory)
    node_got = shown.insert(got, limits)
    roots = shown.find([text_of(problem.start), *put], limits)
    reached = _reached(shown, np.unique(roots[roots >= 0]), appended, limits, memory)
    edge_start, edge = _edges(reached, _in_order(reached))
    parent, first, last = _tree(shown, reached)
    junk, appends = len(parent), len(appended)

    state = np.append(reached.state, np.int32(NOWHERE))  # so that state[NOWHERE] is NOWHERE
    start, *to_put = state[roots].tolist()
    to = np.array(to_put, np.int32)
    put_kind = np.full(junk, NOWHERE, np.int32)
    put_kind[to[to >= 0]] = appends + np.flatnonzero(to >= 0)
    kind = _kinds(problem, texts, number, appends)
    of_get = np.where(code == GET, number, 0)
    shows = state[node_got[of_get]] if len(got) else np.full(len(code), NOWHERE)
    shows = np.where(code == GET, shows, np.where(kind == NOWHERE, arrays.ANYTHING, NOWHERE))
    return TextStates(
        first=first,
        last=last,
        parent=parent,
        put_above=_put_above(parent, put_kind),
        put_kind=put_kind,
        edge_start=edge_start,
        edge=edge,
        kind_to=np.append(
            np.full(appends, arrays.APPENDS, np.int32), np.where(to >= 0, to, np.int32(junk))
        ),
        kind=kind[problem.kind],
        shown=shows.astype(np.int64)[problem.kind],
        start=start if start >= 0 else junk,
    )


def _reached(
    shown: _TrieBuilder, roots: Int32s, texts: Sequence[str], limits: Limits, memory: Memory
) -> Reach:
    """Find which nodes can be held: those of `roots`, and all that appends of `texts` lead to."""
    appended = _TrieBuilder(memory)
    ends = appended.insert(texts, limits)
    found = Reach(
        kind=np.full(appended.used, NOWHERE, np.int32),
        state=np.full(shown.used, NOWHERE, np.int32),
        node=np.empty(shown.used, np.int32),
        edges=np.empty((EDGES_FIRST + appended.used, 3), np.int32),
        pairs=np.empty((appended.used, 2), np.int32),
        at=np.zeros(tries.REACH_FACTS, np.int64),
    )
    memory.take_all(found)
    found.kind[ends] = np.arange(len(ends))
    found.node[: len(roots)] = roots
    found.state[roots] = np.arange(len(roots))
    found.at[tries.STATES] = len(roots)
    status = tries.NEEDS_EDGES
    while status != tries.ALL_REACHED:
        status = tries.reach(shown.trie, appended.trie, found, STEPS_MAX)
        if status == tries.NEEDS_EDGES:
            found = _with_more_edges(found, memory)
        limits.check_time()
    memory.give_back((*appended.trie, found.kind, found.pairs))
    return found


def _with_more_edges(found: Reach, memory: Memory) -> Reach:
    old = found.edges
    size = memory.larger(len(old), old.nbytes // len(old)) + len(found.kind)
    edges = np.empty((size, 3), np.int32)
    memory.take_all((edges,))
    edges[: len(old)] = old
    memory.give_back((old,))
    return found._replace(edges=edges)


def _in_order(reached: Reach) -> Int32s:
    """Renumber states by their nodes, so that a prefix has a smaller number.

    Returns the new number of each old one.
    """
    size = int(reached.at[tries.STATES])
    by_node = np.argsort(reached.node[:size])
    reached.state[reached.node[by_node]] = np.arange(size)
    rank = np.empty(size, np.int32)
    rank[by_node] = np.arange(size)
    return rank


def _edges(reached: Reach, rank: Int32s) -> tuple[Int32s, Int32s]:
    """Return where each state's edges start, and the edges by state (CSR); junk has none."""
    edges = reached.edges[: reached.at[tries.EDGES]]
    source = rank[edges[:, tries.EDGE_FROM]]
    order = np.argsort(source, kind="stable")
    start = np.searchsorted(source[order], np.arange(len(rank) + 2))
    to = rank[edges[order, tries.EDGE_TO]]
    edge = np.stack((edges[order, tries.EDGE_KIND], to), axis=1)
    return start.astype(np.int32), np.ascontiguousarray(edge, np.int32)


def _tree(shown: _TrieBuilder, reached: Reach) -> tuple[Int32s, Int32s, Int32s]:
    """Return each state's parent, and the range of states below it; `shown` is overwritten."""
    size = int(reached.at[tries.STATES])
    parent = np.empty(size, np.int32)
    tries.find_parents(shown.trie, shown.used, reached.state, shown.trie.child, parent)
    first, last = np.empty(size + 1, np.int32), np.empty(size + 1, np.int32)
    tries.number_in_preorder(parent, np.empty(size, np.int32), first, last)
    return parent, first, last


def _kinds(problem: Problem, texts: Sequence[str], number: Ints, appends: int) -> Ints:
    """Return the kind for each of the problem's: appends first, then puts; NOWHERE for gets.

    NOWHERE as well for appends of the empty text, which are treated as gets.
    """
    code = problem.kinds.code
    kind = np.where(code == PUT, appends + number, number)
    is_empty = np.array([not text for text in texts], np.bool_)
    return np.where((code == GET) | ((code == APPEND) & is_empty), NOWHERE, kind)


def _put_above(parent: Int32s, put_kind: Int32s) -> Int32s:
    """Return for each state its longest prefix that is put, itself included."""
    above = np.empty(len(parent), np.int32)
    tries.longest_marked_prefix(parent, put_kind, above)
    return above
