"""The arrays of the search for an order of a key's gets, puts and appends (text_order)."""

from __future__ import annotations

from typing import NamedTuple

from shaketable.checkers.kernels.order_search import (
    NEVER,
    NEXT_CALL,
    NEXT_RETURN,
    NONE,
    RETURNED,
    SEARCH_FACTS,
    Int32s,
    Int64s,
    Words,
)
from shaketable.harness.compiled import compiled

UNSEEN = -(2**62)
"""The time of the last get of a state that no get shows: before all others."""
RANK_COST = 8
UNKNOWN_COST = 8
"""By so many operations an order must be longer to make up for one choice that was one rank below
the best, or of an indeterminate operation that was not the best."""
ANYTHING = -2
"""What an append of the empty text shows: it has the place of a get that any text satisfies."""
APPENDS = -2
"""In `kind_to`, for a kind that appends: `edge` has where it leads."""
WINDOW = 32
"""How many gets are checked for texts that must stay; those that may come next always are."""
ANCESTORS_MAX = 16
"""How many puts, of ever shorter prefixes of a text, are checked at most."""

# ---- columns of `operations` after those of all operations
KIND = 2
SHOWN = 3
# ---- columns of links after those of all searches: a list of each kind by calls
NEXT_KIND = 4
LINKS = 6
# ---- rows of links after those of the operations: heads of lists
RETURNS = 0
GETS = 0
CHANGES = 1
KINDS = 2
# ---- columns of `spare`, by kind: indeterminate operations in the order of their calls
SPARE_START = 0
SPARE_USED = 1
# ---- columns of `edge`
EDGE_KIND = 0
EDGE_TO = 1
# ---- columns of `awaited`
LATEST = 0
LATEST_BELOW = 1
NEXT_LATEST = 2
# ---- columns of `move`
CHOICE_OP = 0
CHOICE_STATE = 1
CHOICE_CLASS = 2
# ---- columns of `before`, by depth
BEFORE_PLACED = 0
BEFORE_STATE = 1
# ---- `at`: scalars after those of all searches
PLACED = SEARCH_FACTS
STATE = SEARCH_FACTS + 1
NEED_FIRST = SEARCH_FACTS + 2
NEED_LAST = SEARCH_FACTS + 3
GOAL = SEARCH_FACTS + 4
MAY_RETURN = SEARCH_FACTS + 5
AT_FACTS = SEARCH_FACTS + 6


class Texts(NamedTuple):
    """A key's history, and the state of its search. *Left* are operations without a place.

    A *state* is the number of a text that some get shows, or that is a prefix of such a text;
    the last state, *junk*, is every other text. States are the nodes of a tree of prefixes. A
    *kind* is a text that is put, or one that is appended.

    The fields of `order_search.SearchArrays` are described there; a move is an operation and the
    state that it leads to.

    Attributes:
        first: each state's number in preorder: the states that state s is a prefix of have the
            numbers first[s] .. last[s].
        last: see there.
        parent: the longest proper prefix of each state that is a state.
        put_above: the longest prefix of each state that is put, the state itself included.
        put_kind: the kind that puts each state.
        edge_start: where each state's edges start.
        edge: appending kinds, and the states that they lead to, by the state that they lead from.
        kind_to: the state that a kind puts, APPENDS for those that append.
        state_seen: the latest return of a get that shows a state, or what appends can make of it.
        kind_seen: the latest return of a get that may show what a kind puts or appends.
        awaited: for each state the latest call of a get that shows it or a text it is a prefix of
            without a longer put between them; the child below which that is, NONE for the state
            itself; and the latest call elsewhere.
        kind_awaited: for each kind the latest call of a get whose text cannot be reached without
            it.
        operations: call, return, kind (NONE for gets) and state shown, in the order of calls.
        links: lists of the known operations that are left.
        spare: for each kind, and one more row, where its indeterminate operations start in
            `spare_op`, and how many of them are used.
        spare_op: indeterminate operations by kind, then by call.
        spare_puts: kinds that have such operations and put what some get shows.
        handled: for each kind the tick of its last visit.
        trail: the operations that have a place, in order.
        before: by depth, how many operations had a place before that node, and the state.
        move: what may come next.
    """

    first: Int32s
    last: Int32s
    parent: Int32s
    put_above: Int32s
    put_kind: Int32s
    edge_start: Int32s
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
    before: Int32s
    path: Int32s
    way: Int32s
    node: Int32s
    move: Int32s
    later: Int32s
    seen: Words
    hashed: Words
    at: Int64s


@compiled
def propagate_seen(
    edge_start: Int32s, edge: Int32s, kind_to: Int32s, state_seen: Int64s, kind_seen: Int64s
) -> None:
    """Propagate the latest returns of gets back along edges, and to the kinds of these edges.

    One pass from the last state to the first suffices: edges lead to larger numbers.
    """
    for s in range(edge_start.size - 2, -1, -1):
        for e in range(edge_start[s], edge_start[s + 1]):
            seen = state_seen[edge[e, EDGE_TO]]
            k = edge[e, EDGE_KIND]
            state_seen[s] = max(state_seen[s], seen)
            kind_seen[k] = max(kind_seen[k], seen)
    for k in range(kind_to.size):
        if kind_to[k] != APPENDS:
            kind_seen[k] = state_seen[kind_to[k]]


@compiled
def propagate_awaited(parent: Int32s, put_kind: Int32s, awaited: Int64s) -> None:
    """Propagate the latest calls of gets up the tree of texts, but not past a text that is put.

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
def find_needed(
    edge_start: Int32s, edge: Int32s, put_kind: Int32s, start: int, called: Int64s,
    ways: Int32s, kind_awaited: Int64s,
) -> None:  # fmt: skip
    """Find for each appending kind the latest call of a get that cannot do without it.

    That is a get whose text can be reached by one edge only: it is not put, and is not the first
    text. `called` has the latest calls of gets by state; `ways` is all 0, and receives the number
    of edges that lead to each state.
    """
    for e in range(edge.shape[0]):
        ways[edge[e, EDGE_TO]] += 1
    for s in range(edge_start.size - 2, -1, -1):
        for e in range(edge_start[s], edge_start[s + 1]):
            to, k = edge[e, EDGE_TO], edge[e, EDGE_KIND]
            if ways[to] == 1 and put_kind[to] < 0 and to != start:
                called[s] = max(called[s], called[to])
                kind_awaited[k] = max(kind_awaited[k], called[to])


@compiled
def link(operations: Int64s, by_return: Int64s, links: Int32s) -> None:
    """Link the operations that return: in lists by calls, by returns, and by kind."""
    size = operations.shape[0]
    for row in range(links.shape[0]):
        links[row, :] = row
    for n in range(size):
        for column in range(0, LINKS, 2):
            i = by_return[n] if column == NEXT_RETURN else n
            kind = operations[i, KIND]
            if operations[i, RETURNED] == NEVER or (column == NEXT_KIND and kind == NONE):
                continue
            head = size + RETURNS
            if column == NEXT_CALL:
                head = size + (GETS if kind == NONE else CHANGES)
            elif column == NEXT_KIND:
                head = size + KINDS + kind
            before = links[head, column + 1]
            links[before, column] = i
            links[i, column + 1] = before
            links[i, column] = head
            links[head, column + 1] = i
