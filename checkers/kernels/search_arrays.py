"""The arrays that the search's kernels work on; what stands where, and how large it may grow.

Kernels never allocate what grows: they return a status, the driver makes the array larger
inside its budget of bytes, and calls them again. So the bytes are counted exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.uint8]

# ---- what stands at an event
CALL = 0
RETURN = 1
UNKNOWN_CALL = 2

# ---- values of LOOSE
UNSEEN = 1
CARRIED = 2

# ---- History.facts
FAMILY = 0
WORDS = 1
"""How many 64-bit words hold one bit for each slot."""
UNKNOWN_KINDS = 2
LAST_REFUSAL = 3
"""The last event at which an operation returns that is possible unless one value stands there."""
VALUES = 4
EVENTS = 5
OPEN_MAX = 6
"""The most operations that are open at a time: how many slots there are."""
KINDS = 7
FIRST_LACKING = 8
"""VALUE: the first return of an operation that needs a value which nothing had left when it
returned; -1 if there is none."""
FACTS = 9


# ---- columns of History.event
WHO = 0
"""The operation that is called or returns; of one of unknown outcome the place of its kind in
`unknown_kind`."""
WHAT = 1
"""CALL, RETURN or UNKNOWN_CALL."""
ABOUT = 2
"""VALUE: the value that what is called leaves; at the return of a swap that must happen the one
that it needs; -1 at others."""
EVENT_COLUMNS = 3
# ---- columns of History.op
KIND = 0
SLOT = 1
"""Which bit of the masks is the operation's while it is open."""
CALLED = 2
"""The event of its call."""
RETURNED = 3
"""The event of its return; no event's number if it never does."""
BEHIND = 4
"""The open operation that returns next before it, at its call; -1 for none."""
LOOSE = 5
"""0 if it must happen; UNSEEN if it is of unknown outcome; CARRIED if it overwrites and another one
that must happen lies inside its interval: it can stand right before whatever makes that one happen,
so nothing ever has to be done for it."""
PRODUCER = 6
"""VALUE: the last event before its return at which something is called that leaves the value which
it needs; -1 for none."""
MADE_BY = 7
"""VALUE: of a swap, how many operations that leave the value which it needs are called before its
return."""
TAKEN_BY = 8
"""VALUE: of a swap, how many swaps that must happen and need the same value return up to its own
return, itself counted."""
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
FIRST_MADE = 0
"""The first event at which something is called that leaves the value, -1 for the initial one, no
event's number if there is none."""
LAST_NEED = 1
"""The last event at which an operation returns that needs the value, -1 for none."""
NEED_BEGIN = 2
"""Where the value's operations begin in `need`."""
ROOM_BEGIN = 3
"""Where the value's numbers begin in `room`."""
VALUE_COLUMNS = 4


class History(NamedTuple):
    """One problem, ordered by time. Never written after it is built.

    *Known* operations returned; they are numbered by their place in the problem among those.
    An operation of unknown outcome that is the only one of its kind may stand among them too: it
    need not happen. Others of unknown outcome are counts by kind.

    What belongs together stands in one array: it is read together, and each further array of a
    tuple makes all kernels slower to compile.

    Attributes:
        event: what stands at each event, shape (events, EVENT_COLUMNS).
        op: the known operations, shape (operations, OP_COLUMNS).
        does: the kinds, shape (kinds, DOES_COLUMNS).
        unknown_kind: the kinds that have operations of unknown outcome, counted.
        unknown_begin: where each of these kinds begins in `unknown_member`, and the end.
        unknown_member: the operations of unknown outcome, by kind, then by call; they have
            numbers of their own.
        value: the values, and one more for the end, shape (values + 1, VALUE_COLUMNS).
        need: VALUE: the operations that need a value, by value, then by call.
        room: VALUE: for each value the least by which, from some time on, the calls that leave it
            exceed the returns of swaps that need it; one number for each count of both.
        facts: numbers, see above.
    """

    event: Int32s
    op: Int32s
    does: Int32s
    unknown_kind: Int32s
    unknown_begin: Int64s
    unknown_member: Int64s
    value: Int32s
    need: Int32s
    room: Int32s
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
LEFT = 1
SPARED = 2
REACH_COLUMNS = 3
# ---- columns of Cursor.passed
MADE = 0
TAKEN = 1
"""Numbered as CALL and RETURN are, which count for them; UNKNOWN_CALL has the bit of CALL."""
# ---- Cursor.place
AT = 0
TICK = 1


class Cursor(NamedTuple):
    """A place between events: which operations are open there. It moves to and fro.

    Attributes:
        holder: which operation has a slot.
        open: for each operation the NEXT and the PREVIOUS open one, those that return first in
            front; a circle through the number behind the last operation.
        open_mask: their slots: observers, mutators (all others), and the overwriters of these.
        called_unknown: how many of unknown outcome are called before, by place in unknown_kind.
        place: the event behind the place; a number that grows, for the stamps.
        kind_stamp: when a kind was last seen: among required and among optional ones.
        reach: for each value its STAMP, when it was last counted; how often it is LEFT to be
            reached by what is open; how many open swaps away from it are SPARED: they are done, or
            need not happen.
        passed: for each value how many calls that leave it (MADE), and how many returns of swaps
            that need it (TAKEN), lie before the place.
        child: the masks of the node at hand: done, then optional.
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
"""The return that forced the move is still to be passed."""
GAINLESS = 2
"""Its last move was one that could be skipped, and it satisfied no observer."""
COVERED = 4
"""A node that was found later allows all that this one does: its moves need not be tried."""
# ---- moves that are no operation
DROP = -1
"""The operation whose return comes next is optional and never happens."""
FIRST_UNKNOWN = -2
"""Move -2 - k: one of unknown outcome, of the kind at place k of unknown_kind."""
# ---- Arena.at
NODES = 0
TOP = 1
DEEPEST = 2
"""The furthest event that any node stands at; the node is BEST."""
BEST = 3
PROGRESS = 4
"""How many nodes had been looked at when DEEPEST grew the last time."""
LOOKED = 5
USED_COUNT = 6
START = 7
"""The event at which the search starts: 0, or a window's begin."""
STOP = 8
"""The event at which it is through."""
IS_WINDOW = 9
LAST = 10
"""The node that is through: the end of the witness's path."""
ARENA_FACTS = 11


class Arena(NamedTuple):
    """What a search from one start remembers. It grows.

    Attributes:
        node: configurations, see the columns above.
        mask: their masks: done, then optional.
        head: the first node of each chain, by hash; -1 for none. A power of two.
        stack: moves still to be tried, the next one on top: the node, the move. Where the node is
            -1 the move is a first state.
        move: moves of the node that is being expanded, and their ranks.
        used: different counts of used unknown outcomes, by place in unknown_kind; row 0 is none.
        used_chain: the next row with the same hash.
        used_head: the first such row.
        at: numbers, see above.
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
STATES = 2
STEPS_FACTS = 3
MISSING_MAX = 4096


class Steps(NamedTuple):
    """The steps that are known of a model whose states are numbers (Family.TABLE).

    Attributes:
        key: state * kinds + kind, -1 where nothing stands; open addressing, a power of two.
        after: the state after that step, IMPOSSIBLE where it cannot happen.
        missing: pairs of state and kind that a kernel asked for.
        facts: numbers, see above.
    """

    key: Int64s
    after: Int32s
    missing: Int32s
    facts: Int64s


IMPOSSIBLE = -1
MISSING = -2

# ---- what a kernel returns
REFUTED = 0
THROUGH = 1
NEEDS_STEPS = 2
NEEDS_NODES = 3
NEEDS_STACK = 4
NEEDS_USED = 5
STALLED = 6
SLICE_OVER = 7
