"""Faults that are generated next to another one, so that both meet: alone they seldom would.

A node is away while the others' files expire, and returns to a snapshot while its disk is stalled
or full, while messages are late, or to lose power during it. A leadership is transferred to a
paused member. A node with a full disk is elected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shaketable.system.sim.schedules.faults import (
    ALL,
    FOLLOWER,
    LEADER,
    AnyFault,
    Crash,
    CrashAtOperation,
    Cut,
    Duplicate,
    Expire,
    FullDisk,
    Pause,
    Reorder,
    StallDisk,
    Strike,
    Transfer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from shaketable.system.sim.schedules.random_streams import RandomStream

AWAY_DURING_EXPIRY = 0.6
"""How often a node is away while files expire, so that it needs a snapshot."""
RETURN_SHARE = 0.25
"""Share of the seeds that have such an absence, whatever else they have."""
CRASHES_IN_EXPIRY = 0.3
"""How often another node loses power within the first disk operations of an expiry."""
PAUSED_TRANSFER_TARGET = 0.3
"""How often a leadership is transferred, twice, to a paused member."""
ELECTED_WHEN_FULL = 0.3
"""How often a node with a full disk is asked to lead."""
FIRST_LEADER_ISOLATED = 0.08
"""How often the first leader is isolated when elected: its log is truncated to nothing."""
_GRID_MS = 50


def draw_paired_faults(
    rng: RandomStream, fault: AnyFault, members: tuple[str, ...]
) -> list[AnyFault]:
    """Generate the faults that accompany `fault`; most have none."""
    at_ms, ms = fault.start_ms, fault.duration_ms
    if isinstance(fault, Expire):
        beside = _node_away(rng, fault, members) if rng.chance(AWAY_DURING_EXPIRY) else []
        if rng.chance(CRASHES_IN_EXPIRY):
            beside.append(_power_loss(rng, at_ms, rng.choice((*members, LEADER))))
        return beside
    if isinstance(fault, Transfer) and fault.to != LEADER and rng.chance(PAUSED_TRANSFER_TARGET):
        still_ms = max(_GRID_MS, at_ms - rng.choice((50, 100, 150)))
        again_ms = rng.choice((50, 200, 1200))
        return [
            Pause(start_ms=still_ms, duration_ms=rng.choice((800, 1800)), node=fault.to),
            Transfer(start_ms=at_ms + again_ms, duration_ms=ms, to=fault.to),
        ]
    if isinstance(fault, FullDisk) and rng.chance(ELECTED_WHEN_FULL):
        return [Transfer(start_ms=at_ms, duration_ms=ms, to=fault.node)]
    return []


def draw_first_strike(rng: RandomStream) -> list[AnyFault]:
    """Generate, for some seeds, that the first leader is isolated at its election."""
    if not rng.chance(FIRST_LEADER_ISOLATED):
        return []
    return [Strike(start_ms=_GRID_MS, duration_ms=rng.choice((1500, 3000)), moment="elected")]


def draw_return_after_expiry(
    rng: RandomStream, members: tuple[str, ...], from_ms: int
) -> list[AnyFault]:
    """Generate, for some seeds, a node that is away while files expire."""
    if not rng.chance(RETURN_SHARE):
        return []
    start_ms = from_ms + rng.randrange(1000, 12_000, _GRID_MS)
    expiry = Expire(start_ms=start_ms, duration_ms=rng.choice((1000, 2000)))
    return [expiry, *_node_away(rng, expiry, members)]


def _node_away(rng: RandomStream, fault: Expire, members: tuple[str, ...]) -> list[AnyFault]:
    """Take a node away from before `fault` until after its end; it returns to some trouble."""
    start_ms = max(_GRID_MS, fault.start_ms - rng.randrange(500, 2000, _GRID_MS))
    back_ms = fault.end_ms
    node = FOLLOWER if rng.chance(0.3) else rng.choice(members)
    trouble = rng.choice((None, *_TROUBLES))
    if trouble is _full_before:
        return _full_before(rng, start_ms, back_ms, node)
    away: AnyFault
    if rng.chance(0.5) and trouble not in (_power_lost, _full_on_return):
        # a restart would run into the trouble too early
        away = Crash(
            start_ms=start_ms, duration_ms=back_ms - start_ms, node=node, loses_unsynced=False
        )
    else:
        links = ((node, ALL), (ALL, node))
        away = Cut(start_ms=start_ms, duration_ms=back_ms - start_ms, links=links)
    return [away] if trouble is None else [away, *trouble(rng, start_ms, back_ms, node)]


def _full_before(rng: RandomStream, start_ms: int, back_ms: int, node: str) -> list[AnyFault]:
    """The node's disk is full, and it is paused while the others' files expire."""
    full_ms = max(_GRID_MS, start_ms - rng.choice((300, 600)))
    lasts_ms = back_ms - full_ms + rng.choice((50, 600))
    return [
        FullDisk(
            start_ms=full_ms, duration_ms=lasts_ms, node=node, copies_on_write=rng.chance(0.5)
        ),
        Pause(start_ms=start_ms, duration_ms=back_ms - start_ms, node=node),
    ]


def _full_on_return(rng: RandomStream, _: int, back_ms: int, node: str) -> list[AnyFault]:
    """There is no space for the snapshot."""
    lasts_ms = rng.choice((300, 900))
    return [FullDisk(start_ms=back_ms - _GRID_MS, duration_ms=lasts_ms, node=node)]


def _stalled(rng: RandomStream, _: int, back_ms: int, node: str) -> list[AnyFault]:
    """The snapshot is not durable before the leader compacts its log again."""
    lasts_ms = rng.choice((1000, 2000))
    return [
        StallDisk(start_ms=back_ms, duration_ms=lasts_ms, node=node),
        Expire(start_ms=back_ms + 2 * _GRID_MS, duration_ms=lasts_ms),
    ]


def _late_messages(rng: RandomStream, _: int, back_ms: int, __: str) -> list[AnyFault]:
    """The leader's messages may arrive under another leader, twice, or when it has compacted."""
    start_ms = back_ms - rng.choice((50, 500))
    lost_ms = back_ms + rng.choice((100, 200, 400))
    links = ((LEADER, ALL),)
    return [
        Reorder(start_ms=start_ms, duration_ms=1000, links=links, probability=0.5, delay_ms=1500.0),
        Duplicate(start_ms=start_ms, duration_ms=1000, links=links, probability=0.5),
        Expire(start_ms=back_ms, duration_ms=1500),
        Crash(start_ms=lost_ms, duration_ms=1000, node=LEADER, loses_unsynced=False),
    ]


def _power_lost(rng: RandomStream, _: int, back_ms: int, node: str) -> list[AnyFault]:
    """The node loses power while it writes the snapshot."""
    return [_power_loss(rng, back_ms, node)]


def _power_loss(rng: RandomStream, at_ms: int, node: str) -> AnyFault:
    operations, ms = rng.randint(1, 24), rng.choice((400, 1000))
    return CrashAtOperation(start_ms=at_ms, duration_ms=ms, node=node, operations=operations)


_TROUBLES: tuple[Callable[[RandomStream, int, int, str], list[AnyFault]], ...] = (
    _full_before,
    _full_on_return,
    _stalled,
    _late_messages,
    _power_lost,
)
