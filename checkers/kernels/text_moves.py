"""Which puts and appends may come next in the order of a key's history, and which goes first."""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.heap import MERIT, drop_first, rise, swap
from shaketable.checkers.kernels.search_moves import mix
from shaketable.checkers.kernels.text_arrays import (
    AFTER,
    ANYTHING,
    APPENDS,
    AT_DEPTH,
    CALLED,
    CHANGES,
    CHOICE_CLASS,
    CHOICE_OP,
    CHOICE_STATE,
    COST,
    EDGE_KIND,
    EDGE_TO,
    GETS,
    GOAL,
    KIND,
    KINDS,
    LATER,
    LATEST,
    LATEST_BELOW,
    LINKS,
    MAY_RETURN,
    MOVE_COST,
    MOVE_OP,
    MOVE_STATE,
    NEED_FIRST,
    NEED_LAST,
    NEVER,
    NEXT_CALL,
    NEXT_COST,
    NEXT_KIND,
    NEXT_LATEST,
    NEXT_OP,
    NEXT_RETURN,
    NEXT_STATE,
    NOBODY,
    NODE,
    PATH_NODE,
    PATH_PLACED,
    PATH_STATE,
    PLACED,
    RANK_COST,
    RETURNED,
    RETURNS,
    SEEN,
    SERVERS_MAX,
    SHOWN,
    SPARE_BEGIN,
    SPARE_USED,
    STATE,
    TICK,
    UNKNOWN_COST,
    UNSEEN,
    WINDOW,
    Int32s,
    Texts,
)
from shaketable.harness.compiled import bare, inlined

# Gives gets, puts and appends of one text their places, and takes them back.


@inlined
def junk_of(p: Texts) -> int:
    """Return the state that stands for every text that no get shows."""
    return int(p.first.size - 1)


@inlined
def first_return(p: Texts) -> int:
    """Return the earliest return of what is left; what may come next was called by then."""
    head = p.operations.shape[0] + RETURNS
    first = p.links[head, NEXT_RETURN]
    return int(p.operations[first, RETURNED]) if first != head else NEVER


@inlined
def _take_out(links: Int32s, i: int) -> None:
    for column in range(0, LINKS, 2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = after
        links[after, column + 1] = before


@inlined
def _put_back(links: Int32s, i: int) -> None:
    for column in range(0, LINKS, 2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = i
        links[after, column + 1] = i


@inlined
def _hash(p: Texts, i: int) -> None:
    """Let the hashes tell that this one has changed sides."""
    p.hashed[0] ^= mix(np.uint64(i) + np.uint64(1 << 40))
    p.hashed[1] ^= mix(np.uint64(i) + np.uint64(3 << 40))


@inlined
def _place(p: Texts, i: int) -> None:
    p.trail[p.at[PLACED]] = i
    p.at[PLACED] += 1
    if p.operations[i, RETURNED] == NEVER:
        p.spare[p.operations[i, KIND], SPARE_USED] += 1
    else:
        _take_out(p.links, i)
    _hash(p, i)


@inlined
def _displace(p: Texts) -> None:
    p.at[PLACED] -= 1
    i = int(p.trail[p.at[PLACED]])
    if p.operations[i, RETURNED] == NEVER:
        p.spare[p.operations[i, KIND], SPARE_USED] -= 1
    else:
        _put_back(p.links, i)
    _hash(p, i)


@bare
def _place_gets(p: Texts, until: int) -> None:
    """Let the gets that may come next and show the present text have their places."""
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
    """Let what may come next, and no get left can show, have its place."""
    head = p.operations.shape[0] + CHANGES
    i = p.links[head, NEXT_CALL]
    while i != head and p.operations[i, CALLED] <= until:
        after = p.links[i, NEXT_CALL]
        if i != but and p.kind_seen[p.operations[i, KIND]] < until:
            _place(p, int(i))
        i = after


@bare
def settle(p: Texts) -> None:
    """Place all that has its place here for certain, until nothing is left of that."""
    junk = junk_of(p)
    before = -1
    while before != p.at[PLACED]:
        before = p.at[PLACED]
        until = first_return(p)
        if p.state_seen[p.at[STATE]] < until:
            p.at[STATE] = junk
        _place_gets(p, until)
        if p.at[STATE] == junk:
            _place_lost(p, until, NOBODY)


@bare
def enter(p: Texts, node: int, op: int, state: int) -> None:
    """Let an operation that leads to that state have the next place, and what comes with it."""
    depth = p.at[AT_DEPTH] + 1
    p.at[AT_DEPTH] = depth
    p.path[depth, PATH_NODE] = node
    p.path[depth, PATH_PLACED] = p.at[PLACED]
    p.path[depth, PATH_STATE] = p.at[STATE]
    if p.kind_to[p.operations[op, KIND]] != APPENDS:
        before = -1
        while before != p.at[PLACED]:
            before = p.at[PLACED]
            _place_lost(p, first_return(p), op)
    _place(p, op)
    p.at[STATE] = state
    settle(p)


@bare
def leave(p: Texts) -> None:
    """Take back the last operation that was entered, and what came with it."""
    depth = p.at[AT_DEPTH]
    while p.at[PLACED] > p.path[depth, PATH_PLACED]:
        _displace(p)
    p.at[STATE] = p.path[depth, PATH_STATE]
    p.at[AT_DEPTH] = depth - 1


@inlined
def is_new(p: Texts) -> bool:
    """Note down what has a place, and the text; False if it was looked at before."""
    last = np.uint64(p.seen.shape[0] - 1)
    state = np.uint64(p.at[STATE])
    one = p.hashed[0] ^ mix(state + np.uint64(5 << 40))
    other = p.hashed[1] ^ mix(state + np.uint64(7 << 40))
    x = np.int64(one & last)
    while p.seen[x, 0] or p.seen[x, 1]:
        if p.seen[x, 0] == one and p.seen[x, 1] == other:
            return False
        x = np.int64(np.uint64(x + 1) & last)
    p.seen[x, 0] = one
    p.seen[x, 1] = other
    p.at[SEEN] += 1
    return True


# ---- classes of what may come next, the best first
TO_GOAL = 0
APPEND = 2
PUT = 4
LOST = 6
JUNK = 8
OF_UNKNOWN = 1
"""Added to the class of what has an unknown outcome."""


@inlined
def _spare_of(p: Texts, kind: int, until: int) -> int:
    """Return an operation of unknown outcome and that kind that was called by then."""
    n = p.spare[kind, SPARE_BEGIN] + p.spare[kind, SPARE_USED]
    if n == p.spare[kind + 1, SPARE_BEGIN]:
        return NOBODY
    i = p.spare_op[n]
    return int(i) if p.operations[i, CALLED] <= until else NOBODY


@inlined
def _known_of(p: Texts, kind: int, until: int) -> int:
    """Return that one of the kind which may come next and returns first."""
    head = p.operations.shape[0] + KINDS + kind
    best = NOBODY
    i = p.links[head, NEXT_KIND]
    while i != head and p.operations[i, CALLED] <= until:
        if best == NOBODY or p.operations[i, RETURNED] < p.operations[best, RETURNED]:
            best = int(i)
        i = p.links[i, NEXT_KIND]
    return best


@bare
def _is_served(p: Texts, shown: int, returned: int) -> bool:
    """Say whether a put is left, called before that return, that the text shown begins with."""
    s = p.put_above[shown]
    for _ in range(SERVERS_MAX):
        if s < 0:
            return False
        k = p.put_kind[s]
        head = p.operations.shape[0] + KINDS + k
        i = p.links[head, NEXT_KIND]
        if i != head and p.operations[i, CALLED] <= returned:
            return True
        if _spare_of(p, int(k), returned) != NOBODY:
            return True
        s = p.parent[s]
        if s >= 0:
            s = p.put_above[s]
    return True


@bare
def _find_needs(p: Texts, until: int) -> None:
    """Find which texts are shown that no put leads to any more, and the get that returns first."""
    head = p.operations.shape[0] + GETS
    first, last = int(p.first[-1]), int(p.last[-1])
    goal, earliest = NOBODY, NEVER
    count = 0
    i = p.links[head, NEXT_CALL]
    while i != head and (count < WINDOW or p.operations[i, CALLED] <= until):
        shown = int(p.operations[i, SHOWN])
        returned = int(p.operations[i, RETURNED])
        if shown != ANYTHING:
            if returned < earliest:
                earliest, goal = returned, shown
            if not _is_served(p, shown, returned):
                first = min(first, int(p.first[shown]))
                last = max(last, int(p.first[shown]))
        count += 1
        i = p.links[i, NEXT_CALL]
    p.at[NEED_FIRST], p.at[NEED_LAST], p.at[GOAL] = first, last, goal


@inlined
def _keeps(p: Texts, state: int) -> bool:
    """Say whether all texts begin with that state that no put leads to any more."""
    if p.at[NEED_LAST] < 0:
        return True
    return bool(p.first[state] <= p.at[NEED_FIRST] and p.at[NEED_LAST] <= p.last[state])


@inlined
def _is_left(p: Texts, kind: int) -> bool:
    """Say whether any operation of that kind is left."""
    head = p.operations.shape[0] + KINDS + kind
    return bool(p.links[head, NEXT_KIND] != head) or _spare_of(p, kind, NEVER) != NOBODY


@inlined
def _is_last(p: Texts, kind: int) -> bool:
    """Say whether of that kind, of which one of known outcome is left, there is no other."""
    head = p.operations.shape[0] + KINDS + kind
    i = p.links[head, NEXT_KIND]
    return bool(p.links[i, NEXT_KIND] == head) and _spare_of(p, kind, NEVER) == NOBODY


@bare
def _may_return(p: Texts) -> bool:
    """Say whether a put is left that the present text begins with."""
    if p.at[STATE] == junk_of(p):
        return True
    s = p.put_above[p.at[STATE]]
    for _ in range(SERVERS_MAX):
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
    """Say whether a get called later shows what no put and no append leads to behind `to`."""
    state = p.at[STATE]
    if p.at[MAY_RETURN] or p.awaited[state, LATEST] <= until:
        return False
    if p.first[to] <= p.first[state] or p.first[to] > p.last[state]:
        return True
    latest = UNSEEN
    for _ in range(SERVERS_MAX):
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
    """Add what may come next, at its place; return how many there are now."""
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
    """Find what leads to a longer text that a get shows."""
    state = p.at[STATE]
    for e in range(p.edge_begin[state], p.edge_begin[state + 1]):
        to = int(p.edge[e, EDGE_TO])
        kind = int(p.edge[e, EDGE_KIND])
        if p.state_seen[to] < until:
            continue
        p.handled[kind] = p.at[TICK]
        if _keeps(p, to) and not _abandons(p, to, until):
            op = _known_of(p, kind, until)
            if op == NOBODY:
                op = _spare_of(p, kind, until)
            if op != NOBODY:
                count = _add(p, count, op, to, APPEND)
    return count


@inlined
def _find_changes(p: Texts, until: int, count: int) -> int:
    """Find puts, and what leads to a text that no get shows."""
    head = p.operations.shape[0] + CHANGES
    junk = junk_of(p)
    keeps_junk = _keeps(p, junk) and not _abandons(p, junk, until)
    has_lost = not keeps_junk
    i = p.links[head, NEXT_CALL]
    while i != head and p.operations[i, CALLED] <= until:
        kind = int(p.operations[i, KIND])
        to = int(p.kind_to[kind])
        if p.kind_seen[kind] < until:
            if not has_lost:  # all others of these come with it
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
            if op != NOBODY and not _abandons(p, to, until):
                count = _add(p, count, op, to, PUT)
    return count


@bare
def find_moves(p: Texts) -> None:
    """Choose what comes next, and put off all else that may; choose NOBODY if nothing may."""
    p.at[TICK] += 1
    p.at[NEXT_OP] = NOBODY
    until = first_return(p)
    _find_needs(p, until)
    if not _keeps(p, int(p.at[STATE])):
        return
    p.at[MAY_RETURN] = _may_return(p)
    count = _find_changes(p, until, _find_appends(p, until, 0))
    count = _find_unknown_puts(p, until, count)
    if count == 0:
        return
    cost = int(p.node[p.at[NODE], COST])
    p.at[NEXT_OP] = p.move[0, CHOICE_OP]
    p.at[NEXT_STATE] = p.move[0, CHOICE_STATE]
    p.at[NEXT_COST] = cost
    for n in range(1, count):
        is_unknown = p.operations[p.move[n, CHOICE_OP], RETURNED] == NEVER
        _put_off(p, n, cost + RANK_COST * n + (UNKNOWN_COST if is_unknown else 0))


@inlined
def _put_off(p: Texts, move: int, cost: int) -> None:
    """Keep a move for later."""
    n = p.at[LATER]
    p.at[LATER] = n + 1
    p.later[n, AFTER] = p.at[NODE]
    p.later[n, MOVE_OP] = p.move[move, CHOICE_OP]
    p.later[n, MOVE_STATE] = p.move[move, CHOICE_STATE]
    p.later[n, MOVE_COST] = cost
    p.later[n, MERIT] = p.at[PLACED] - cost
    rise(p.later, int(n))


@inlined
def resume(p: Texts) -> int:
    """Choose the best of what was put off; return the node that it stands behind."""
    after = int(p.later[0, AFTER])
    p.at[NEXT_OP] = p.later[0, MOVE_OP]
    p.at[NEXT_STATE] = p.later[0, MOVE_STATE]
    p.at[NEXT_COST] = p.later[0, MOVE_COST]
    drop_first(p.later, int(p.at[LATER]))
    p.at[LATER] -= 1
    return after
