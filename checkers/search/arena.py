"""Makes and enlarges what a search remembers, inside the budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from checkers.kernels.search_arrays import (
    ARENA_FACTS,
    BEST,
    DEEPEST,
    IS_WINDOW,
    NEEDS_NODES,
    NEEDS_STACK,
    NEEDS_USED,
    NODE_COLUMNS,
    NODES,
    OPEN_MAX,
    START,
    STOP,
    TOP,
    UNKNOWN_KINDS,
    USED_COUNT,
    WORDS,
    Arena,
    History,
)
from checkers.kernels.search_memo import chain_anew, chain_used_anew
from checkers.search.budget import Memory

NODES_FIRST = 1024
USED_FIRST = 64


def new_arena(h: History, memory: Memory, roots: Sequence[int]) -> Arena:
    """Return an empty arena that tries the first states next.

    Raises:
        MemorySpentError: it does not fit the budget.
    """
    words, unknown = int(h.facts[WORDS]), max(1, int(h.facts[UNKNOWN_KINDS]))
    used_first = USED_FIRST if h.facts[UNKNOWN_KINDS] else 2
    moves = int(h.facts[OPEN_MAX] + h.facts[UNKNOWN_KINDS]) + 1
    arena = Arena(
        node=np.empty((NODES_FIRST, NODE_COLUMNS), np.int32),
        mask=np.empty((NODES_FIRST, 2 * words), np.uint64),
        head=np.empty(2 * NODES_FIRST, np.int32),
        stack=np.empty((NODES_FIRST + 2 * moves, 2), np.int32),
        move=np.empty((moves, 2), np.int32),
        used=np.zeros((used_first, unknown), np.int32),
        used_chain=np.empty(used_first, np.int32),
        used_head=np.empty(2 * used_first, np.int32),
        at=np.zeros(ARENA_FACTS, np.int64),
    )
    memory.take_all(arena)
    return begin(arena, memory, roots, 0, int(h.event.size), is_window=False)


def begin(
    arena: Arena, memory: Memory, roots: Sequence[int], start: int, stop: int, *, is_window: bool
) -> Arena:
    """Forget everything, and make the first states what is tried next."""
    if arena.stack.shape[0] < len(roots):
        stack = np.empty((2 * len(roots), 2), np.int32)
        memory.take_all([stack])
        memory.give_back([arena.stack])
        arena = arena._replace(stack=stack)
    arena.at[:] = 0
    arena.at[START], arena.at[STOP], arena.at[IS_WINDOW] = start, stop, is_window
    arena.at[DEEPEST], arena.at[BEST], arena.at[USED_COUNT] = -1, -1, 1
    arena.head[:] = -1
    arena.used_head[:] = -1
    arena.used[0] = 0
    chain_used_anew(arena.used, 1, arena.used_chain, arena.used_head)
    arena.stack[: len(roots), 0] = -1
    arena.stack[: len(roots), 1] = roots
    arena.at[TOP] = len(roots)
    return arena


def enlarge(arena: Arena, need: int, memory: Memory) -> Arena:
    """Return the arena with more room for what `need` names.

    Raises:
        MemorySpentError: it does not fit the budget.
    """
    if need == NEEDS_NODES:
        return _more_nodes(arena, memory)
    if need == NEEDS_STACK:
        stack = np.empty((memory.larger(arena.stack.shape[0], 8), 2), np.int32)
        memory.take_all([stack])
        stack[: arena.at[TOP]] = arena.stack[: arena.at[TOP]]
        memory.give_back([arena.stack])
        return arena._replace(stack=stack)
    assert need == NEEDS_USED
    return _more_used(arena, memory)


def _more_nodes(arena: Arena, memory: Memory) -> Arena:
    count = int(arena.at[NODES])
    words = arena.mask.shape[1]
    rows = memory.larger(count, 4 * NODE_COLUMNS + 8 * words + 16)
    heads = arena.head
    if rows > heads.size:
        memory.give_back([heads])
        heads = np.full(2 * heads.size, -1, np.int32)
        memory.take_all([heads])
    # One array after the other, so that only one of them is held twice at a time.
    node = np.empty((rows, NODE_COLUMNS), np.int32)
    memory.take_all([node])
    node[:count] = arena.node[:count]
    memory.give_back([arena.node])
    arena = arena._replace(node=node)
    mask = np.empty((rows, words), np.uint64)
    memory.take_all([mask])
    mask[:count] = arena.mask[:count]
    memory.give_back([arena.mask])
    if heads is not arena.head:
        chain_anew(node, count, heads)
    return arena._replace(mask=mask, head=heads)


def _more_used(arena: Arena, memory: Memory) -> Arena:
    count, kinds = arena.used.shape
    rows = memory.larger(count, 4 * kinds + 16)
    used = np.zeros((rows, kinds), np.int32)
    chain = np.empty(rows, np.int32)
    head = np.full(2 * arena.used_head.size, -1, np.int32)
    memory.take_all([used, chain, head])
    used[:count] = arena.used
    memory.give_back([arena.used, arena.used_chain, arena.used_head])
    at = int(arena.at[USED_COUNT])
    chain_used_anew(used, at, chain, head)
    return arena._replace(used=used, used_chain=chain, used_head=head)
