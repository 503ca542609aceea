"""Faults that are drawn beside another one, so that the two meet: alone they seldom would.

A node is away while the others' files expire, and comes back to a snapshot while a disk stands
still or is full, while messages are late, or to lose power in the middle of it. A leadership goes
to a member that stands still. A node finds that its disk is full when it is to be elected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shaketable.system.sim.schedules.faults import (
    EVERYBODY,
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

    from shaketable.system.sim.schedules.draws import Stream

EXPIRES_BEHIND_A_BACK = 0.6
"""How often a node is away while files expire, so that it needs a snapshot."""
RETURNS = 0.25
"""Which part of the seeds has one that is away like that, whatever else it has."""
CRASHES_IN_EXPIRY = 0.3
"""How often another loses power within the first operations of an expiry."""
DEAF_TARGET = 0.3
"""How often a leadership is handed, twice, to a member that stands still."""
ELECTED_WHEN_FULL = 0.3
"""How often a node whose disk is full is to lead."""
FIRST_LEADER_STRUCK = 0.08
"""How often the first leader is cut off as it is elected: its log is truncated to nothing."""
_GRID_MS = 50


def draw_beside(draw: Stream, fault: AnyFault, members: tuple[str, ...]) -> list[AnyFault]:
    """Draw what meets `fault`: nothing for most."""
    at_ms, ms = fault.start_ms, fault.duration_ms
    if isinstance(fault, Expire):
        beside = _absence(draw, fault, members) if draw.chance(EXPIRES_BEHIND_A_BACK) else []
        if draw.chance(CRASHES_IN_EXPIRY):
            beside.append(_power_loss(draw, at_ms, draw.choice((*members, LEADER))))
        return beside
    if isinstance(fault, Transfer) and fault.to != LEADER and draw.chance(DEAF_TARGET):
        still_ms = max(_GRID_MS, at_ms - draw.choice((50, 100, 150)))
        again_ms = draw.choice((50, 200, 1200))
        return [
            Pause(start_ms=still_ms, duration_ms=draw.choice((800, 1800)), node=fault.to),
            Transfer(start_ms=at_ms + again_ms, duration_ms=ms, to=fault.to),
        ]
    if isinstance(fault, FullDisk) and draw.chance(ELECTED_WHEN_FULL):
        return [Transfer(start_ms=at_ms, duration_ms=ms, to=fault.node)]
    return []


def draw_first_strike(draw: Stream) -> list[AnyFault]:
    """Draw, for some seeds, that the first leader is cut off in the moment of its election."""
    if not draw.chance(FIRST_LEADER_STRUCK):
        return []
    return [Strike(start_ms=_GRID_MS, duration_ms=draw.choice((1500, 3000)), moment="elected")]


def draw_return(draw: Stream, members: tuple[str, ...], from_ms: int) -> list[AnyFault]:
    """Draw, for some seeds, that a node was away while files expired, from `from_ms` on."""
    if not draw.chance(RETURNS):
        return []
    start_ms = from_ms + draw.randrange(1000, 12_000, _GRID_MS)
    expiry = Expire(start_ms=start_ms, duration_ms=draw.choice((1000, 2000)))
    return [expiry, *_absence(draw, expiry, members)]


def _absence(draw: Stream, fault: Expire, members: tuple[str, ...]) -> list[AnyFault]:
    """A node is away from before `fault` until behind its end, and returns to some trouble."""
    start_ms = max(_GRID_MS, fault.start_ms - draw.randrange(500, 2000, _GRID_MS))
    back_ms = fault.end_ms
    node = FOLLOWER if draw.chance(0.3) else draw.choice(members)
    trouble = draw.choice((None, *_TROUBLES))
    if trouble is _full_before:
        return _full_before(draw, start_ms, back_ms, node)
    away: AnyFault
    if draw.chance(0.5) and trouble not in (_struck, _full_then):  # a start would meet it first
        away = Crash(
            start_ms=start_ms, duration_ms=back_ms - start_ms, node=node, loses_unsynced=False
        )
    else:
        links = ((node, EVERYBODY), (EVERYBODY, node))
        away = Cut(start_ms=start_ms, duration_ms=back_ms - start_ms, links=links)
    return [away] if trouble is None else [away, *trouble(draw, start_ms, back_ms, node)]


def _full_before(draw: Stream, start_ms: int, back_ms: int, node: str) -> list[AnyFault]:
    """The disk is full already, and the node stands still while the others' files expire."""
    full_ms = max(_GRID_MS, start_ms - draw.choice((300, 600)))
    lasts_ms = back_ms - full_ms + draw.choice((50, 600))
    return [
        FullDisk(
            start_ms=full_ms, duration_ms=lasts_ms, node=node, copies_on_write=draw.chance(0.5)
        ),
        Pause(start_ms=start_ms, duration_ms=back_ms - start_ms, node=node),
    ]


def _full_then(draw: Stream, _: int, back_ms: int, node: str) -> list[AnyFault]:
    """There is no room for the snapshot."""
    lasts_ms = draw.choice((300, 900))
    return [FullDisk(start_ms=back_ms - _GRID_MS, duration_ms=lasts_ms, node=node)]


def _stalled(draw: Stream, _: int, back_ms: int, node: str) -> list[AnyFault]:
    """The snapshot does not get durable before the leader's log begins later still."""
    lasts_ms = draw.choice((1000, 2000))
    return [
        StallDisk(start_ms=back_ms, duration_ms=lasts_ms, node=node),
        Expire(start_ms=back_ms + 2 * _GRID_MS, duration_ms=lasts_ms),
    ]


def _late(draw: Stream, _: int, back_ms: int, __: str) -> list[AnyFault]:
    """What the leader sends may come when another one leads, twice, or when it has expired."""
    start_ms = back_ms - draw.choice((50, 500))
    lost_ms = back_ms + draw.choice((100, 200, 400))
    links = ((LEADER, EVERYBODY),)
    return [
        Reorder(start_ms=start_ms, duration_ms=1000, links=links, probability=0.5, delay_ms=1500.0),
        Duplicate(start_ms=start_ms, duration_ms=1000, links=links, probability=0.5),
        Expire(start_ms=back_ms, duration_ms=1500),
        Crash(start_ms=lost_ms, duration_ms=1000, node=LEADER, loses_unsynced=False),
    ]


def _struck(draw: Stream, _: int, back_ms: int, node: str) -> list[AnyFault]:
    """It loses power in the middle of what it then writes."""
    return [_power_loss(draw, back_ms, node)]


def _power_loss(draw: Stream, at_ms: int, node: str) -> AnyFault:
    operations, ms = draw.randint(1, 24), draw.choice((400, 1000))
    return CrashAtOperation(start_ms=at_ms, duration_ms=ms, node=node, operations=operations)


_TROUBLES: tuple[Callable[[Stream, int, int, str], list[AnyFault]], ...] = (
    _full_before,
    _full_then,
    _stalled,
    _late,
    _struck,
)
