"""Puts the gets, puts and appends of one text of a store in an order that explains them.

The search gives one operation after the other its place. Call those *left* that have none and
must have one, all but those of unknown outcome; call T the earliest return of what is left. What
may come next was called at T or before, of unknown outcome or not: so nothing has a place behind
an operation that was called after its return. What leads to the same set of operations with the
same text is looked at once.

*Earlier is allowed*: take any completion, an order of all that comes behind the present place, and
an operation in it that may come next. Moved to the very front it breaks no rule of time: it was
called before everything that is left returns. What it does to the texts is all that matters. So:

- A get of the present text has its place at once, since it changes nothing; an append of the empty
  text too, whatever the text is.
- Texts that no get left shows, nor any that begin with it, are one state, *junk*: until the next
  put no get stands behind it, whatever is appended. All gets that returned before T have their
  places, so a text is junk if of all gets that show it, or what appends can make of it, the last
  one returned before T. (Others may be, too. They are searched as if they were not.)
- A put is *lost*, or the texts that are appended, if they lead to junk wherever they stand. In
  every completion the text is junk behind it, until the next put, and no get in between. Left out
  there, no get sees another text. So it may have its place at once where the text is junk anyway,
  or directly before a put: nothing sees it there. Where the next operation leads to junk because
  it is lost, all the lost ones that may come next come with it, and it does not matter which of
  them is the first. Of unknown outcome it is left out.
- An operation of unknown outcome that leads to junk is left out as well: no get stands behind it
  before the next put, so every get sees the same without it.
- Of several operations that put the same text, or append the same, and may come next, the one that
  returns first can be taken, and one of known outcome before one of unknown: in any completion
  behind another of them the two can change their places. The one taken was called at T or before,
  so both may stand at the front; the other one stands then where the first one stood, where
  everything before it was called before the first one returned, hence before the other does. Of
  unknown outcome the one that was called first is as good as any that may come next.

*Doomed* is what no completion has:

- A get that is left shows what begins with the last put before it, or, if no put comes before it,
  with the present text. So if no put is left, called before the get returns, that its text begins
  with, its text begins with the present one, and that stays so: no put comes before the get, and
  only appends that go on towards all such texts come next.

- A get that is called after T is left. Where its text begins with the present one, no put is left
  of a text that the present one begins with, and its own begins with no longer text put, it stands
  before the next put. So what comes next leads to a text that its text begins with.
- If each way to a text that such a get shows leads over one edge of the appends, then one of that
  kind is left; so the last one of it does not go where it leads to junk.

For the first, gets beyond a window are not asked: that takes nothing from the answer, but less is
found to be doomed. For the other two the latest call of all such gets suffices, noted beforehand.

Where several things may come next, one that leads towards the get that returns first is the best.
It is taken, and all the others are put off: they are tried in the order of their merit, which is
how many operations have a place less what the choices cost that led there. An order that goes
wrong in a few places of a long history is found so without trying everything behind the first.

Source: written from the definition; Harvey & Ginsberg 1995 (limited discrepancy search) for the
order in which choices are tried. The reductions are fuzzed against brute force.
"""

from __future__ import annotations

from shaketable.checkers.kernels.text_arrays import (
    AT_DEPTH,
    COST,
    DEPTH,
    LATER,
    LOOKED,
    NEEDS_LATER,
    NEEDS_NODES,
    NEEDS_SEEN,
    NEVER,
    NEXT_COST,
    NEXT_OP,
    NEXT_STATE,
    NOBODY,
    NODE,
    NODE_OP,
    NODE_STATE,
    NODES,
    PARENT,
    PATH_NODE,
    REACHED,
    REFUTED,
    SEEN,
    SLICE_OVER,
    THROUGH,
    Texts,
)
from shaketable.checkers.kernels.text_moves import (
    enter,
    find_moves,
    first_return,
    is_new,
    leave,
    resume,
    settle,
)
from shaketable.harness.compiled import bare, compiled, inlined


@bare
def _go_to(p: Texts, node: int) -> None:
    """Let the operations of that node have places, and no others."""
    count = 0
    while p.node[node, DEPTH] > p.at[AT_DEPTH] or p.path[p.node[node, DEPTH], PATH_NODE] != node:
        p.way[count] = node
        count += 1
        node = int(p.node[node, PARENT])
    while p.at[AT_DEPTH] > p.node[node, DEPTH]:
        leave(p)
    while count:
        count -= 1
        node = int(p.way[count])
        enter(p, node, int(p.node[node, NODE_OP]), int(p.node[node, NODE_STATE]))


@inlined
def _add_node(p: Texts, after: int) -> int:
    y = p.at[NODES]
    p.at[NODES] = y + 1
    p.node[y, PARENT] = after
    p.node[y, NODE_OP] = p.at[NEXT_OP]
    p.node[y, NODE_STATE] = p.at[NEXT_STATE]
    p.node[y, DEPTH] = p.node[after, DEPTH] + 1
    p.node[y, COST] = p.at[NEXT_COST]
    return int(y)


@bare
def _look(p: Texts) -> bool:
    """Look at what has a place now, and choose what comes next. True if nothing is missing."""
    p.at[LOOKED] += 1
    p.at[NEXT_OP] = NOBODY
    until = first_return(p)
    p.at[REACHED] = max(p.at[REACHED], until)
    if until == NEVER:
        return True
    if is_new(p):
        find_moves(p)
    return False


@inlined
def _lacks(p: Texts) -> int:
    """Return what must grow before the next move, THROUGH if nothing."""
    if p.at[LATER] + p.move.shape[0] > p.later.shape[0]:
        return NEEDS_LATER
    if p.at[NODES] == p.node.shape[0]:
        return NEEDS_NODES
    if 2 * (p.at[SEEN] + 1) > p.seen.shape[0]:
        return NEEDS_SEEN
    return THROUGH


@compiled
def run(p: Texts, looks_max: int) -> int:
    """Search on; return THROUGH, REFUTED, SLICE_OVER, or what must grow before the next call."""
    for _ in range(looks_max):
        lack = _lacks(p)
        if lack != THROUGH:
            return lack
        if p.at[LOOKED] == 0:
            p.at[NODES] = 1
            settle(p)
        else:
            after = int(p.at[NODE])
            if p.at[NEXT_OP] == NOBODY:
                if p.at[LATER] == 0:
                    return REFUTED
                after = resume(p)
            node = _add_node(p, after)
            _go_to(p, node)
            p.at[NODE] = node
        if _look(p):
            return THROUGH
    return SLICE_OVER
