"""Drives the kernels from one start: slices, growing arrays, missing steps, budgets."""

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
    DOES_COLUMNS,
    EVENT,
    EVENT_COLUMNS,
    EVENTS,
    FACTS,
    FAMILY,
    FILLED,
    FIRST_MADE,
    IMPOSSIBLE,
    KIND,
    KINDS,
    LAST,
    LOOKED,
    LOOSE,
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
    OVERWRITES,
    PRODUCER,
    PROGRESS,
    REACH_COLUMNS,
    REFUTED,
    SLICE_OVER,
    STALLED,
    STEPS_FACTS,
    STOP,
    THROUGH,
    TOP,
    UNKNOWN_KINDS,
    UNSEEN,
    USED_COUNT,
    VALUE_COLUMNS,
    VALUES,
    WORDS,
    A,
    Arena,
    B,
    Cursor,
    History,
    Steps,
)
from shaketable.checkers.kernels.search_history import NO_EVENT, build, sort_out
from shaketable.checkers.kernels.search_memo import chain_anew, chain_used_anew, put_off
from shaketable.checkers.kernels.search_moves import remember
from shaketable.checkers.kernels.search_trace import name_operations, trace
from shaketable.checkers.search.budget import Memory, TimeSpentError
from shaketable.checkers.search.problem import (
    NEVER,
    Family,
    Ints,
    ModelError,
    Problem,
    State,
    said,
    shown,
)

SLICE_NODES = 20_000
"""Between two looks at the clock: some hundredths of a second."""
CHAIN_MAX = 4096
ASIDE_BYTES = 40
"""What a move on the stack takes while the moves are put in another order."""


@dataclass(frozen=True, slots=True)
class Run:
    """Operations, one by one, as a search claims that they can happen.

    Attributes:
        first: the number of the state before them.
        place: their places in the problem.
        state: the number of the state after each.
    """

    first: int
    place: Ints
    state: npt.NDArray[np.int32]


class Setting:
    """One problem, arranged, and its budgets: what all attempts share.

    Raises:
        MemorySpentError: the arranged problem does not fit the budget.
    """

    def __init__(self, problem: Problem, is_over: Callable[[], bool], bytes_max: int) -> None:
        self.problem = problem
        self.is_over = is_over
        self.memory = Memory(bytes_max)
        self.arranged = arrange(problem, self.memory)
        self.table = StepTable(problem, self.memory)
        self.nodes = 0


class Attempt:
    """A search from one state over the whole history, or over windows of it."""

    def __init__(self, setting: Setting, first: int | None = None) -> None:
        self.setting = setting
        self.arena = new_arena(setting.arranged.history, setting.memory, first)

    @property
    def deepest(self) -> int:
        """The furthest event that was reached."""
        return int(self.arena.at[DEEPEST])

    def run(self, stall: int) -> int:
        """Search on until THROUGH, REFUTED or STALLED; return which.

        Raises:
            TimeSpentError: the time is over.
            MemorySpentError: more memory is needed than there is.
        """
        s = self.setting
        h, c = s.arranged.history, s.arranged.cursor
        while True:
            looked = int(self.arena.at[LOOKED])
            status = run(h, c, self.arena, s.table.arrays, SLICE_NODES, stall, CHAIN_MAX)
            s.nodes += int(self.arena.at[LOOKED]) - looked
            if self.is_answer(status):
                return status

    def turn(self, back: int) -> None:
        """Try moves up to `back` events before the deepest one after all others.

        With 0 those at the deepest place come first again. It is not taken to be stuck any more.

        Raises:
            MemorySpentError: there is no room to put moves aside.
        """
        a, memory = self.arena, self.setting.memory
        top = int(a.at[TOP])
        aside = ASIDE_BYTES * top
        memory.take(aside)
        if back:
            put_off(a, self.deepest - back)
        else:
            event = a.node[np.maximum(a.stack[:top, 0], 0), EVENT]
            a.stack[:top] = a.stack[:top][np.argsort(event, kind="stable")]
        memory.take(-aside)
        a.at[PROGRESS] = a.at[LOOKED]

    def is_answer(self, status: int) -> bool:
        """See to what a kernel needs; True if it needs nothing, but has an answer.

        Raises:
            TimeSpentError: the time is over.
            MemorySpentError: more memory is needed than there is.
        """
        s = self.setting
        if status in (THROUGH, REFUTED, STALLED):
            return True
        if status == NEEDS_STEPS:
            s.table.fill()
        elif status != SLICE_OVER:
            self.arena = enlarge(self.arena, status, s.memory)
        if s.is_over():
            raise TimeSpentError
        return False

    def run_found(self) -> Run:
        """After THROUGH: the witness."""
        return self._run_to(int(self.arena.at[LAST]))

    def run_best(self) -> Run | None:
        """The longest run that was found, None if not even a first state was looked at."""
        best = int(self.arena.at[BEST])
        return self._run_to(best) if best >= 0 else None

    def _run_to(self, last: int) -> Run:
        arranged, table = self.setting.arranged, self.setting.table
        h = arranged.history
        size = arranged.operation.size + arranged.unknown.size
        order = np.empty((2, size), np.int32)
        first, count = trace(h, arranged.cursor, self.arena, table.arrays, last, order)
        order = order[:, :count]
        place = np.empty(count, np.int64)
        while not name_operations(
            h, table.arrays, first, order, arranged.operation, arranged.unknown, place
        ):
            table.fill()
        return Run(first, place, order[1])


# Numbers the states of a model, and remembers its steps for the kernels (Family.TABLE).

STEPS_FIRST = 1024
ASKED_AGAIN_MAX = 1000
"""So many steps are asked for once more before a history is refuted."""
ALL_KINDS_MAX = 16
"""With so many kinds or fewer, all steps of a state are asked for at once."""
STATE_BYTES = 200
"""What a state costs besides its own object: its places in a dictionary and a list."""


class StepTable:
    """Asks the model for steps, each one once."""

    def __init__(self, problem: Problem, memory: Memory) -> None:
        self._step = problem.step
        self._kinds = problem.kinds.code.size
        self._memory = memory
        self._observes = problem.kinds.observes.tolist()
        self._overwrites = problem.kinds.overwrites.tolist()
        self._left: dict[int, int] = {}
        self.states: list[State] = []
        self._number: dict[State, int] = {}
        rows, missing = (STEPS_FIRST, MISSING_MAX) if problem.family is Family.TABLE else (1, 1)
        self.arrays = Steps(
            key=np.full(rows, -1, np.int64),
            after=np.empty(rows, np.int32),
            missing=np.empty((missing, 2), np.int32),
            facts=np.zeros(STEPS_FACTS, np.int64),
        )
        memory.take_all(self.arrays)
        self.number(problem.start)

    def number(self, state: State) -> int:
        """Return the number of a state, a new one for a new state."""
        try:
            number = self._number.get(state)
        except Exception as error:
            raise ModelError(f"the model has a state that cannot be kept: {said(error)}") from error
        if number is None:
            number = self._number[state] = len(self.states)
            self.states.append(state)
            self._memory.take(sys.getsizeof(state) + STATE_BYTES)
        return number

    def fill(self) -> None:
        """Find the steps that a kernel missed.

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
        remember(self.arrays.key, self.arrays.after, self.arrays.facts, keys, after)

    def _require_promise(self, state: int, kind: int, after: int) -> None:
        """Hold the model to what it says of operations that observe or overwrite.

        Raises:
            ModelError: they do something else; the search leaves work out because of them.
        """
        if self._observes[kind] and after not in (state, IMPOSSIBLE):
            broken = "that an observer changes nothing"
        elif self._overwrites[kind] and after == IMPOSSIBLE:
            broken = "that an overwriter is always possible"
        elif self._overwrites[kind] and after != self._left.setdefault(kind, after):
            broken = "that an overwriter leads to one state from all"
        else:
            return
        reached = "nothing" if after == IMPOSSIBLE else shown(self.states[after])
        raise ModelError(
            f"the model does not keep its promise {broken}:"
            f" it went from {shown(self.states[state])} to {reached}"
        )

    def require_same(self) -> None:
        """Ask again for some of the steps that are known: a refutation rests on all of them.

        Raises:
            ModelError: an answer differs.
        """
        known = np.flatnonzero(self.arrays.key >= 0)
        known = known[np.argsort(self.arrays.key[known])][:ASKED_AGAIN_MAX]
        for key, after in zip(
            self.arrays.key[known].tolist(), self.arrays.after[known].tolist(), strict=True
        ):
            state, kind = divmod(key, self._kinds)
            reached = self._step(self.states[state], kind)
            told = None if after == IMPOSSIBLE else self.states[after]
            if (reached is None) != (told is None) or reached != told:
                raise ModelError(
                    "the model does not answer the same when asked again:"
                    f" from {shown(self.states[state])} it went to {shown(told)},"
                    f" then to {shown(reached)}"
                )

    def _grow(self) -> None:
        old = self.arrays
        size = 2 * old.key.size
        key, after = np.full(size, -1, np.int64), np.empty(size, np.int32)
        self._memory.take_all([key, after])
        filled = old.key >= 0
        old.facts[FILLED] = 0
        remember(key, after, old.facts, old.key[filled], old.after[filled])
        self._memory.give_back([old.key, old.after])
        self.arrays = old._replace(key=key, after=after)


# Makes of a problem the arrays that the kernels search.

COUNTED_KINDS_MAX = 40
"""With more kinds of unknown outcome than that, one that is alone of its kind is not counted but
stands among the known operations, optional from its call on."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """A problem in order.

    Attributes:
        history: what the kernels search.
        cursor: a place in it.
        operation: for each of the history's operations its place in the problem.
        unknown: places in the problem of those counted by kind.
    """

    history: History
    cursor: Cursor
    operation: Ints
    unknown: Ints


def arrange(problem: Problem, memory: Memory) -> Arranged:
    """Put the problem's operations in order of time.

    Raises:
        MemorySpentError: the arrays do not fit the budget.
    """
    kinds = problem.kinds
    values = problem.values if problem.family is Family.VALUE else 0
    # Sorting holds the times, the order, and as much again inside, before the rest is made.
    sorting = 64 * problem.kind.size
    memory.take(sorting)
    known, returned_ns, loose, counted, unknown_kind, unknown_place = sort_out(
        problem.kind, problem.call_ns, problem.return_ns, kinds.code, (kinds.a, kinds.b),
        values, COUNTED_KINDS_MAX,
    )  # fmt: skip
    times = (problem.call_ns[known], returned_ns, problem.call_ns[counted])
    call_order, return_order, unknown_order = (np.argsort(t, kind="stable") for t in times)
    if loose:
        return_order = return_order[: return_order.size - int((returned_ns == NEVER).sum())]
    events = call_order.size + return_order.size + unknown_order.size
    history = _history(problem, known, events, counted.size, unknown_kind)
    history.op[known.size - loose :, LOOSE] = UNSEEN
    build(history, call_order, return_order, unknown_order, unknown_place, times)
    memory.take(-sorting)
    history.facts[WORDS] = max(1, -(-int(history.facts[OPEN_MAX]) // 64))
    cursor = _cursor(history)
    memory.take_all(history)
    memory.take_all(cursor)
    return Arranged(history, cursor, known, counted)


def _history(
    problem: Problem, known: Ints, events: int, counted: int, unknown_kind: npt.NDArray[np.int32]
) -> History:
    """Allocate a history, and fill in what does not follow from its order."""
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
    value[:, FIRST_MADE] = NO_EVENT
    if of_values:
        value[problem.initial, FIRST_MADE] = -1
    does = np.empty((kinds.code.size, DOES_COLUMNS), np.int32)
    does[:, CODE], does[:, A], does[:, B] = kinds.code, kinds.a, kinds.b
    does[:, OBSERVES], does[:, OVERWRITES] = kinds.observes, kinds.overwrites
    return History(
        event=np.empty((events, EVENT_COLUMNS), np.int32),
        op=op,
        does=does,
        unknown_kind=unknown_kind,
        unknown_begin=np.empty(unknown_kind.size + 1, np.int64),
        unknown_member=np.empty(counted, np.int64),
        value=value,
        need=np.empty(n if of_values else 0, np.int32),
        # Each call may leave a value, and each return end its stay; one more for each value.
        room=np.empty(events + of_values if of_values else 0, np.int32),
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


# Makes and enlarges what a search remembers, inside the budget.

NODES_FIRST = 1024
OPERATIONS_FOR_MORE = 1000
"""For so many operations as many nodes more are laid out at first."""
USED_FIRST = 64


def new_arena(h: History, memory: Memory, first: int | None = None) -> Arena:
    """Return an arena that searches the whole history from state `first`, or has no start yet.

    Raises:
        MemorySpentError: it does not fit the budget.
    """
    words, unknown = int(h.facts[WORDS]), max(1, int(h.facts[UNKNOWN_KINDS]))
    rows = USED_FIRST if h.facts[UNKNOWN_KINDS] else 2
    moves = int(h.facts[OPEN_MAX] + h.facts[UNKNOWN_KINDS]) + 1
    nodes = NODES_FIRST
    if first is not None:  # the whole history: some more than a node for each operation
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
    chain_used_anew(arena.used, 1, arena.used_chain, arena.used_head)
    arena.at[DEEPEST], arena.at[BEST], arena.at[USED_COUNT] = -1, -1, 1
    arena.at[STOP] = h.event.shape[0]
    if first is not None:
        arena.stack[0] = -1, first
        arena.at[TOP] = 1
    return arena


def enlarge(arena: Arena, need: int, memory: Memory) -> Arena:
    """Return the arena with more room for what `need` names.

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
    # One array after the other, so that only one of them is held twice at a time.
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
        chain_anew(node, count, heads)
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
    chain_used_anew(used, at, chain, head)
    return arena._replace(used=used, used_chain=chain, used_head=head)
