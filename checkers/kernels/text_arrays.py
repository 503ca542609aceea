"""What the search for an order of a key's gets, puts and appends works on (text_order)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.harness.compiled import compiled

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]

NEVER = 2**63 - 1
"""The return of an operation of unknown outcome."""
UNSEEN = -(2**62)
"""When the last get returned of what no get shows."""
RANK_COST = 8
UNKNOWN_COST = 8
"""By so many operations an order must be longer to go first that has once taken the next best of
those that could come next, or one of unknown outcome that is not the best."""
ANYTHING = -2
"""What an append of the empty text shows: it takes effect as a get of any text does."""
NOBODY = -1
APPENDS = -2
"""Where a kind leads that appends: `edge` says."""
WINDOW = 32
"""Gets that are looked at when it is asked which texts must stay; all that may come next are."""
SERVERS_MAX = 16
"""Puts that are looked at when one is wanted that a get's text begins with."""

# ---- columns of `operations`
CALLED = 0
RETURNED = 1
KIND = 2
SHOWN = 3
# ---- columns of links: a list by calls, one by returns, one of each kind by calls
NEXT_CALL = 0
NEXT_RETURN = 2
NEXT_KIND = 4
LINKS = 6
# ---- rows of links behind those of the operations: heads of lists
RETURNS = 0
GETS = 0
CHANGES = 1
KINDS = 2
# ---- columns of `spare`, by kind: operations of unknown outcome in the order of their calls
SPARE_BEGIN = 0
SPARE_USED = 1
# ---- columns of `edge`
EDGE_KIND = 0
EDGE_TO = 1
# ---- columns of `awaited`
LATEST = 0
LATEST_BELOW = 1
NEXT_LATEST = 2
# ---- columns of `node`: an operation, where it leads, what stands before it, what choices cost
PARENT = 0
NODE_OP = 1
NODE_STATE = 2
DEPTH = 3
COST = 4
# ---- columns of `later`: a node, and what may come next
AFTER = 0
MOVE_OP = 1
MOVE_STATE = 2
MOVE_COST = 3
# ---- columns of `move`
CHOICE_OP = 0
CHOICE_STATE = 1
CHOICE_CLASS = 2
# ---- columns of `path`, by depth: a node, and what was before it had its place
PATH_NODE = 0
PATH_PLACED = 1
PATH_STATE = 2
# ---- `at`: where the search stands
PLACED = 0
STATE = 1
AT_DEPTH = 2
NODE = 3
NODES = 4
LATER = 5
SEEN = 6
LOOKED = 7
TICK = 8
NEXT_OP = 9
NEXT_STATE = 10
NEXT_COST = 11
NEED_FIRST = 12
NEED_LAST = 13
GOAL = 14
REACHED = 15
MAY_RETURN = 16
AT_FACTS = 17

# ---- what the search answers
REFUTED = 0
THROUGH = 1
SLICE_OVER = 2
NEEDS_SEEN = 3
NEEDS_NODES = 4
NEEDS_LATER = 5


class Texts(NamedTuple):
    """A key's history, and how far its search is.

    A *state* is the number of a text that some get shows, or that such a text begins with; the
    last state, junk, is every other text. A *kind* is a text that is put, or one that is
    appended.

    Attributes:
        first: states in the order of a walk through the tree of texts: those that begin with
            state s have first[s] .. last[s].
        last: see there.
        parent: of each state the longest other one that it begins with.
        put_above: of each state the longest text put that it begins with, itself included.
        put_kind: of each state the kind that puts it.
        edge_begin: where each state's edges begin.
        edge: kinds that append, and where they lead, by the state that they lead from.
        kind_to: the state that a kind puts, APPENDS for those that append.
        state_seen: of each state the latest return of a get that shows it, or what appends can
            make of it.
        kind_seen: of each kind the latest return of a get that may show it.
        awaited: of each state the latest call of a get that shows it, or what begins with it
            unless that begins with a longer text put; below which state this is, NOBODY for the
            state itself; and the latest elsewhere.
        kind_awaited: of each kind the latest call of a get that no text is shown to without it.
        operations: call, return, kind (of gets NOBODY) and state shown, in the order of calls.
        links: lists of the operations of known outcome that are left.
        spare: of each kind, and one more row, where its operations of unknown outcome begin in
            `spare_op`, and how many of them are used.
        spare_op: operations of unknown outcome by kind, then by call.
        spare_puts: kinds that have such operations and put what some get shows.
        handled: of each kind when it was last looked at.
        trail: the operations that have a place, in order.
        path: the nodes that have a place.
        way: nodes on the way to where the search goes on.
        node: orders that were looked at, as a tree; the first has no operation.
        move: what may come next.
        later: what else could have come next, as a heap by merit.
        seen: a table of the sets of operations, with the state, that were looked at.
        hashed: two hashes of what has a place now.
        at: where the search stands.
    """

    first: Int32s
    last: Int32s
    parent: Int32s
    put_above: Int32s
    put_kind: Int32s
    edge_begin: Int32s
    edge: Int32s
    kind_to: Int32s
    state_seen: Int64s
    kind_seen: Int64s
    awaited: Int64s
    kind_awaited: Int64s
    operations: Int64s
    links: Int32s
    spare: Int32s
    spare_op: Int32s
    spare_puts: Int32s
    handled: Int64s
    trail: Int32s
    path: Int32s
    way: Int32s
    node: Int32s
    move: Int32s
    later: Int32s
    seen: Words
    hashed: Words
    at: Int64s


@compiled
def note_seen(
    edge_begin: Int32s, edge: Int32s, kind_to: Int32s, state_seen: Int64s, kind_seen: Int64s
) -> None:
    """Carry the latest returns of gets back along edges, and to the kinds that lead there.

    A state's edges lead to states of larger numbers.
    """
    for s in range(edge_begin.size - 2, -1, -1):
        for e in range(edge_begin[s], edge_begin[s + 1]):
            seen = state_seen[edge[e, EDGE_TO]]
            k = edge[e, EDGE_KIND]
            state_seen[s] = max(state_seen[s], seen)
            kind_seen[k] = max(kind_seen[k], seen)
    for k in range(kind_to.size):
        if kind_to[k] != APPENDS:
            kind_seen[k] = state_seen[kind_to[k]]


@compiled
def note_awaited(parent: Int32s, put_kind: Int32s, awaited: Int64s) -> None:
    """Carry the latest calls of gets up the tree of texts, below each text put only.

    `awaited` has the calls of gets that show a state itself.
    """
    for s in range(parent.size - 1, -1, -1):
        above = parent[s]
        if above < 0 or put_kind[s] >= 0:
            continue
        called = awaited[s, LATEST]
        if called > awaited[above, LATEST]:
            awaited[above, NEXT_LATEST] = awaited[above, LATEST]
            awaited[above, LATEST] = called
            awaited[above, LATEST_BELOW] = s
        else:
            awaited[above, NEXT_LATEST] = max(awaited[above, NEXT_LATEST], called)


@compiled
def note_needed(
    edge_begin: Int32s, edge: Int32s, put_kind: Int32s, start: int, called: Int64s,
    ways: Int32s, kind_awaited: Int64s,
) -> None:  # fmt: skip
    """Note of each kind that appends the latest call of a get that has no way around it.

    `called` has the latest calls of gets by state, `ways` is 0 for each state: it counts the
    edges that lead there.
    """
    for e in range(edge.shape[0]):
        ways[edge[e, EDGE_TO]] += 1
    for s in range(edge_begin.size - 2, -1, -1):
        for e in range(edge_begin[s], edge_begin[s + 1]):
            to, k = edge[e, EDGE_TO], edge[e, EDGE_KIND]
            if ways[to] == 1 and put_kind[to] < 0 and to != start:
                called[s] = max(called[s], called[to])
                kind_awaited[k] = max(kind_awaited[k], called[to])


@compiled
def link(operations: Int64s, by_return: Int64s, links: Int32s) -> None:
    """Chain the operations that return: by their calls, by their returns, and by kind."""
    size = operations.shape[0]
    for row in range(links.shape[0]):
        links[row, :] = row
    for n in range(size):
        for column in range(0, LINKS, 2):
            i = by_return[n] if column == NEXT_RETURN else n
            kind = operations[i, KIND]
            if operations[i, RETURNED] == NEVER or (column == NEXT_KIND and kind == NOBODY):
                continue
            head = size + RETURNS
            if column == NEXT_CALL:
                head = size + (GETS if kind == NOBODY else CHANGES)
            elif column == NEXT_KIND:
                head = size + KINDS + kind
            before = links[head, column + 1]
            links[before, column] = i
            links[i, column + 1] = before
            links[i, column] = head
            links[head, column + 1] = i


@compiled
def keep_seen(old: Words, seen: Words) -> None:
    """Fill a larger table of what was looked at."""
    last = np.uint64(seen.shape[0] - 1)
    for n in range(old.shape[0]):
        if old[n, 0] or old[n, 1]:
            x = np.int64(old[n, 0] & last)
            while seen[x, 0] or seen[x, 1]:
                x = np.int64(np.uint64(x + 1) & last)
            seen[x, 0] = old[n, 0]
            seen[x, 1] = old[n, 1]
