"""The memo of the search: exact nodes in chains by event and state, compared by dominance.

Lowe memoises configurations by equality. Here a configuration is also dropped if a memoised one
dominates it: has done at least the same observers, has every open mutator as optional or with the
same status, has used no more indeterminate operations, and leaves out no moves that the other tries
(GAINLESS).
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    BEST,
    CHAIN,
    COVERED,
    DEEPEST,
    EVENT,
    FLAGS,
    GAINLESS,
    MIDWAY,
    MOVE,
    MUTATORS,
    NODES,
    OBSERVERS,
    PARENT,
    STATE,
    TOP,
    USED,
    USED_COUNT,
    WORDS,
    Arena,
    Cursor,
    History,
    Int32s,
)
from shaketable.checkers.kernels.search_vectors import mix
from shaketable.harness.compiled import bare, compiled, inlined

Node = tuple[int, int, int, int]
"""Event, state, row of used indeterminate operations, flags. The masks are in Cursor.child."""


@inlined
def _chain_of(e: int, state: int, flags: int, heads: int) -> int:
    x = mix((np.int64(e) * 2 + (flags & MIDWAY)) * 0x9E3779B1 + (np.int64(state) << 40))
    return int(x & np.uint64(heads - 1))


@inlined
def _chain_of_node(node: Int32s, y: int, heads: int) -> int:
    return _chain_of(int(node[y, EVENT]), int(node[y, STATE]), int(node[y, FLAGS]), heads)


@inlined
def _used_no_more(a: Arena, x: int, y: int) -> bool:
    """True if row x uses no kind of indeterminate operation more often than row y."""
    if x != y:
        for k in range(a.used.shape[1]):
            if a.used[x, k] > a.used[y, k]:
                return False
    return True


@inlined
def _child_is_covered(h: History, c: Cursor, a: Arena, x: int) -> bool:
    """True if node x dominates the new one: all that can follow the new node can follow x.

    x has done every observer that the new node has done. Each open mutator is optional in x, or
    has the same status in both: done and required are not comparable, since one is still
    available and the other is no longer owed.
    """
    words = h.facts[WORDS]
    for w in range(words):
        done, optional = c.child[w], c.child[words + w]
        x_done, x_optional = a.mask[x, w], a.mask[x, words + w]
        strict = c.open_mask[MUTATORS, w] & ~x_optional  # these must agree
        if done & ~x_done & c.open_mask[OBSERVERS, w] or ((done ^ x_done) | optional) & strict:
            return False
    return True


@inlined
def _child_covers(h: History, c: Cursor, a: Arena, x: int) -> bool:
    """True if the new node dominates node x: `_child_is_covered` with the sides exchanged."""
    words = h.facts[WORDS]
    for w in range(words):
        done, optional = c.child[w], c.child[words + w]
        x_done, x_optional = a.mask[x, w], a.mask[x, words + w]
        strict = c.open_mask[MUTATORS, w] & ~optional
        if x_done & ~done & c.open_mask[OBSERVERS, w] or ((done ^ x_done) | x_optional) & strict:
            return False
    return True


@bare
def is_covered(h: History, c: Cursor, a: Arena, node: Node, chain_max: int) -> bool:
    """True if a memoised node dominates the new one.

    Nodes that the new one dominates leave their chain and are not expanded any more. After
    `chain_max` nodes the comparison ends: a missed one costs time, and proves nothing wrong.
    """
    e, state, used, flags = node
    chain = _chain_of(e, state, flags, a.head.size)
    last = -1
    x = a.head[chain]
    seen = 0
    while x >= 0 and seen < chain_max:
        following = a.node[x, CHAIN]
        same = a.node[x, EVENT] == e and a.node[x, STATE] == state
        if same and (a.node[x, FLAGS] ^ flags) & MIDWAY == 0:
            seen += 1
            # A GAINLESS node tries no overwriters: it leaves them to the node before it. So it
            # must not stand in for a node that tries them, which may be that very node.
            x_skips, skips = a.node[x, FLAGS] & GAINLESS, flags & GAINLESS
            if (
                (skips or not x_skips)
                and _child_is_covered(h, c, a, x)
                and _used_no_more(a, int(a.node[x, USED]), used)
            ):
                return True
            if (
                (x_skips or not skips)
                and _child_covers(h, c, a, x)
                and _used_no_more(a, used, int(a.node[x, USED]))
            ):
                if last < 0:
                    a.head[chain] = following
                else:
                    a.node[last, CHAIN] = following
                a.node[x, FLAGS] |= COVERED
                x = following
                continue
        last = x
        x = following
    return False


@inlined
def add_node(h: History, c: Cursor, a: Arena, node: Node, parent: int, move: int) -> int:
    """Memoise the new node, whose masks are in c.child; return its number."""
    e, state, used, flags = node
    y = a.at[NODES]
    a.at[NODES] = y + 1
    a.node[y, EVENT] = e
    a.node[y, STATE] = state
    a.node[y, USED] = used
    a.node[y, FLAGS] = flags
    a.node[y, PARENT] = parent
    a.node[y, MOVE] = move
    for w in range(2 * h.facts[WORDS]):
        a.mask[y, w] = c.child[w]
    chain = _chain_of(e, state, flags, a.head.size)
    a.node[y, CHAIN] = a.head[chain]
    a.head[chain] = y
    return int(y)


@inlined
def _used_chain_of(used: Int32s, row: int, heads: int) -> int:
    x = np.uint64(0)
    for k in range(used.shape[1]):
        x += mix(k + 1) * np.uint64(used[row, k])
    return int(mix(x) & np.uint64(heads - 1))


@bare
def clear(a: Arena) -> None:
    """Empty an arena, in time proportional to what is in it, not to its size."""
    for y in range(a.at[NODES]):
        a.head[_chain_of_node(a.node, y, a.head.size)] = -1
    for row in range(1, a.at[USED_COUNT]):
        a.used_head[_used_chain_of(a.used, row, a.used_head.size)] = -1
    a.at[:] = 0
    a.used[0] = 0
    a.used_chain[0] = -1
    a.used_head[_used_chain_of(a.used, 0, a.used_head.size)] = 0
    a.at[USED_COUNT] = 1
    a.at[DEEPEST] = -1
    a.at[BEST] = -1


@compiled
def rehash_nodes(node: Int32s, count: int, head: Int32s) -> None:
    """Chain all nodes anew by a larger `head`, which is all -1; the newest come first."""
    for y in range(count):
        chain = _chain_of_node(node, y, head.size)
        node[y, CHAIN] = head[chain]
        head[chain] = y


@bare
def spend(a: Arena, row: int, k: int) -> int:
    """Return the row that uses one more of the kind at place k than `row`.

    Equal rows are stored once (hash consing), so that rows are compared by their number first.
    """
    y = int(a.at[USED_COUNT])
    for x in range(a.used.shape[1]):
        a.used[y, x] = a.used[row, x]
    a.used[y, k] += 1
    chain = _used_chain_of(a.used, y, a.used_head.size)
    x = int(a.used_head[chain])
    while x >= 0:
        if _used_no_more(a, x, y) and _used_no_more(a, y, x):
            return int(x)
        x = int(a.used_chain[x])
    a.used_chain[y] = a.used_head[chain]
    a.used_head[chain] = y
    a.at[USED_COUNT] = y + 1
    return int(y)


@compiled
def rehash_used(used: Int32s, count: int, chain_of: Int32s, head: Int32s) -> None:
    """Chain all rows of `used` anew by a larger `head`, which is all -1."""
    for y in range(count):
        chain = _used_chain_of(used, y, head.size)
        chain_of[y] = head[chain]
        head[chain] = y


@compiled
def defer(a: Arena, since: int) -> None:
    """Put the moves of nodes after event `since` below all others on the stack.

    Both groups keep their order. The search stays complete: no move is removed.
    """
    top = int(a.at[TOP])
    late = np.empty((top, 2), np.int32)
    late_count = 0
    for n in range(top):
        if a.stack[n, 0] >= 0 and a.node[a.stack[n, 0], EVENT] > since:
            late[late_count] = a.stack[n]
            late_count += 1
    to = top - 1
    for n in range(top - 1, -1, -1):
        if a.stack[n, 0] < 0 or a.node[a.stack[n, 0], EVENT] <= since:
            a.stack[to] = a.stack[n]
            to -= 1
    a.stack[:late_count] = late[:late_count]
