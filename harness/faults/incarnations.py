"""Undo by incarnation, for faults that act on processes.

For faults whose undo is "these incarnations of these nodes". A world returns `UNTOUCHED` for a node
on which it could do nothing (it was dead, or already paused by another fault); the undo then leaves
that node alone, so no fault heals another one.

Source: DESIGN.md decision 10 (`undo` undoes exactly this fault).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import trio

from shaketable.harness.contracts.plugins import UNTOUCHED, Fault, Json, World

UNDO_TIMEOUT_S = 10.0


async def apply_to_each(
    victims: Sequence[str],
    strike: Callable[[str], Awaitable[Json]],
    undo: Callable[[Json, World], Awaitable[None]],
    world: World,
) -> Json:
    """Strike all victims and return the undo; if one cannot be struck, undo the others first."""
    struck: dict[str, int] = {}
    try:
        for node in victims:
            struck[node] = (await strike(node))["incarnation"]
    except BaseException:  # also when cancelled: only this task knows what was struck so far
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_TIMEOUT_S):
            await undo({"incarnations": struck}, world)
        raise
    return {"incarnations": struck}


@asynccontextmanager
async def undone_if_it_fails(fault: Fault, undo: Json, world: World) -> AsyncIterator[None]:
    """Undo what was done so far if the rest of an apply fails. `undo` may grow meanwhile."""
    try:
        yield
    except BaseException:  # also when cancelled: only this task knows what was done so far
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_TIMEOUT_S):
            await fault.undo(undo, world)
        raise


def in_effect(undo: Json) -> Iterator[tuple[str, int]]:
    """Yield the nodes and incarnations that this fault actually struck."""
    for node, incarnation in undo["incarnations"].items():
        if incarnation != UNTOUCHED:
            yield node, incarnation
