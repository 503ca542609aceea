"""The arrays that the search's kernels work on: their columns, and which of them grow.

Kernels never allocate what grows: they return a status, the driver makes the array larger
within its budget of bytes, and calls them again. So bytes are counted exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.uint8]

# ---- values of WHAT
CALL = 0
RETURN = 1
UNKNOWN_CALL = 2

# ---- values of OPTIONAL
INDETERMINATE = 1
CARRIED = 2

# ---- History.facts
FAMILY = 0
WORDS = 1
"""How many 64-bit words hold a bit for each slot."""
UNKNOWN_KINDS = 2
LAST_REFUSAL = 3
"""The last return of an operation that is possible in all states but one (Access.NOT)."""
VALUES = 4
EVENTS = 5
OPEN_MAX = 6
"""The most operations that are open at a time: the number of slots."""
KINDS = 7
FIRST_LACKING = 8
"""VALUE: the first return of an operation that needs a value which no operation called before
could have produced; -1 if there is none."""
DEPTH = 9
"""VECTOR: how many levels the tree of a vector has."""
FACTS = 10


# ---- columns of History.event
WHO = 0
"""The operation that is called or returns; of an indeterminate one the place of its kind in
`unknown_kind`."""
WHAT = 1
"""CALL, RETURN or UNKNOWN_CALL."""
ABOUT = 2
"""VALUE: at a call the value that the operation produces; at the return of a swap that must happen
the value that it consumes; -1 at others."""
EVENT_COLUMNS = 3
# ---- columns of History.op
KIND = 0
SLOT = 1
"""Which bit of the masks is the operation's while it is open."""
CALLED = 2
"""The event of its call."""
RETURNED = 3
"""The event of its return; NO_EVENT if it has none."""
PREDECESSOR = 4
"""The operation that precedes it in the list of open ones, by return, at its call; -1 for none."""
OPTIONAL = 5
"""0 if it must happen; INDETERMINATE; CARRIED if it is an overwriter and the interval of another
one that must happen lies inside its own: it can take effect right before that one (or what absorbs
that one), so it is optional from its call on."""
PRODUCER = 6
"""VALUE: the last call before its return that produces the value which it needs; -1 for none."""
PRODUCED_BY = 7
"""VALUE: of a swap, how many calls before its return produce the value that it consumes."""
CONSUMED_BY = 8
"""VALUE: of a swap, how many swaps that must happen and consume the same value return up to its own
return, itself included."""
OP_COLUMNS = 9
# ---- columns of History.does
CODE = 0
A = 1
B = 2
OBSERVES = 3
OVERWRITES = 4
"""As in problem.Kinds."""
DOES_COLUMNS = 5
# ---- columns of History.value
FIRST_PRODUCED = 0
"""The first call that produces the value, -1 for the initial value, NO_EVENT if there is none."""
LAST_NEED = 1
"""The last return of an operation that needs the value, -1 for none."""
NEED_START = 2
"""Where the value's operations start in `need`."""
ROOM_START = 3
"""Where the value's numbers start in `room`."""
VALUE_COLUMNS = 4


class History(NamedTuple):
    """One problem, ordered by time. Never written after it is built.

    *Known* operations returned; they are numbered by their place in the problem among those.
    An indeterminate operation that is the only one of its kind may be among them, as optional.
    All other indeterminate operations are counts by kind: two of a kind are interchangeable but
    for their calls, and none of them ever has to happen.

    Columns that are read together are in one array; each further array of a tuple makes all
    kernels slower to compile.

    Attributes:
        event: the events, shape (events, EVENT_COLUMNS).
        op: the known operations, shape (operations, OP_COLUMNS).
        does: the kinds, shape (kinds, DOES_COLUMNS).
        unknown_kind: the kinds of the indeterminate operations that are counted.
        unknown_start: where each of these kinds starts in `unknown_member`, and the end.
        unknown_member: the indeterminate operations, by kind, then by call; they are numbered
            apart.
        value: the values, and one more row for the end, shape (values + 1, VALUE_COLUMNS).
        need: VALUE: the operations that need a value, by value, then by call.
        room: VALUE: for each value, and each number of calls that produce it plus returns that
            consume it, the least difference (calls - returns) from there to the end.
        change: VECTOR: what the kinds do, rows of (problem.Does, entry, value). Those of a kind are
            from its A to its B in `does`.
        facts: scalars, see above.
    """

    event: Int32s
    op: Int32s
    does: Int32s
    unknown_kind: Int32s
    unknown_start: Int64s
    unknown_member: Int64s
    value: Int32s
    need: Int32s
    room: Int32s
    change: Int32s
    facts: Int64s


# ---- rows of Cursor.open_mask
OBSERVERS = 0
MUTATORS = 1
OVERWRITERS = 2
# ---- columns of Cursor.open
NEXT = 0
PREVIOUS = 1
# ---- columns of Cursor.reach
STAMP = 0
AVAILABLE = 1
SPARED = 2
REACH_COLUMNS = 3
# ---- columns of Cursor.passed
PRODUCED = 0
CONSUMED = 1
"""Numbered as CALL and RETURN are, which count for them; UNKNOWN_CALL has the bit of CALL."""
# ---- Cursor.place
AT = 0
TICK = 1


class Cursor(NamedTuple):
    """A place between events, and which operations are open there. It moves both ways.

    Attributes:
        holder: which operation has a slot.
        open: for each operation the NEXT and the PREVIOUS open one, by return; a ring whose head
            has the number after the last operation's.
        open_mask: their slots: observers, mutators (all others), and the overwriters among these.
        called_unknown: how many indeterminate operations were called before, by place in
            unknown_kind.
        place: the event after the place; a counter for the stamps.
        kind_stamp: when a kind was last seen: among required and among optional operations.
        reach: for each value its STAMP, when it was last counted; how many operations that could
            produce it are AVAILABLE; how many open swaps that consume it are SPARED: they are
            done, or need not happen.
        passed: for each value how many calls that produce it, and returns of swaps that consume
            it, are before the place.
        child: the masks of the current node: done, then optional.
    """

    holder: Int32s
    open: Int32s
    open_mask: Words
    called_unknown: Int32s
    place: Int64s
    kind_stamp: Int64s
    reach: Int64s
    passed: Int32s
    child: Words


# ---- columns of Arena.node
EVENT = 0
STATE = 1
USED = 2
PARENT = 3
MOVE = 4
FLAGS = 5
CHAIN = 6
NODE_COLUMNS = 7
# ---- bits of FLAGS
MIDWAY = 1
"""The return that forced the move is not passed yet."""
GAINLESS = 2
"""Its last move could have been skipped, and satisfied no observer."""
COVERED = 4
"""A node that was found later dominates this one: its moves need not be tried."""
# ---- moves that are no operation
DROP = -1
"""The operation whose return comes next is optional, and never happens."""
FIRST_UNKNOWN = -2
"""Move -2 - k: an indeterminate operation, of the kind at place k of unknown_kind."""
# ---- Arena.at
NODES = 0
TOP = 1
DEEPEST = 2
"""The furthest event that any node reached; the node is BEST."""
BEST = 3
PROGRESS = 4
"""How many nodes had been visited when DEEPEST last grew."""
VISITED = 5
USED_COUNT = 6
START = 7
"""The event at which the search starts: 0, or a window's start."""
STOP = 8
"""The event at which it has succeeded."""
IS_WINDOW = 9
LAST = 10
"""The node that reached STOP: the end of the witness's path."""
ARENA_FACTS = 11


class Arena(NamedTuple):
    """The memo and the stack of a search from one start. It grows.

    Attributes:
        node: configurations, see the columns above.
        mask: their masks: done, then optional.
        head: the first node of each chain, by hash; -1 for none. A power of two.
        stack: moves still to try, the next one on top: the node, the move. Where the node is -1
            the move is a first state.
        move: moves of the node that is being expanded, and their ranks.
        used: distinct counts of used indeterminate operations, by place in unknown_kind; row 0 is
            all zero.
        used_chain: the next row with the same hash.
        used_head: the first such row.
        at: scalars, see above.
    """

    node: Int32s
    mask: Words
    head: Int32s
    stack: Int32s
    move: Int32s
    used: Int32s
    used_chain: Int32s
    used_head: Int32s
    at: Int64s


# ---- Steps.facts
FILLED = 0
MISSING_COUNT = 1
"""TABLE: how many pairs are in `missing`; VECTOR: how often there was no room for a pair."""
STATES = 2
"""VECTOR: how many pairs there are."""
STEPS_FACTS = 3
MISSING_MAX = 4096
PATH_LEVELS = 32
"""The most levels of a tree: entries have numbers of 31 bits."""
PATH_ROOM = PATH_LEVELS + 3 + 4 * (PATH_LEVELS + 2)


class Steps(NamedTuple):
    """The known steps of a model whose states are numbers (Family.TABLE), or its known vectors.

    Attributes:
        key: state * kinds + kind, -1 where empty; a hash table by open addressing, its size a
            power of two. Of vectors a pair: the number of its left half, then that of its right
            one, 32 bits each.
        after: the state after that step, IMPOSSIBLE where it cannot happen; the pair's number.
        missing: pairs of state and kind that a kernel asked for.
        pair: VECTOR: the pairs by number.
        path: VECTOR: room for one step: trees from the root to an entry, and from PATH_LEVELS
            on for comparisons.
        facts: scalars, see above.
    """

    key: Int64s
    after: Int32s
    missing: Int32s
    pair: Int64s
    path: Int64s
    facts: Int64s


IMPOSSIBLE = -1
MISSING = -2

# ---- what a kernel returns
REFUTED = 0
LINEARIZED = 1
"""STOP was reached: what lies before it can be linearized."""
NEEDS_STEPS = 2
NEEDS_NODES = 3
NEEDS_STACK = 4
NEEDS_USED = 5
STALLED = 6
SLICE_OVER = 7
