"""Which operations may come next in the order of a key's history, and which is tried first.

text_order says why each rule is sound; T there is `until` here.
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.heap import MERIT, pop_first, sift_up, swap
from shaketable.checkers.kernels.search_moves import mix
from shaketable.checkers.kernels.text_arrays import (
    AFTER,
    ANCESTORS_MAX,
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
    NODE,
    NONE,
    PATH_NODE,
    PATH_PLACED,
    PATH_STATE,
    PLACED,
    RANK_COST,
    RETURNED,
    RETURNS,
    SEEN,
    SHOWN,
    SPARE_START,
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

# Gives gets, puts and appends their places, and takes them back.


@inlined
def junk_of(p: Texts) -> int:
    """Return the state of every text that no get shows."""
    return int(p.first.size - 1)


@inlined
def first_return(p: Texts) -> int:
    """Return T, the earliest return of what is left; what may come next was called by then."""
    head = p.operations.shape[0] + RETURNS
    first = p.links[head, NEXT_RETURN]
    return int(p.operations[first, RETURNED]) if first != head else NEVER


@inlined
def _unlink(links: Int32s, i: int) -> None:
    """Remove an operation from all lists; its own links stay (dancing links)."""
    for column in range(0, LINKS, 2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = after
        links[after, column + 1] = before


@inlined
def _relink(links: Int32s, i: int) -> None:
    """Undo `_unlink`; it must be undone in reverse order."""
    for column in range(0, LINKS, 2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = i
        links[after, column + 1] = i


@inlined
def _hash(p: Texts, i: int) -> None:
    """Toggle an operation in the hash of what has a place (Zobrist hashing)."""
    p.hashed[0] ^= mix(np.uint64(i) + np.uint64(1 << 40))
    p.hashed[1] ^= mix(np.uint64(i) + np.uint64(3 << 40))


@inlined
def _place(p: Texts, i: int) -> None:
    p.trail[p.at[PLACED]] = i
    p.at[PLACED] += 1
    if p.operations[i, RETURNED] == NEVER:
        p.spare[p.operations[i, KIND], SPARE_USED] += 1
    else:
        _unlink(p.links, i)
    _hash(p, i)


@inlined
def _unplace(p: Texts) -> None:
    p.at[PLACED] -= 1
    i = int(p.trail[p.at[PLACED]])
    if p.operations[i, RETURNED] == NEVER:
        p.spare[p.operations[i, KIND], SPARE_USED] -= 1
    else:
        _relink(p.links, i)
    _hash(p, i)


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
        until = first_return(p)
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
    p.path[depth, PATH_NODE] = node
    p.path[depth, PATH_PLACED] = p.at[PLACED]
    p.path[depth, PATH_STATE] = p.at[STATE]
    if p.kind_to[p.operations[op, KIND]] != APPENDS:
        # Directly before a put, lost operations are not seen by any get.
        before = -1
        while before != p.at[PLACED]:
            before = p.at[PLACED]
            _place_lost(p, first_return(p), op)
    _place(p, op)
    p.at[STATE] = state
    settle(p)


@bare
def leave(p: Texts) -> None:
    """Undo the last `enter`."""
    depth = p.at[AT_DEPTH]
    while p.at[PLACED] > p.path[depth, PATH_PLACED]:
        _unplace(p)
    p.at[STATE] = p.path[depth, PATH_STATE]
    p.at[AT_DEPTH] = depth - 1


@inlined
def is_new(p: Texts) -> bool:
    """Memoise the operations that have places, with the text; False if visited before."""
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
    p.at[NEXT_OP] = NONE
    until = first_return(p)
    _find_needs(p, until)
    if not _keeps(p, int(p.at[STATE])):  # doomed already
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
        _defer(p, n, cost + RANK_COST * n + (UNKNOWN_COST if is_unknown else 0))


@inlined
def _defer(p: Texts, move: int, cost: int) -> None:
    """Defer a move."""
    n = p.at[LATER]
    p.at[LATER] = n + 1
    p.later[n, AFTER] = p.at[NODE]
    p.later[n, MOVE_OP] = p.move[move, CHOICE_OP]
    p.later[n, MOVE_STATE] = p.move[move, CHOICE_STATE]
    p.later[n, MOVE_COST] = cost
    p.later[n, MERIT] = p.at[PLACED] - cost
    sift_up(p.later, int(n))


@inlined
def resume(p: Texts) -> int:
    """Choose the deferred move of greatest merit; return the node that it follows."""
    after = int(p.later[0, AFTER])
    p.at[NEXT_OP] = p.later[0, MOVE_OP]
    p.at[NEXT_STATE] = p.later[0, MOVE_STATE]
    p.at[NEXT_COST] = p.later[0, MOVE_COST]
    pop_first(p.later, int(p.at[LATER]))
    p.at[LATER] -= 1
    return after
