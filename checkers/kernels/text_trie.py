"""Numbers the texts that a key of a store can hold, as far as gets show them.

All texts that gets show are in one trie of bytes, so a prefix of one is a node, and equal texts
are one node. Only some nodes can be held: the first text, texts that were put, and what appends
make of these. These are found by a walk through both this trie, from each such node, and the trie
of all appended texts: it costs what matches, however much else might be appended.
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

# ---- what `reach` returns
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
def insert(t: Trie, used: int, text: Bytes, start: Int64s, node: Int32s) -> int:
    """Insert texts; return how many nodes are used then.

    Args:
        t: has a free row for each byte of `text`.
        used: how many nodes are used.
        text: the texts, concatenated.
        start: where each text starts, and where the last one ends.
        node: receives the node of each text.
    """
    for n in range(node.size):
        v = 0
        for place in range(start[n], start[n + 1]):
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
def find(t: Trie, text: Bytes, start: Int64s, node: Int32s) -> None:
    """Look up texts; `node` receives the node of each, NOWHERE if it has none."""
    for n in range(node.size):
        v = 0
        for place in range(start[n], start[n + 1]):
            w = t.child[v]
            while w >= 0 and t.byte[w] != text[place]:
                w = t.sibling[w]
            v = w
            if v < 0:
                break
        node[n] = v


class Reach(NamedTuple):
    """The texts that are known to be holdable, and the work that is left.

    Attributes:
        kind: for each node of the appended texts the kind of append that ends there, or NOWHERE.
        state: for each node of the shown texts its state if it can be held, or NOWHERE.
        node: the node of each state; at first those that need no append.
        edges: which kind leads from which state to which.
        pairs: a stack with a row for each node of the appended texts.
        at: scalars, see above.
    """

    kind: Int32s
    state: Int32s
    node: Int32s
    edges: Int32s
    pairs: Int32s
    at: Int64s


@compiled
def reach(shown: Trie, appended: Trie, r: Reach, steps_max: int) -> int:
    """Find all states that appends lead to (a worklist); return ALL_REACHED, or why it stopped.

    Args:
        shown: the trie of the texts that gets show.
        appended: the trie of the appended texts.
        r: filled, as long as there is room.
        steps_max: pairs of nodes to visit before the clock is checked.
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
        # Walk both tries in step. A node of `appended` matches at most one node of `shown` from
        # here, so it is pushed at most once, and `pairs` is large enough.
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
def find_parents(t: Trie, used: int, state: Int32s, near: Int32s, parent: Int32s) -> None:
    """Find for each state the longest other state that is a prefix of it, NOWHERE for none.

    `near` has a row for each node. A parent has a smaller number than its children, so one pass
    suffices.
    """
    for v in range(used):
        above = near[t.parent[v]] if v else NOWHERE
        near[v] = above
        if state[v] >= 0:
            parent[state[v]] = above
            near[v] = state[v]


@compiled
def number_in_preorder(parent: Int32s, free: Int32s, first: Int32s, last: Int32s) -> None:
    """Number states in preorder: those that s is a prefix of are first[s] .. last[s].

    A state's parent has a smaller number. `first` and `last` have one more row, for junk, which
    is a prefix of nothing. `free` has a row for each state.
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
def longest_marked_prefix(parent: Int32s, mark: Int32s, above: Int32s) -> None:
    """Find for each state its longest marked prefix, itself included, NOWHERE for none."""
    for s in range(parent.size):
        if mark[s] >= 0:
            above[s] = s
        else:
            above[s] = above[parent[s]] if parent[s] >= 0 else NOWHERE
