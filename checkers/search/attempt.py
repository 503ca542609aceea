"""Drives the kernels of one search: slices of work, growing arrays, missing steps, budgets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.search import run
from shaketable.checkers.kernels.search_arrays import (
    ARENA_FACTS,
    BEST,
    CODE,
    DEEPEST,
    DEPTH,
    DOES_COLUMNS,
    EVENT,
    EVENT_COLUMNS,
    EVENTS,
    FACTS,
    FAMILY,
    FILLED,
    FIRST_PRODUCED,
    IMPOSSIBLE,
    INDETERMINATE,
    KIND,
    KINDS,
    LAST,
    LINEARIZED,
    MISSING_COUNT,
    MISSING_MAX,
    NEEDS_NODES,
    NEEDS_STACK,
    NEEDS_STEPS,
    NEEDS_USED,
    NODE_COLUMNS,
    NODES,
    OBSERVES,
    OP_COLUMNS,
    OPEN_MAX,
    OPTIONAL,
    OVERWRITES,
    PRODUCER,
    PROGRESS,
    REACH_COLUMNS,
    REFUTED,
    SLICE_OVER,
    STALLED,
    STEPS_FACTS,
    STOP,
    TOP,
    UNKNOWN_KINDS,
    USED_COUNT,
    VALUE_COLUMNS,
    VALUES,
    VISITED,
    WORDS,
    A,
    Arena,
    B,
    Cursor,
    History,
    Steps,
)
from shaketable.checkers.kernels.search_history import NO_EVENT, build, split_indeterminate
from shaketable.checkers.kernels.search_memo import defer, rehash_nodes, rehash_used
from shaketable.checkers.kernels.search_moves import add_steps
from shaketable.checkers.kernels.search_trace import name_operations, trace
from shaketable.checkers.kernels.search_windows import (
    CHAIN_MAX,
    GOAL_FACTS,
    NODES_VISITED,
    STALL,
    VISITS_MAX,
)
from shaketable.checkers.search.budget import Memory, TimeSpentError
from shaketable.checkers.search.problem import (
    NEVER,
    Family,
    Ints,
    ModelError,
    Problem,
    State,
    Vectors,
    error_line,
    short_repr,
)
from shaketable.checkers.search.vectors import VectorTable, depth_of, vectors_of, write_vectors
from shaketable.harness.compiled import slice_of

SLICE_NODES = 20_000
"""Nodes between two checks of the clock: some hundredths of a second."""
COMPARED_MAX = 4096
"""With so many nodes of the same event and state a new one is compared."""
ASIDE_BYTES = 40
"""Memory for each move on the stack while moves are reordered."""


@dataclass(frozen=True, slots=True)
class Run:
    """An order of operations that a search claims to be possible.

    Attributes:
        first: the number of the state before the first.
        place: their places in the problem.
        state: the number of the state after each.
    """

    first: int
    place: Ints
    state: npt.NDArray[np.int32]


class Setting:
    """One arranged problem and its budgets: what all attempts share.

    Raises:
        MemorySpentError: the arranged problem does not fit the budget.
    """

    def __init__(self, problem: Problem, is_over: Callable[[], bool], bytes_max: int) -> None:
        self.problem = problem
        self.is_over = is_over
        self.memory = Memory(bytes_max)
        vectors = vectors_of(problem)
        self.arranged = arrange(problem, self.memory, vectors)
        self.table: StepTable | VectorTable
        if vectors is None:
            self.table = StepTable(problem, self.memory)
        else:
            self.table = VectorTable(problem, vectors, self.memory)
            write_vectors(self.arranged.history, vectors, self.table)
        self.nodes = 0


class Attempt:
    """A search from one state over the whole history, or over windows of it."""

    def __init__(self, setting: Setting, first: int | None = None) -> None:
        self.setting = setting
        self.arena = new_arena(setting.arranged.history, setting.memory, first)
        self.goal = np.zeros(GOAL_FACTS, np.int64)
        """What the kernel is to do: to search the whole history, if nothing else is set."""
        self.goal[CHAIN_MAX] = COMPARED_MAX

    @property
    def deepest(self) -> int:
        """Return the furthest event that was reached."""
        return int(self.arena.at[DEEPEST])

    def run(self, stall: int) -> int:
        """Search the whole history until LINEARIZED, REFUTED or STALLED; return which.

        Raises:
            TimeSpentError: the time is over.
            MemorySpentError: it needs more memory than the budget has.
        """
        self.goal[STALL] = stall
        return self.run_to_goal()

    def run_to_goal(self) -> int:
        """Continue towards the goal until LINEARIZED, REFUTED or STALLED; raises as `run` does."""
        s = self.setting
        h, c = s.arranged.history, s.arranged.cursor
        while True:
            visited = int(self.goal[NODES_VISITED])
            self.goal[VISITS_MAX] = slice_of(SLICE_NODES)
            status = run(h, c, self.arena, s.table.arrays, self.goal)
            s.nodes += int(self.goal[NODES_VISITED]) - visited
            if self._is_answer(status):
                return status

    def defer_moves(self, back: int) -> None:
        """Defer the moves within `back` events before the deepest one: try them after all others.

        With 0 moves are ordered by event again, the deepest first. Progress is counted anew.

        Raises:
            MemorySpentError: there is no memory to reorder the moves.
        """
        a, memory = self.arena, self.setting.memory
        top = int(a.at[TOP])
        aside = ASIDE_BYTES * top
        memory.take(aside)
        if back:
            defer(a, self.deepest - back)
        else:
            event = a.node[np.maximum(a.stack[:top, 0], 0), EVENT]
            a.stack[:top] = a.stack[:top][np.argsort(event, kind="stable")]
        memory.take(-aside)
        a.at[PROGRESS] = a.at[VISITED]

    def _is_answer(self, status: int) -> bool:
        """Return True if a kernel's status is an answer; else supply what it needs.

        Raises:
            TimeSpentError: the time is over.
            MemorySpentError: it needs more memory than the budget has.
        """
        s = self.setting
        if status in (LINEARIZED, REFUTED, STALLED):
            return True
        if status == NEEDS_STEPS:
            s.table.fill()
        elif status != SLICE_OVER:
            self.arena = enlarge(self.arena, status, s.memory)
        if s.is_over():
            raise TimeSpentError
        return False

    def run_found(self) -> Run:
        """Return the run of the witness; after LINEARIZED."""
        return self._run_to(int(self.arena.at[LAST]))

    def run_best(self) -> Run | None:
        """Return the longest run that was found, None if no first state was visited."""
        best = int(self.arena.at[BEST])
        return self._run_to(best) if best >= 0 else None

    def _run_to(self, last: int) -> Run:
        arranged, table = self.setting.arranged, self.setting.table
        h = arranged.history
        size = arranged.operation.size + arranged.unknown.size
        order = np.empty((2, size), np.int32)
        first, count = trace(h, arranged.cursor, self.arena, table.arrays, last, order)
        order = np.ascontiguousarray(order[:, :count])  # one layout, compiled once
        place = np.empty(count, np.int64)
        while not name_operations(
            h, table.arrays, first, order, arranged.operation, arranged.unknown, place
        ):
            table.fill()
        return Run(first, place, order[1])


# Numbers the states of a model, and memoises its steps for the kernels (Family.TABLE).

STEPS_FIRST = 1024
ASKED_AGAIN_MAX = 1000
"""So many steps are repeated before a history is reported as invalid."""
ALL_KINDS_MAX = 16
"""With so many kinds or fewer, all steps of a state are computed at once."""
STATE_BYTES = 200
"""Memory of a state besides its own object: its entries in a dictionary and a list."""


class StepTable:
    """The steps of a model that were requested, each once."""

    def __init__(self, problem: Problem, memory: Memory) -> None:
        self._step = problem.step
        self._kinds = problem.kinds.code.size
        self._memory = memory
        self._observes = problem.kinds.observes.tolist()
        self._overwrites = problem.kinds.overwrites.tolist()
        self._left: dict[int, int] = {}
        self.states: list[State] = []
        self.first = 0
        self._number: dict[State, int] = {}
        rows, missing = (STEPS_FIRST, MISSING_MAX) if problem.family is Family.TABLE else (1, 1)
        self.arrays = Steps(
            key=np.full(rows, -1, np.int64),
            after=np.empty(rows, np.int32),
            missing=np.empty((missing, 2), np.int32),
            pair=np.empty(0, np.int64),
            path=np.empty(0, np.int64),
            facts=np.zeros(STEPS_FACTS, np.int64),
        )
        memory.take_all(self.arrays)
        self.number(problem.start)

    def __getitem__(self, number: int, /) -> State:
        """Return the state of that number."""
        return self.states[number]

    def number(self, state: State) -> int:
        """Return the number of a state, a new one for a new state."""
        try:
            number = self._number.get(state)
        except Exception as error:
            raise ModelError(
                f"the model has a state that cannot be kept: {error_line(error)}"
            ) from error
        if number is None:
            number = self._number[state] = len(self.states)
            self.states.append(state)
            self._memory.take(sys.getsizeof(state) + STATE_BYTES)
        return number

    def fill(self) -> None:
        """Ask the model for the steps that a kernel missed.

        Raises:
            MemorySpentError: they do not fit the budget.
        """
        pairs = self.arrays.missing[: self.arrays.facts[MISSING_COUNT]]
        if self._kinds <= ALL_KINDS_MAX:
            states = np.unique(pairs[:, 0])
            keys = (states[:, None] * np.int64(self._kinds) + np.arange(self._kinds)).ravel()
        else:
            keys = np.unique(pairs[:, 0] * np.int64(self._kinds) + pairs[:, 1])
        self.add(keys)
        self.arrays.facts[MISSING_COUNT] = 0

    def add(self, keys: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
        """Ask for the steps of these keys (state * kinds + kind)."""
        after = np.empty(keys.size, np.int32)
        for n, key in enumerate(keys.tolist()):
            state, kind = divmod(key, self._kinds)
            reached = self._step(self.states[state], kind)
            after[n] = IMPOSSIBLE if reached is None else self.number(reached)
            self._require_promise(state, kind, int(after[n]))
        while 2 * (self.arrays.facts[FILLED] + keys.size) > self.arrays.key.size:
            self._grow()
        add_steps(self.arrays.key, self.arrays.after, self.arrays.facts, keys, after)

    def _require_promise(self, state: int, kind: int, after: int) -> None:
        """Check what the model promises of observers and overwriters: the search relies on it.

        Raises:
            ModelError: a step breaks the promise.
        """
        if self._observes[kind] and after not in (state, IMPOSSIBLE):
            broken = "that an observer changes nothing"
        elif self._overwrites[kind] and after == IMPOSSIBLE:
            broken = "that an overwriter is always possible"
        elif self._overwrites[kind] and after != self._left.setdefault(kind, after):
            broken = "that an overwriter leads to one state from all"
        else:
            return
        reached = "nothing" if after == IMPOSSIBLE else short_repr(self.states[after])
        raise ModelError(
            f"the model does not keep its promise {broken}:"
            f" it went from {short_repr(self.states[state])} to {reached}"
        )

    def require_same(self) -> None:
        """Ask the model again for some of the known steps: a refutation rests on all of them.

        Raises:
            ModelError: a step differs.
        """
        known = np.flatnonzero(self.arrays.key >= 0)
        known = known[np.argsort(self.arrays.key[known])][:ASKED_AGAIN_MAX]
        for key, after in zip(
            self.arrays.key[known].tolist(), self.arrays.after[known].tolist(), strict=True
        ):
            state, kind = divmod(key, self._kinds)
            reached = self._step(self.states[state], kind)
            remembered = None if after == IMPOSSIBLE else self.states[after]
            if (reached is None) != (remembered is None) or reached != remembered:
                raise ModelError(
                    "the model does not answer the same when asked again:"
                    f" from {short_repr(self.states[state])} it went to {short_repr(remembered)},"
                    f" then to {short_repr(reached)}"
                )

    def _grow(self) -> None:
        old = self.arrays
        size = 2 * old.key.size
        key, after = np.full(size, -1, np.int64), np.empty(size, np.int32)
        self._memory.take_all([key, after])
        filled = old.key >= 0
        old.facts[FILLED] = 0
        add_steps(key, after, old.facts, old.key[filled], old.after[filled])
        self._memory.give_back([old.key, old.after])
        self.arrays = old._replace(key=key, after=after)


# Arranges a problem as the arrays that the kernels search.

COUNTED_KINDS_MAX = 40
"""With more kinds of indeterminate operations than that, one that is the only one of its kind is
not counted: it is among the known operations, optional from its call on."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """A problem in the order of its events.

    Attributes:
        history: what the kernels search.
        cursor: a place in it.
        operation: for each of the history's operations its place in the problem.
        unknown: the places in the problem of the indeterminate operations counted by kind.
    """

    history: History
    cursor: Cursor
    operation: Ints
    unknown: Ints


def arrange(problem: Problem, memory: Memory, vectors: Vectors | None = None) -> Arranged:
    """Sort the problem's operations by time; `vectors` is what the kinds do (Family.VECTOR).

    Raises:
        MemorySpentError: the arrays do not fit the budget.
    """
    kinds = problem.kinds
    values = problem.values if problem.family is Family.VALUE else 0
    # Sorting holds the times, the order, and as much again, before the rest is allocated.
    sorting = 64 * problem.kind.size
    memory.take(sorting)
    known, returned_ns, loose, counted, unknown_kind, unknown_place = split_indeterminate(
        problem.kind, problem.call_ns, problem.return_ns, kinds.code, (kinds.a, kinds.b),
        values, COUNTED_KINDS_MAX,
    )  # fmt: skip
    times = (problem.call_ns[known], returned_ns, problem.call_ns[counted])
    call_order, return_order, unknown_order = (np.argsort(t, kind="stable") for t in times)
    if loose:
        return_order = return_order[: return_order.size - int((returned_ns == NEVER).sum())]
    events = call_order.size + return_order.size + unknown_order.size
    history = _history(problem, vectors, known, events, counted.size, unknown_kind)
    history.op[known.size - loose :, OPTIONAL] = INDETERMINATE
    build(history, call_order, return_order, unknown_order, unknown_place, times)
    memory.take(-sorting)
    history.facts[WORDS] = max(1, -(-int(history.facts[OPEN_MAX]) // 64))
    cursor = _cursor(history)
    memory.take_all(history)
    memory.take_all(cursor)
    return Arranged(history, cursor, known, counted)


def _history(
    problem: Problem, vectors: Vectors | None, known: Ints, events: int, counted: int,
    unknown_kind: npt.NDArray[np.int32],
) -> History:  # fmt: skip
    """Allocate a history, and fill in what does not depend on the order of events."""
    n = known.size
    kinds = problem.kinds
    of_values = problem.values if problem.family is Family.VALUE else 0
    facts = np.zeros(FACTS, np.int64)
    facts[FAMILY] = problem.family
    facts[UNKNOWN_KINDS] = unknown_kind.size
    facts[VALUES] = of_values
    facts[EVENTS] = events
    facts[KINDS] = kinds.code.size
    op = np.zeros((n, OP_COLUMNS), np.int32)
    op[:, KIND] = problem.kind[known]
    op[:, PRODUCER] = -1
    value = np.full((of_values + 1, VALUE_COLUMNS), -1, np.int32)
    value[:, FIRST_PRODUCED] = NO_EVENT
    if of_values:
        value[problem.initial, FIRST_PRODUCED] = -1
    does = np.empty((kinds.code.size, DOES_COLUMNS), np.int32)
    does[:, CODE], does[:, A], does[:, B] = kinds.code, kinds.a, kinds.b
    does[:, OBSERVES], does[:, OVERWRITES] = kinds.observes, kinds.overwrites
    change = np.empty((0, 3), np.int32)
    if vectors is not None:
        change = vectors.change.copy()  # WHOLE is to have numbers of vectors as its values
        does[:, A], does[:, B] = vectors.first[:-1], vectors.first[1:]
        facts[DEPTH] = depth_of(vectors)
    return History(
        event=np.empty((events, EVENT_COLUMNS), np.int32),
        op=op,
        does=does,
        unknown_kind=unknown_kind,
        unknown_start=np.empty(unknown_kind.size + 1, np.int64),
        unknown_member=np.empty(counted, np.int64),
        value=value,
        need=np.empty(n if of_values else 0, np.int32),
        # Each call may leave a value, and each return end its stay; one more for each value.
        room=np.empty(events + of_values if of_values else 0, np.int32),
        change=change,
        facts=facts,
    )


def _cursor(h: History) -> Cursor:
    n, words = h.op.shape[0], int(h.facts[WORDS])
    return Cursor(
        holder=np.zeros(max(1, int(h.facts[OPEN_MAX])), np.int32),
        open=np.full((n + 1, 2), n, np.int32),
        open_mask=np.zeros((3, words), np.uint64),
        called_unknown=np.zeros(max(1, h.unknown_kind.size), np.int32),
        place=np.zeros(2, np.int64),
        kind_stamp=np.zeros((2, h.does.shape[0]), np.int64),
        reach=np.zeros((max(1, int(h.facts[VALUES])), REACH_COLUMNS), np.int64),
        passed=np.zeros((max(1, int(h.facts[VALUES])), 2), np.int32),
        child=np.zeros(2 * words, np.uint64),
    )


# Allocates and enlarges arenas, within the budget.

NODES_FIRST = 1024
OPERATIONS_FOR_MORE = 1000
"""For each so many operations NODES_FIRST more nodes are allocated at first."""
USED_FIRST = 64


def new_arena(h: History, memory: Memory, first: int | None = None) -> Arena:
    """Return an arena for a search of the whole history from state `first`, or without a start.

    Raises:
        MemorySpentError: it does not fit the budget.
    """
    words, unknown = int(h.facts[WORDS]), max(1, int(h.facts[UNKNOWN_KINDS]))
    rows = USED_FIRST if h.facts[UNKNOWN_KINDS] else 2
    moves = int(h.facts[OPEN_MAX] + h.facts[UNKNOWN_KINDS]) + 1
    nodes = NODES_FIRST
    if first is not None:  # the whole history takes a little more than a node an operation
        nodes += NODES_FIRST * (h.op.shape[0] // OPERATIONS_FOR_MORE)
    arena = Arena(
        node=np.empty((nodes, NODE_COLUMNS), np.int32),
        mask=np.empty((nodes, 2 * words), np.uint64),
        head=np.full(1 << (2 * nodes - 1).bit_length(), -1, np.int32),
        stack=np.empty((nodes + 2 * moves, 2), np.int32),
        move=np.empty((moves, 2), np.int32),
        used=np.zeros((rows, unknown), np.int32),
        used_chain=np.full(rows, -1, np.int32),
        used_head=np.full(2 * rows, -1, np.int32),
        at=np.zeros(ARENA_FACTS, np.int64),
    )
    memory.take_all(arena)
    rehash_used(arena.used, 1, arena.used_chain, arena.used_head)
    arena.at[DEEPEST], arena.at[BEST], arena.at[USED_COUNT] = -1, -1, 1
    arena.at[STOP] = h.event.shape[0]
    if first is not None:
        arena.stack[0] = -1, first
        arena.at[TOP] = 1
    return arena


def enlarge(arena: Arena, need: int, memory: Memory) -> Arena:
    """Return the arena with more room in the array that `need` names.

    Raises:
        MemorySpentError: it does not fit the budget.
    """
    if need == NEEDS_NODES:
        return _more_nodes(arena, memory)
    if need == NEEDS_STACK:
        stack = np.empty((memory.larger(arena.stack.shape[0], 8), 2), np.int32)
        memory.take_all([stack])
        stack[: arena.at[TOP]] = arena.stack[: arena.at[TOP]]
        memory.give_back([arena.stack])
        return arena._replace(stack=stack)
    assert need == NEEDS_USED
    return _more_used(arena, memory)


def _more_nodes(arena: Arena, memory: Memory) -> Arena:
    count = int(arena.at[NODES])
    words = arena.mask.shape[1]
    rows = memory.larger(count, 4 * NODE_COLUMNS + 8 * words + 16)
    heads = arena.head
    if rows > heads.size:
        memory.give_back([heads])
        heads = np.full(2 * heads.size, -1, np.int32)
        memory.take_all([heads])
    # One array after the other, so that only one of them is held twice at any time.
    node = np.empty((rows, NODE_COLUMNS), np.int32)
    memory.take_all([node])
    node[:count] = arena.node[:count]
    memory.give_back([arena.node])
    arena = arena._replace(node=node)
    mask = np.empty((rows, words), np.uint64)
    memory.take_all([mask])
    mask[:count] = arena.mask[:count]
    memory.give_back([arena.mask])
    if heads is not arena.head:
        rehash_nodes(node, count, heads)
    return arena._replace(mask=mask, head=heads)


def _more_used(arena: Arena, memory: Memory) -> Arena:
    count, kinds = arena.used.shape
    rows = memory.larger(count, 4 * kinds + 16)
    used = np.zeros((rows, kinds), np.int32)
    chain = np.empty(rows, np.int32)
    head = np.full(2 * arena.used_head.size, -1, np.int32)
    memory.take_all([used, chain, head])
    used[:count] = arena.used
    memory.give_back([arena.used, arena.used_chain, arena.used_head])
    at = int(arena.at[USED_COUNT])
    rehash_used(used, at, chain, head)
    return arena._replace(used=used, used_chain=chain, used_head=head)
