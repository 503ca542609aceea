"""Numbers the texts that a key of a store can hold, as far as a get shows them.

All texts that gets show stand in one trie of bytes, so a text that begins one of them is a node,
and equal texts are one node. Of these nodes only some can be held: the first text, what was put,
and what appends make of these. They are found from there on, by walking the trie of all appended
texts along the trie of the gets: the cost is that of what fits, whatever else might be appended.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.harness.compiled import compiled

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

NOWHERE = -1
"""No node, no state, no kind."""

# ---- `at` of `reach`
STATES = 0
WALKED = 1
EDGES = 2
REACH_FACTS = 3
# ---- columns of edges
EDGE_FROM = 0
EDGE_KIND = 1
EDGE_TO = 2

# ---- what `reach` answers
ALL_REACHED = 0
REACH_SLICE_OVER = 1
NEEDS_EDGES = 2


class Trie(NamedTuple):
    """A tree of texts, byte by byte; the first node is the empty text.

    Attributes:
        child: the last child that each node was given, NOWHERE for none.
        sibling: the child that its parent was given before.
        parent: the text without its last byte.
        byte: the last byte.
    """

    child: Int32s
    sibling: Int32s
    parent: Int32s
    byte: Bytes


@compiled
def insert(t: Trie, used: int, text: Bytes, begin: Int64s, node: Int32s) -> int:
    """Give texts their nodes; return how many nodes are used then.

    Args:
        t: has a row for each byte of `text` beside the `used` ones.
        used: nodes so far.
        text: the texts one after the other.
        begin: where each begins, and where the last one ends.
        node: filled with the node of each.
    """
    for n in range(node.size):
        v = 0
        for place in range(begin[n], begin[n + 1]):
            byte = text[place]
            w = t.child[v]
            while w >= 0 and t.byte[w] != byte:
                w = t.sibling[w]
            if w < 0:
                w = used
                used += 1
                t.byte[w] = byte
                t.parent[w] = v
                t.child[w] = NOWHERE
                t.sibling[w] = t.child[v]
                t.child[v] = w
            v = w
        node[n] = v
    return used


@compiled
def find(t: Trie, text: Bytes, begin: Int64s, node: Int32s) -> None:
    """Find the nodes of texts, NOWHERE for those that have none."""
    for n in range(node.size):
        v = 0
        for place in range(begin[n], begin[n + 1]):
            w = t.child[v]
            while w >= 0 and t.byte[w] != text[place]:
                w = t.sibling[w]
            v = w
            if v < 0:
                break
        node[n] = v


class Reach(NamedTuple):
    """Which texts can be held, as far as that is known.

    Attributes:
        kind: of each node of what is appended the kind of append that it ends, NOWHERE for none.
        state: of each node of what gets show its number if it can be held, NOWHERE if not.
        node: of each of these its node; those that need no append are there at first.
        edges: which kind leads from which state to which.
        pairs: a stack with a row for each node of what is appended.
        at: how far this is.
    """

    kind: Int32s
    state: Int32s
    node: Int32s
    edges: Int32s
    pairs: Int32s
    at: Int64s


@compiled
def reach(shown: Trie, appended: Trie, r: Reach, steps_max: int) -> int:
    """Find what appends lead to; return ALL_REACHED, or why not all of it is there yet.

    Args:
        shown: what the gets show.
        appended: what is appended.
        r: filled, as long as there is room.
        steps_max: pairs of nodes to look at before the next look at the clock.
    """
    kind, state, node, edges, pairs, at = r.kind, r.state, r.node, r.edges, r.pairs, r.at
    steps = 0
    while at[WALKED] < at[STATES]:
        if at[EDGES] + kind.size > edges.shape[0]:
            return NEEDS_EDGES
        if steps > steps_max:
            return REACH_SLICE_OVER
        source = at[WALKED]
        at[WALKED] = source + 1
        pairs[0, 0] = 0
        pairs[0, 1] = node[source]
        top = 1
        # Each node of `appended` fits along one way at most, so once at most it is on the stack.
        while top:
            top -= 1
            steps += 1
            x = appended.child[pairs[top, 0]]
            v = pairs[top, 1]
            while x >= 0:
                w = shown.child[v]
                while w >= 0 and shown.byte[w] != appended.byte[x]:
                    w = shown.sibling[w]
                if w >= 0:
                    if kind[x] >= 0:
                        if state[w] < 0:
                            state[w] = at[STATES]
                            node[at[STATES]] = w
                            at[STATES] += 1
                        edges[at[EDGES], EDGE_FROM] = source
                        edges[at[EDGES], EDGE_KIND] = kind[x]
                        edges[at[EDGES], EDGE_TO] = state[w]
                        at[EDGES] += 1
                    pairs[top, 0] = x
                    pairs[top, 1] = w
                    top += 1
                x = appended.sibling[x]
    return ALL_REACHED


@compiled
def nearest(t: Trie, used: int, state: Int32s, near: Int32s, parent: Int32s) -> None:
    """Find of each state the longest other one that it begins with, NOWHERE for none.

    `near` has a row for each node; a node's parent has a smaller number.
    """
    for v in range(used):
        above = near[t.parent[v]] if v else NOWHERE
        near[v] = above
        if state[v] >= 0:
            parent[state[v]] = above
            near[v] = state[v]


@compiled
def number(parent: Int32s, free: Int32s, first: Int32s, last: Int32s) -> None:
    """Number states so that all that begin with one stand in one stretch, first .. last of it.

    A state's parent has a smaller number. `first` and `last` are of one row more: that one
    begins nothing. `free` has a row for each state.
    """
    size = parent.size
    last[:] = 1
    for s in range(size - 1, -1, -1):
        if parent[s] >= 0:
            last[parent[s]] += last[s]
    top = 0
    for s in range(size):  # `last` holds sizes
        if parent[s] >= 0:
            first[s] = free[parent[s]]
            free[parent[s]] += last[s]
        else:
            first[s] = top
            top += last[s]
        free[s] = first[s] + 1
    for s in range(size):
        last[s] += first[s] - 1
    first[size] = size + 1
    last[size] = -1


@compiled
def carry_down(parent: Int32s, mark: Int32s, above: Int32s) -> None:
    """Find of each state the longest marked one that it begins with, itself included."""
    for s in range(parent.size):
        if mark[s] >= 0:
            above[s] = s
        else:
            above[s] = above[parent[s]] if parent[s] >= 0 else NOWHERE
