"""The skeleton of a search for an order: a tree of orders, deferred moves, and a memo of sets.

Two families use it: the pairs of a FIFO queue (queue_pairs) and the gets, puts and appends of a
text (text_order). Both give a place to one operation, or pair of them, after the other; what has no
place yet is *left*. Each says for itself what may come next, which *move* of these is the best, and
what a place changes. Common to both:

- What is left is linked in lists, one by calls, one by returns. An operation is unlinked when it
  gets a place and relinked when it gives it back, in reverse order, in a few steps (dancing links).
- The orders that were visited are the *nodes* of a tree: a node is its parent's order and one more
  move. One order is followed to its end, depth first, since a wrong choice mostly shows soon.
- All moves but the best are *deferred*. When an order cannot be continued, the deferred move of the
  greatest *merit* is resumed: the length of its order, less a price for the choices in it that
  were not the best (limited discrepancy search, as best-first search). So an order with a few
  wrong choices in a long history is found without trying everything after the first of them.
- What can follow depends on which operations have places, not on their order. So each such set is
  visited once. Sets are compared by 128-bit hashes that an operation toggles (Zobrist hashing).

A family's arrays are a NamedTuple with at least the fields that `SearchArrays` names; its scalars
in `at` follow those below.

Source: Knuth 2000 (dancing links); Harvey & Ginsberg 1995 (limited discrepancy search); Zobrist
1970.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.search_vectors import mix
from shaketable.harness.compiled import compiled, inlined

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]

NEVER = 2**63 - 1
"""The return of an indeterminate operation."""
NONE = -1
"""No operation, no move, no node."""

# ---- columns of operations: families add their own
CALLED = 0
RETURNED = 1
# ---- columns of links: each list has one for the next and one for the previous operation
NEXT_CALL = 0
NEXT_RETURN = 2
# ---- columns of `node`: the order it continues, and the move that continues it
PARENT = 0
DEPTH = 1
COST = 2
NODE_FIRST = 3
NODE_SECOND = 4
NODE_COLUMNS = 5
# ---- columns of `later`: a node, and a move after it
AFTER = 0
LATER_COST = 1
LATER_FIRST = 2
LATER_SECOND = 3
MERIT = 4
LATER_COLUMNS = 5
# ---- `at`: the scalars of every search
AT_DEPTH = 0
"""How many moves the current order has."""
NODE = 1
NODES = 2
LATER = 3
SEEN = 4
VISITED = 5
TICK = 6
REACHED = 7
"""Some order that was visited has places for all that returned before this time."""
NEXT_FIRST = 8
"""The move that was chosen to come next, in two numbers whose meaning the family knows; NONE."""
NEXT_SECOND = 9
NEXT_COST = 10
SEARCH_FACTS = 11

# ---- what a search returns
REFUTED = 0
LINEARIZED = 1
SLICE_OVER = 2
NEEDS_SEEN = 3
NEEDS_NODES = 4
NEEDS_LATER = 5
STALLED = 6


class SearchArrays(Protocol):
    """The arrays that the skeleton needs; a family's NamedTuple has these and more."""

    @property
    def path(self) -> Int32s:
        """By depth, the node of the current order."""
        ...

    @property
    def way(self) -> Int32s:
        """Nodes on the way to where the search continues."""
        ...

    @property
    def node(self) -> Int32s:
        """The orders that were visited, as a tree; the root has no move."""
        ...

    @property
    def later(self) -> Int32s:
        """Deferred moves, as a heap by merit."""
        ...

    @property
    def seen(self) -> Words:
        """A hash set of the sets of operations that were visited, by 128-bit hashes."""
        ...

    @property
    def hashed(self) -> Words:
        """The hash of what has a place now, in two halves."""
        ...

    @property
    def at(self) -> Int64s:
        """Scalars, see above."""
        ...


# ---- what is left


@inlined
def unlink(links: Int32s, i: int) -> None:
    """Remove an operation from all lists; its own links stay (dancing links)."""
    for column in range(0, links.shape[1], 2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = after
        links[after, column + 1] = before


@inlined
def relink(links: Int32s, i: int) -> None:
    """Undo `unlink`; operations come back in the reverse order of their removal."""
    for column in range(0, links.shape[1], 2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = i
        links[after, column + 1] = i


@inlined
def first_return(operations: Int64s, links: Int32s) -> int:
    """Return the earliest return of what is left in the lists, NEVER if nothing is."""
    head = operations.shape[0]
    first = links[head, NEXT_RETURN]
    return int(operations[first, RETURNED]) if first != head else NEVER


# ---- the memo of sets


@inlined
def toggle(hashed: Words, number: int) -> None:
    """Add an operation to the hash of what has a place, or take it out (Zobrist hashing)."""
    hashed[0] ^= mix(np.uint64(number) + np.uint64(1 << 40))
    hashed[1] ^= mix(np.uint64(number) + np.uint64(3 << 40))


@inlined
def is_new(p: SearchArrays, state: int) -> bool:
    """Memoise what has a place, with what else the future depends on; False if visited before."""
    last = np.uint64(p.seen.shape[0] - 1)
    one = p.hashed[0] ^ mix(np.uint64(state) + np.uint64(5 << 40))
    other = p.hashed[1] ^ mix(np.uint64(state) + np.uint64(7 << 40))
    x = np.int64(one & last)
    while p.seen[x, 0] or p.seen[x, 1]:  # an empty row is 0, a hash is not
        if p.seen[x, 0] == one and p.seen[x, 1] == other:
            return False
        x = np.int64(np.uint64(x + 1) & last)
    p.seen[x, 0] = one
    p.seen[x, 1] = other
    p.at[SEEN] += 1
    return True


@compiled
def keep_seen(old: Words, seen: Words) -> None:
    """Rehash the set of visited states into a larger one."""
    last = np.uint64(seen.shape[0] - 1)
    for n in range(old.shape[0]):
        if old[n, 0] or old[n, 1]:
            x = np.int64(old[n, 0] & last)
            while seen[x, 0] or seen[x, 1]:
                x = np.int64(np.uint64(x + 1) & last)
            seen[x, 0] = old[n, 0]
            seen[x, 1] = old[n, 1]


# ---- moves: one is chosen, the others are deferred


@inlined
def choose(p: SearchArrays, first: int, second: int) -> None:
    """Choose the best move after the current node: it costs nothing more."""
    p.at[NEXT_FIRST] = first
    p.at[NEXT_SECOND] = second
    p.at[NEXT_COST] = p.node[p.at[NODE], COST]


@inlined
def defer(p: SearchArrays, first: int, second: int, cost: int, merit: int) -> None:
    """Defer a move; `cost` is that of all choices that led there."""
    n = p.at[LATER]
    p.at[LATER] = n + 1
    p.later[n, AFTER] = p.at[NODE]
    p.later[n, LATER_COST] = cost
    p.later[n, LATER_FIRST] = first
    p.later[n, LATER_SECOND] = second
    p.later[n, MERIT] = merit
    sift_up(p.later, int(n))


@inlined
def next_node(p: SearchArrays) -> int:
    """Add the node to visit next, and return it; NONE if no move is left.

    It is that of the chosen move, or else of the deferred one with the greatest merit.
    """
    y = p.at[NODES]
    if y == 0:  # the root: the order without a move
        p.at[NODES] = 1
        return 0
    after = p.at[NODE]
    if p.at[NEXT_FIRST] == NONE:
        if p.at[LATER] == 0:
            return NONE
        after = np.int64(p.later[0, AFTER])
        p.at[NEXT_FIRST] = p.later[0, LATER_FIRST]
        p.at[NEXT_SECOND] = p.later[0, LATER_SECOND]
        p.at[NEXT_COST] = p.later[0, LATER_COST]
        pop_first(p.later, int(p.at[LATER]))
        p.at[LATER] -= 1
    p.at[NODES] = y + 1
    p.node[y, PARENT] = after
    p.node[y, DEPTH] = p.node[after, DEPTH] + 1
    p.node[y, COST] = p.at[NEXT_COST]
    p.node[y, NODE_FIRST] = p.at[NEXT_FIRST]
    p.node[y, NODE_SECOND] = p.at[NEXT_SECOND]
    p.at[NEXT_FIRST] = NONE
    return int(y)


@inlined
def find_way(p: SearchArrays, node: int) -> int:
    """Find the way to a node: return how many nodes `way` has, the last one to be entered first.

    The way starts at the last node that the paths of `node` and of the current order share. Before
    that is entered, the current order is taken back to the depth of its parent.
    """
    count = 0
    # `path` tells apart the nodes of one depth.
    while p.node[node, DEPTH] > p.at[AT_DEPTH] or p.path[p.node[node, DEPTH]] != node:
        p.way[count] = node
        count += 1
        node = p.node[node, PARENT]
    return count


@inlined
def lacks(p: SearchArrays, moves_max: int) -> int:
    """Return which array must grow before the next visit, LINEARIZED if none.

    A visit defers at most `moves_max` moves.
    """
    if p.at[LATER] + moves_max > p.later.shape[0]:
        return NEEDS_LATER
    if p.at[NODES] == p.node.shape[0]:
        return NEEDS_NODES
    if 2 * (p.at[SEEN] + 1) > p.seen.shape[0]:
        return NEEDS_SEEN
    return LINEARIZED


# ---- a binary heap of rows: the first one has the greatest MERIT


@inlined
def swap(rows: Int32s, x: int, y: int) -> None:
    """Exchange two rows."""
    for column in range(rows.shape[1]):
        held = rows[x, column]
        rows[x, column] = rows[y, column]
        rows[y, column] = held


@inlined
def sift_up(rows: Int32s, n: int) -> None:
    """Move the last row, the n-th, up to its place."""
    while n and rows[(n - 1) >> 1, MERIT] < rows[n, MERIT]:
        swap(rows, n, (n - 1) >> 1)
        n = (n - 1) >> 1


@inlined
def pop_first(rows: Int32s, count: int) -> None:
    """Remove the first of `count` rows; count - 1 are left."""
    last = count - 1
    # The last row takes its place and sinks below every child of greater merit.
    for column in range(rows.shape[1]):
        rows[0, column] = rows[last, column]
    n = 0
    while 2 * n + 1 < last:
        child = 2 * n + 1
        if child + 1 < last and rows[child + 1, MERIT] > rows[child, MERIT]:
            child += 1
        if rows[child, MERIT] <= rows[n, MERIT]:
            break
        swap(rows, n, child)
        n = child
