"""Makes and enlarges what a search remembers, inside the budget."""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    ARENA_FACTS,
    BEST,
    DEEPEST,
    NEEDS_NODES,
    NEEDS_STACK,
    NEEDS_USED,
    NODE_COLUMNS,
    NODES,
    OPEN_MAX,
    STOP,
    TOP,
    UNKNOWN_KINDS,
    USED_COUNT,
    WORDS,
    Arena,
    History,
)
from shaketable.checkers.kernels.search_memo import chain_anew, chain_used_anew
from shaketable.checkers.search.budget import Memory

NODES_FIRST = 1024
OPERATIONS_FOR_MORE = 1000
"""For so many operations as many nodes more are laid out at first."""
USED_FIRST = 64


def new_arena(h: History, memory: Memory, first: int | None = None) -> Arena:
    """Return an arena that searches the whole history from state `first`, or has no start yet.

    Raises:
        MemorySpentError: it does not fit the budget.
    """
    words, unknown = int(h.facts[WORDS]), max(1, int(h.facts[UNKNOWN_KINDS]))
    rows = USED_FIRST if h.facts[UNKNOWN_KINDS] else 2
    moves = int(h.facts[OPEN_MAX] + h.facts[UNKNOWN_KINDS]) + 1
    nodes = NODES_FIRST
    if first is not None:  # the whole history: some more than a node for each operation
        nodes += NODES_FIRST * (h.op.shape[0] // OPERATIONS_FOR_MORE)
    arena = Arena(
        node=np.empty((nodes, NODE_COLUMNS), np.int32),
        mask=np.empty((nodes, 2 * words), np.uint64),
        head=np.full(1 << (2 * nodes - 1).bit_length(), -1, np.int32),
        stack=np.empty((nodes + 2 * moves, 2), np.int32),
        move=np.empty((moves, 2), np.int32),
        used=np.zeros((rows, unknown), np.int32),
        used_chain=np.full(rows, -1, np.int32),
        used_head=np.full(2 * rows, -1, np.int32),
        at=np.zeros(ARENA_FACTS, np.int64),
    )
    memory.take_all(arena)
    chain_used_anew(arena.used, 1, arena.used_chain, arena.used_head)
    arena.at[DEEPEST], arena.at[BEST], arena.at[USED_COUNT] = -1, -1, 1
    arena.at[STOP] = h.event.shape[0]
    if first is not None:
        arena.stack[0] = -1, first
        arena.at[TOP] = 1
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
