"""The arrays of the search for an order of a FIFO queue's pairs (checkers.kernels.queue_pairs)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.harness.compiled import compiled

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]

NEVER = 2**63 - 1
"""The return of an indeterminate operation."""
ANY = -1
"""The value of an indeterminate dequeue: it may have taken whatever was at the head."""

# ---- columns of `puts` and `takes`
CALLED = 0
RETURNED = 1
VALUE = 2
# ---- columns of links: a list by calls, one by returns; the last row is its head
NEXT_CALL = 0
PREVIOUS_CALL = 1
NEXT_RETURN = 2
PREVIOUS_RETURN = 3
# ---- columns of `spare`, by value: indeterminate enqueues in the order of their calls
SPARE_START = 0
SPARE_USED = 1
# ---- columns of `best`, by value: which operation may come next, and the tick of that
STAMP_PUT = 0
PUT = 1
STAMP_TAKE = 2
TAKE = 3
# ---- columns of `node`: a pair, the node before it, what the choices that led there cost
PARENT = 0
NODE_PUT = 1
NODE_TAKE = 2
DEPTH = 3
COST = 4
# ---- columns of `stack` and `later`: a node, and the pair that may come next
AFTER = 0
MOVE_PUT = 1
MOVE_TAKE = 2
MOVE_COST = 3
# ---- `at`: the search's scalars
PLACED = 0
TOP = 1
EMPTIES_PLACED = 2
TAKES_LEFT = 3
WILD_USED = 4
TICK = 5
SEEN = 6
VISITED = 7
NODES = 8
NODE = 9
LATER = 10
PRICE = 11
DEEPEST = 12
PROGRESS = 13
REACHED = 14
AT_FACTS = 15

# ---- what the search returns
REFUTED = 0
LINEARIZED = 1
SLICE_OVER = 2
NEEDS_STACK = 3
NEEDS_SEEN = 4
NEEDS_NODES = 5
NEEDS_LATER = 6
STALLED = 7


class Pairs(NamedTuple):
    """A queue's history, and the state of its search. *Left* are operations without a place.

    Attributes:
        puts: call, return and value of each enqueue, in the order of calls; the queue's first
            values were enqueued before all else.
        takes: the same of each dequeue that took a value, and of each indeterminate one.
        put_links: lists of the enqueues that returned and are left.
        take_links: lists of the dequeues that are left and have a value.
        spare: for each value, and one more row, where its indeterminate enqueues start in
            `spare_put`, and how many of them are used.
        spare_put: rows of `puts` by value, then by call.
        wild: rows of `takes` with the value ANY, in the order of calls.
        empties: calls and returns of dequeues that found nothing, in the order of calls, and a
            last row. A return is the earliest of all from its row on.
        best: for each value which operations may come next.
        order: the pairs that have a place: rows of `puts` and `takes`.
        empties_before: how many empty dequeues have a place before each of these pairs.
        take_called: by number of pairs, the latest call of their dequeues.
        path: by number of pairs, the node.
        way: nodes on the way to where the search continues.
        node: the orders that were visited, as a tree; the root has no pair.
        stack: moves to try, the next one on top.
        later: deferred moves, as a heap by merit: they are tried when the stack is empty.
        seen: a hash set of the sets of operations that were visited, by 128-bit hashes.
        hashed: the hash of what has a place now, in two halves.
        at: scalars, see above.
    """

    puts: Int64s
    takes: Int64s
    put_links: Int32s
    take_links: Int32s
    spare: Int32s
    spare_put: Int32s
    wild: Int32s
    empties: Int64s
    best: Int32s
    order: Int32s
    empties_before: Int32s
    take_called: Int64s
    path: Int32s
    way: Int32s
    node: Int32s
    stack: Int32s
    later: Int32s
    seen: Words
    hashed: Words
    at: Int64s


@compiled
def link(operations: Int64s, by_return: Int64s, links: Int32s, with_unknown: bool) -> None:
    """Link operations in a list by calls, which is their order, and in one by returns.

    `by_return` sorts them by their returns. Indeterminate ones are left out; with
    `with_unknown` only those without a value are.
    """
    head = operations.shape[0]
    for column in range(2):
        last = head
        for n in range(head):
            i = by_return[n] if column else n
            unknown = operations[i, RETURNED] == NEVER
            if unknown and (not with_unknown or operations[i, VALUE] == ANY):
                continue
            links[last, 2 * column] = i
            links[i, 2 * column + 1] = last
            last = i
        links[last, 2 * column] = head
        links[head, 2 * column + 1] = last


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
