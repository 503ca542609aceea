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

Of several moves, one that leads towards the get that returns first is the best; the others are
deferred. The search itself, and its memo of sets of operations, is order_search. T is `until` in
the code.

Source: written from the definition. The reductions are fuzzed against brute force.
"""

from __future__ import annotations

from shaketable.checkers.kernels.order_search import (
    AT_DEPTH,
    CALLED,
    COST,
    DEPTH,
    LINEARIZED,
    NEVER,
    NEXT_CALL,
    NEXT_FIRST,
    NODE,
    NODE_FIRST,
    NODE_SECOND,
    NONE,
    REACHED,
    REFUTED,
    RETURNED,
    SLICE_OVER,
    TICK,
    VISITED,
    choose,
    defer,
    find_way,
    first_return,
    is_new,
    lacks,
    next_node,
    relink,
    swap,
    toggle,
    unlink,
)
from shaketable.checkers.kernels.text_arrays import (
    ANCESTORS_MAX,
    ANYTHING,
    APPENDS,
    BEFORE_PLACED,
    BEFORE_STATE,
    CHANGES,
    CHOICE_CLASS,
    CHOICE_OP,
    CHOICE_STATE,
    EDGE_KIND,
    EDGE_TO,
    GETS,
    GOAL,
    KIND,
    KINDS,
    LATEST,
    LATEST_BELOW,
    MAY_RETURN,
    NEED_FIRST,
    NEED_LAST,
    NEXT_KIND,
    NEXT_LATEST,
    PLACED,
    RANK_COST,
    SHOWN,
    SPARE_START,
    SPARE_USED,
    STATE,
    UNKNOWN_COST,
    UNSEEN,
    WINDOW,
    Texts,
)
from shaketable.harness.compiled import bare, compiled, inlined

# Gives gets, puts and appends their places, and takes them back.


@inlined
def junk_of(p: Texts) -> int:
    """Return the state of every text that no get shows."""
    return int(p.first.size - 1)


@inlined
def _place(p: Texts, i: int) -> None:
    p.trail[p.at[PLACED]] = i
    p.at[PLACED] += 1
    if p.operations[i, RETURNED] == NEVER:
        p.spare[p.operations[i, KIND], SPARE_USED] += 1
    else:
        unlink(p.links, i)
    toggle(p.hashed, i)


@inlined
def _unplace(p: Texts) -> None:
    p.at[PLACED] -= 1
    i = int(p.trail[p.at[PLACED]])
    if p.operations[i, RETURNED] == NEVER:
        p.spare[p.operations[i, KIND], SPARE_USED] -= 1
    else:
        relink(p.links, i)
    toggle(p.hashed, i)


@bare
def _place_gets(p: Texts, until: int) -> None:
    """Give places to the gets that may come next and show the current text.

    Greedy reads: a get changes nothing, so an early place only removes an obligation.
    """
    head = p.operations.shape[0] + GETS
    state = p.at[STATE]
    i = p.links[head, NEXT_CALL]
    while i != head and p.operations[i, CALLED] <= until:
        after = p.links[i, NEXT_CALL]
        shown = p.operations[i, SHOWN]
        if shown in (state, ANYTHING):
            _place(p, int(i))
        i = after


@bare
def _place_lost(p: Texts, until: int, but: int) -> None:
    """Give places to the lost operations that may come next, except `but`.

    Lost: no get that is left can show what they put or append.
    """
    head = p.operations.shape[0] + CHANGES
    i = p.links[head, NEXT_CALL]
    while i != head and p.operations[i, CALLED] <= until:
        after = p.links[i, NEXT_CALL]
        if i != but and p.kind_seen[p.operations[i, KIND]] < until:
            _place(p, int(i))
        i = after


@bare
def settle(p: Texts) -> None:
    """Give places to all operations whose place is here without a choice, to a fixpoint.

    Each place may raise `until`, so that more may come next.
    """
    junk = junk_of(p)
    before = -1
    while before != p.at[PLACED]:
        before = p.at[PLACED]
        until = first_return(p.operations, p.links)
        if p.state_seen[p.at[STATE]] < until:  # every get that can show it has its place
            p.at[STATE] = junk
        _place_gets(p, until)
        if p.at[STATE] == junk:
            _place_lost(p, until, NONE)


@bare
def enter(p: Texts, node: int, op: int, state: int) -> None:
    """Give the next place to an operation that leads to `state`, and to what comes with it."""
    depth = p.at[AT_DEPTH] + 1
    p.at[AT_DEPTH] = depth
    p.path[depth] = node
    p.before[depth, BEFORE_PLACED] = p.at[PLACED]
    p.before[depth, BEFORE_STATE] = p.at[STATE]
    if p.kind_to[p.operations[op, KIND]] != APPENDS:
        # Directly before a put, lost operations are not seen by any get.
        before = -1
        while before != p.at[PLACED]:
            before = p.at[PLACED]
            _place_lost(p, first_return(p.operations, p.links), op)
    _place(p, op)
    p.at[STATE] = state
    settle(p)


@bare
def leave(p: Texts) -> None:
    """Undo the last `enter`."""
    depth = p.at[AT_DEPTH]
    while p.at[PLACED] > p.before[depth, BEFORE_PLACED]:
        _unplace(p)
    p.at[STATE] = p.before[depth, BEFORE_STATE]
    p.at[AT_DEPTH] = depth - 1


# ---- classes of moves, the best first
TO_GOAL = 0
APPEND = 2
PUT = 4
LOST = 6
JUNK = 8
OF_UNKNOWN = 1
"""Added to the class of an indeterminate operation."""


@inlined
def _spare_of(p: Texts, kind: int, until: int) -> int:
    """Return an unused indeterminate operation of that kind called by `until`, NONE if none."""
    n = p.spare[kind, SPARE_START] + p.spare[kind, SPARE_USED]
    if n == p.spare[kind + 1, SPARE_START]:
        return NONE
    i = p.spare_op[n]
    return int(i) if p.operations[i, CALLED] <= until else NONE


@inlined
def _known_of(p: Texts, kind: int, until: int) -> int:
    """Return the operation of that kind that may come next and returns first, NONE if none."""
    head = p.operations.shape[0] + KINDS + kind
    best = NONE
    i = p.links[head, NEXT_KIND]
    while i != head and p.operations[i, CALLED] <= until:
        if best == NONE or p.operations[i, RETURNED] < p.operations[best, RETURNED]:
            best = int(i)
        i = p.links[i, NEXT_KIND]
    return best


@bare
def _has_put_for(p: Texts, shown: int, returned: int) -> bool:
    """Return whether a put of a prefix of `shown` is left that was called by `returned`.

    After ANCESTORS_MAX prefixes the answer is True, which proves nothing, and dooms nothing.
    """
    s = p.put_above[shown]
    for _ in range(ANCESTORS_MAX):
        if s < 0:
            return False
        k = p.put_kind[s]
        head = p.operations.shape[0] + KINDS + k
        i = p.links[head, NEXT_KIND]
        if i != head and p.operations[i, CALLED] <= returned:
            return True
        if _spare_of(p, int(k), returned) != NONE:
            return True
        s = p.parent[s]
        if s >= 0:
            s = p.put_above[s]
    return True


@bare
def _find_needs(p: Texts, until: int) -> None:
    """Find the texts of gets that only the current text can lead to, and the goal.

    No put of a prefix of such a text can come before the get, so the current text must stay a
    prefix of it. The goal is the text of the get that returns first. Texts are kept as the range
    NEED_FIRST .. NEED_LAST of their preorder numbers.
    """
    head = p.operations.shape[0] + GETS
    first, last = int(p.first[-1]), int(p.last[-1])
    goal, earliest = NONE, NEVER
    count = 0
    i = p.links[head, NEXT_CALL]
    while i != head and (count < WINDOW or p.operations[i, CALLED] <= until):
        shown = int(p.operations[i, SHOWN])
        returned = int(p.operations[i, RETURNED])
        if shown != ANYTHING:
            if returned < earliest:
                earliest, goal = returned, shown
            if not _has_put_for(p, shown, returned):
                first = min(first, int(p.first[shown]))
                last = max(last, int(p.first[shown]))
        count += 1
        i = p.links[i, NEXT_CALL]
    p.at[NEED_FIRST], p.at[NEED_LAST], p.at[GOAL] = first, last, goal


@inlined
def _keeps(p: Texts, state: int) -> bool:
    """Return whether `state` is a prefix of all texts that only it can lead to."""
    if p.at[NEED_LAST] < 0:
        return True
    return bool(p.first[state] <= p.at[NEED_FIRST] and p.at[NEED_LAST] <= p.last[state])


@inlined
def _is_left(p: Texts, kind: int) -> bool:
    """Return whether any operation of that kind is left."""
    head = p.operations.shape[0] + KINDS + kind
    return bool(p.links[head, NEXT_KIND] != head) or _spare_of(p, kind, NEVER) != NONE


@inlined
def _is_last(p: Texts, kind: int) -> bool:
    """Return whether a single operation of that kind is left; a known one must be."""
    head = p.operations.shape[0] + KINDS + kind
    i = p.links[head, NEXT_KIND]
    return bool(p.links[i, NEXT_KIND] == head) and _spare_of(p, kind, NEVER) == NONE


@bare
def _may_return(p: Texts) -> bool:
    """Return whether a put of a prefix of the current text is left."""
    if p.at[STATE] == junk_of(p):
        return True
    s = p.put_above[p.at[STATE]]
    for _ in range(ANCESTORS_MAX):
        if s < 0:
            return False
        if _is_left(p, int(p.put_kind[s])):
            return True
        s = p.parent[s]
        if s >= 0:
            s = p.put_above[s]
    return True


@bare
def _abandons(p: Texts, to: int, until: int) -> bool:
    """Return whether a move to `to` leaves a get called after T whose text is out of reach.

    Such a get shows a text that the current text is a prefix of, and no put can lead there: it
    must come before the next put, so `to` must be a prefix of its text.
    """
    state = p.at[STATE]
    if p.at[MAY_RETURN] or p.awaited[state, LATEST] <= until:
        return False
    if p.first[to] <= p.first[state] or p.first[to] > p.last[state]:
        return True
    latest = UNSEEN
    for _ in range(ANCESTORS_MAX):
        above = p.parent[to]
        is_below = p.awaited[above, LATEST_BELOW] == to
        called = p.awaited[above, NEXT_LATEST if is_below else LATEST]
        latest = max(latest, int(called))
        if above == state:
            return latest > until
        if p.put_kind[above] >= 0:
            latest = UNSEEN
        to = int(above)
    return False


@inlined
def _is_better(p: Texts, kind_class: int, op: int, n: int) -> bool:
    if p.move[n, CHOICE_CLASS] != kind_class:
        return bool(p.move[n, CHOICE_CLASS] > kind_class)
    return bool(p.operations[p.move[n, CHOICE_OP], RETURNED] > p.operations[op, RETURNED])


@bare
def _add(p: Texts, count: int, op: int, state: int, kind_class: int) -> int:
    """Insert a move in order of class, then of return; return how many moves there are now."""
    goal = p.at[GOAL]
    if goal >= 0 and p.first[state] <= p.first[goal] <= p.last[state]:
        kind_class = TO_GOAL
    if p.operations[op, RETURNED] == NEVER:
        kind_class += OF_UNKNOWN
    p.move[count, CHOICE_OP] = op
    p.move[count, CHOICE_STATE] = state
    p.move[count, CHOICE_CLASS] = kind_class
    n = count
    while n and _is_better(p, kind_class, op, n - 1):
        swap(p.move, n, n - 1)
        n -= 1
    return count + 1


@inlined
def _find_appends(p: Texts, until: int, count: int) -> int:
    """Find appends that lead to a longer text that a get shows, or a prefix of one."""
    state = p.at[STATE]
    for e in range(p.edge_start[state], p.edge_start[state + 1]):
        to = int(p.edge[e, EDGE_TO])
        kind = int(p.edge[e, EDGE_KIND])
        if p.state_seen[to] < until:
            continue
        p.handled[kind] = p.at[TICK]
        if _keeps(p, to) and not _abandons(p, to, until):
            op = _known_of(p, kind, until)
            if op == NONE:
                op = _spare_of(p, kind, until)
            if op != NONE:
                count = _add(p, count, op, to, APPEND)
    return count


@inlined
def _find_changes(p: Texts, until: int, count: int) -> int:
    """Find puts, and operations that lead to junk."""
    head = p.operations.shape[0] + CHANGES
    junk = junk_of(p)
    keeps_junk = _keeps(p, junk) and not _abandons(p, junk, until)
    has_lost = not keeps_junk
    i = p.links[head, NEXT_CALL]
    while i != head and p.operations[i, CALLED] <= until:
        kind = int(p.operations[i, KIND])
        to = int(p.kind_to[kind])
        if p.kind_seen[kind] < until:
            if not has_lost:  # any one of them: all others come with it
                has_lost = True
                count = _add(p, count, int(i), junk, LOST)
        elif p.handled[kind] != p.at[TICK]:
            p.handled[kind] = p.at[TICK]
            if to == APPENDS:
                is_needed = p.kind_awaited[kind] > until and _is_last(p, kind)
                if keeps_junk and not is_needed:
                    count = _add(p, count, _known_of(p, kind, until), junk, JUNK)
            elif _keeps(p, to) and not _abandons(p, to, until):
                count = _add(p, count, _known_of(p, kind, until), to, PUT)
        i = p.links[i, NEXT_CALL]
    return count


@inlined
def _find_unknown_puts(p: Texts, until: int, count: int) -> int:
    for n in range(p.spare_puts.size):
        kind = int(p.spare_puts[n])
        to = int(p.kind_to[kind])
        if p.handled[kind] != p.at[TICK] and p.kind_seen[kind] >= until and _keeps(p, to):
            op = _spare_of(p, kind, until)
            if op != NONE and not _abandons(p, to, until):
                count = _add(p, count, op, to, PUT)
    return count


@bare
def find_moves(p: Texts) -> None:
    """Choose what comes next, and defer all other moves; choose NONE if there is no move."""
    p.at[TICK] += 1
    until = first_return(p.operations, p.links)
    _find_needs(p, until)
    if not _keeps(p, int(p.at[STATE])):  # doomed already
        return
    p.at[MAY_RETURN] = _may_return(p)
    count = _find_changes(p, until, _find_appends(p, until, 0))
    count = _find_unknown_puts(p, until, count)
    if count == 0:
        return
    choose(p, int(p.move[0, CHOICE_OP]), int(p.move[0, CHOICE_STATE]))
    cost = int(p.node[p.at[NODE], COST])
    for n in range(1, count):
        op = int(p.move[n, CHOICE_OP])
        is_unknown = p.operations[op, RETURNED] == NEVER
        price = cost + RANK_COST * n + (UNKNOWN_COST if is_unknown else 0)
        defer(p, op, int(p.move[n, CHOICE_STATE]), price, int(p.at[PLACED] - price))


# The search.


@inlined
def _go_to(p: Texts, node: int) -> None:
    """Give places to the operations of that node, and to no others."""
    count = find_way(p, node)
    depth = p.node[node, DEPTH] - count
    while p.at[AT_DEPTH] > depth:
        leave(p)
    while count:
        count -= 1
        node = int(p.way[count])
        enter(p, node, int(p.node[node, NODE_FIRST]), int(p.node[node, NODE_SECOND]))


@bare
def _visit(p: Texts) -> bool:
    """Visit the current order, and choose what comes next. Return True if it is complete."""
    p.at[VISITED] += 1
    p.at[NEXT_FIRST] = NONE
    until = first_return(p.operations, p.links)
    p.at[REACHED] = max(p.at[REACHED], until)
    if until == NEVER:
        return True
    if is_new(p, int(p.at[STATE])):
        find_moves(p)
    return False


@compiled
def run(p: Texts, visits_max: int) -> int:
    """Continue the search; return LINEARIZED, REFUTED, SLICE_OVER, or one of the NEEDS."""
    for _ in range(visits_max):
        lack = lacks(p, p.move.shape[0])
        if lack != LINEARIZED:
            return lack
        node = next_node(p)
        if node == NONE:
            return REFUTED
        if node == 0:
            settle(p)
        else:
            _go_to(p, node)
        p.at[NODE] = node
        if _visit(p):
            return LINEARIZED
    return SLICE_OVER
