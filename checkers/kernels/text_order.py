"""Searches for an order of the gets, puts and appends of one key's text that explains them.

The search gives a place to one operation after the other. *Left* are operations that have no
place and must have one: all but the indeterminate ones. T is the earliest return of what is left.
Any operation called by T may come next, indeterminate or not: so no operation is placed after one
that was called after its return. A set of operations with the current text is visited once,
whatever order led to it.

*Moving to the front*: take any completion, that is an order of everything from the current place
on, and an operation in it that may come next. Moved to the very front it agrees with real time:
it was called before anything that is left returns. Only its effect on the text matters. So:

- A get of the current text has its place at once, since it changes nothing; so has an append of
  the empty text, whatever the text is.
- Texts that no get left shows, and that are no prefix of such a text, are one state, *junk*: until
  the next put no get follows, whatever is appended. All gets that returned before T have places,
  so a text is junk if the last get that shows it, or what appends can make of it, returned before
  T. (Other texts may be junk too. They are searched as if they were not.)
- A put, or a kind of append, is *lost* if it leads to junk wherever it is placed. In every
  completion the text is then junk until the next put, with no get in between, and without it no
  get sees another text. So it may have its place at once where the text is junk anyway, or directly
  before a put: no get sees it there. If the next operation leads to junk because it is lost, all
  lost operations that may come next come with it, and it does not matter which of them is first. A
  lost indeterminate operation is left out.
- An indeterminate operation that leads to junk is left out as well: no get follows it before the
  next put, so every get sees the same without it.
- Of several operations that put the same text, or append the same, and may come next, take the
  one that returns first, and a known one before an indeterminate one. (Exchange argument: in any
  completion that places another one here, the two change places. Both were called by T, so either
  may be first. The other one is then where the first one was, and everything before that was
  called before the first one returned, hence before the other one does.) Of indeterminate ones
  take the first called: it is as good as any that may come next.

*Doomed* is what no completion can satisfy:

- A get that is left shows a text that starts with the last text put before it or, if no put comes
  before it, with the current text. So if no put of a prefix of its text is left that was called
  before the get returns, the current text is a prefix of its text and stays one: no put comes
  before the get, and only appends that lead towards all such texts may come next.
- A get that is called after T is left. If the current text is a prefix of its text, no put of a
  prefix of the current text is left, and no prefix of its text that is longer than the current text
  is ever put, it comes before the next put. So the next operation must lead to a prefix of it.
- If the text of such a get can only be reached by one edge of the appends, an operation of that
  kind must be left; so the last one of the kind is not used where it leads to junk.

For the first rule, gets beyond a window are not checked: the answer stays right, but fewer nodes
are found to be doomed. For the other two the latest call of all such gets suffices, which is
computed beforehand.

Of several moves, one that leads towards the get that returns first is the best. It is made, and
all others are deferred, as in limited discrepancy search: they are tried in the order of their
merit, the number of operations that have places less the cost of the choices that led there. So an
order with a few wrong choices in a long history is found without trying everything after the
first of them.

Source: written from the definition; Harvey & Ginsberg 1995 (limited discrepancy search) for the
order in which choices are tried. The reductions are fuzzed against brute force.
"""

from __future__ import annotations

from shaketable.checkers.kernels.text_arrays import (
    AT_DEPTH,
    COST,
    DEPTH,
    LATER,
    LINEARIZED,
    NEEDS_LATER,
    NEEDS_NODES,
    NEEDS_SEEN,
    NEVER,
    NEXT_COST,
    NEXT_OP,
    NEXT_STATE,
    NODE,
    NODE_OP,
    NODE_STATE,
    NODES,
    NONE,
    PARENT,
    PATH_NODE,
    REACHED,
    REFUTED,
    SEEN,
    SLICE_OVER,
    VISITED,
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
    """Give places to the operations of that node, and to no others.

    Backtrack to the last node that its path and the current one share, then go forward.
    """
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
def _visit(p: Texts) -> bool:
    """Visit the current order, and choose what comes next. Return True if it is complete."""
    p.at[VISITED] += 1
    p.at[NEXT_OP] = NONE
    until = first_return(p)
    p.at[REACHED] = max(p.at[REACHED], until)
    if until == NEVER:
        return True
    if is_new(p):
        find_moves(p)
    return False


@inlined
def _lacks(p: Texts) -> int:
    """Return which array must grow before the next move, LINEARIZED if none."""
    if p.at[LATER] + p.move.shape[0] > p.later.shape[0]:
        return NEEDS_LATER
    if p.at[NODES] == p.node.shape[0]:
        return NEEDS_NODES
    if 2 * (p.at[SEEN] + 1) > p.seen.shape[0]:
        return NEEDS_SEEN
    return LINEARIZED


@compiled
def run(p: Texts, visits_max: int) -> int:
    """Continue the search; return LINEARIZED, REFUTED, SLICE_OVER, or one of the NEEDS."""
    for _ in range(visits_max):
        lack = _lacks(p)
        if lack != LINEARIZED:
            return lack
        if p.at[VISITED] == 0:
            p.at[NODES] = 1
            settle(p)
        else:
            after = int(p.at[NODE])
            if p.at[NEXT_OP] == NONE:
                if p.at[LATER] == 0:
                    return REFUTED
                after = resume(p)
            node = _add_node(p, after)
            _go_to(p, node)
            p.at[NODE] = node
        if _visit(p):
            return LINEARIZED
    return SLICE_OVER
