"""Sequences of faults that real consensus bugs needed, drawn as plain faults in a telling order.

Faults drawn one by one seldom meet: the bug of Raft's figure 8 needs a leader that is cut off with
what it could not replicate, a successor that is lost at once, and the first one back. Here such a
sequence is drawn as a whole; its faults are data like all others, and can be removed one by one.

Source: Raft section 5.4.2 (figure 8); Ongaro, raft-dev, 10 July 2015; dissertation sections 3.6,
4.2.1, 6.4.1 and 9.6; DLEDGER.md section E (1, 2, 5, 13, 17, 31, 32).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from system.sim.draws import Stream
from system.sim.faults import (
    EVERYBODY,
    FOLLOWER,
    LEADER,
    AddMember,
    AnyFault,
    Crash,
    Cut,
    FailFsync,
    Links,
    RemoveMember,
    SlowLink,
    Strike,
    Transfer,
)

SCENARIOS_MAX = 3
"""So many scenarios follow one another in a seed at most."""
LATEST_MS = 5000
"""So long before the end the last one begins; one that would last beyond the end is left out."""
PARTED_MIN = 4
"""A change parts a smaller group in no way that matters."""
GAP_MS = 800
"""A group gets so long to settle between two."""
OFF: Links = ((LEADER, EVERYBODY), (EVERYBODY, LEADER))
"""Cuts the leader off."""


@dataclass(frozen=True, slots=True)
class Group:
    """What a scenario has to know: who is there, and what elections take."""

    members: tuple[str, ...]
    timeout_ms: int
    """The shortest election timeout."""
    has_lease: bool


Scenario = Callable[[Stream, Group, int], list[AnyFault]]
"""Makes the faults of one scenario that begins at a time."""


def _everybody_loses_power(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """The machines all go down at once: what was acknowledged must be on disks."""
    down_ms = draw.choice((50, 200, 600))
    return [Crash(start_ms=at_ms, duration_ms=down_ms, node=name) for name in group.members]


def figure_8(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """A leader is cut off, its successor too, and the first one comes back; perhaps again."""
    away_ms = draw.randint(3, 6) * group.timeout_ms
    longer_ms = draw.randint(3, 6) * group.timeout_ms
    faults: list[AnyFault] = [
        Cut(start_ms=at_ms, duration_ms=away_ms, links=OFF),
        Strike(start_ms=at_ms + 50, duration_ms=away_ms + longer_ms, moment="elected"),
    ]
    if draw.chance(0.5):
        crash_ms = draw.randint(100, 400)
        faults.append(Crash(start_ms=at_ms + crash_ms, duration_ms=away_ms - crash_ms, node=LEADER))
    return faults


def truncated_tail(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """A cut-off leader comes back, its tail is replaced, and the power fails right after that."""
    away_ms = group.timeout_ms * draw.randint(10, 22) // 5
    after_ms = at_ms + away_ms + draw.randint(20, 400)
    cut = Cut(start_ms=at_ms, duration_ms=away_ms, links=OFF)
    return [cut, *_everybody_loses_power(draw, group, after_ms)]


def failed_fsync(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """An fsync fails, and the machines lose power before the pages are written again."""
    node = draw.choice((LEADER, *group.members))
    after_ms = draw.randint(30, 500)
    failing = FailFsync(start_ms=at_ms, duration_ms=after_ms, node=node)
    return [failing, *_everybody_loses_power(draw, group, at_ms + after_ms)]


def struck_candidate(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """A member stands for election, is cut off that moment, and the old leader leads on."""
    quiet_ms = group.timeout_ms * draw.randint(13, 19) // 10
    away_ms = draw.randint(2, 8) * group.timeout_ms
    strike = Strike(start_ms=at_ms, duration_ms=quiet_ms + away_ms, moment="stands")
    links: Links = draw.choice((OFF, ((LEADER, EVERYBODY),), ((LEADER, FOLLOWER),)))
    if len(links) == 1 and links[0][1] == FOLLOWER:
        quiet_ms *= 2
    return [Cut(start_ms=at_ms, duration_ms=quiet_ms, links=links), strike]


def eager_learner(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """A learner is nearer to the leader than the voters are; the leader may then be lost."""
    lasts_ms = draw.choice((800, 2000))
    near = group.members[: draw.choice((0, 0, len(group.members) // 2 - 1))]
    links = tuple((LEADER, name) for name in group.members if name not in near)
    delay_ms = draw.choice((20.0, 60.0, 150.0))
    faults: list[AnyFault] = [
        SlowLink(start_ms=at_ms, duration_ms=lasts_ms, links=links, delay_ms=delay_ms),
        AddMember(start_ms=at_ms + draw.randint(0, 100), duration_ms=lasts_ms),
    ]
    if draw.chance(0.5):
        start_ms = at_ms + draw.randint(100, lasts_ms)
        faults.append(Crash(start_ms=start_ms, duration_ms=1000, node=LEADER))
    return faults


def parted_change(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """A leader is parted with a minority while members of the majority are to be removed."""
    names = list(group.members)
    draw.shuffle(names)
    few = max(1, (len(names) - 1) // 2)
    minority, majority = names[:few], names[few:]
    pairs = [(a, b) for a in minority for b in majority]
    part_ms = at_ms + 500
    lasts_ms = draw.randint(4, 8) * group.timeout_ms
    links = tuple(pairs + [(b, a) for a, b in pairs])
    faults: list[AnyFault] = [
        Transfer(start_ms=at_ms, duration_ms=100, to=minority[0]),
        Cut(start_ms=part_ms, duration_ms=lasts_ms, links=links),
    ]
    change_ms = part_ms + draw.randint(0, 60)
    return faults + [
        RemoveMember(start_ms=change_ms, duration_ms=lasts_ms, node=name)
        for name in majority[: draw.choice((1, 2, 2))]
    ]


def overlooked_promise(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """Voters that hear the leader restart as it is cut off, beside one that heard it long ago.

    It waits in the second half of a second, which is quiet where the load comes in waves: who hears
    nothing then misses nothing.
    """
    first, waiting, *others = group.members
    second_ms = at_ms // 1000 * 1000 + 1000
    start_ms = second_ms + draw.randint(-40, 20)
    at_ms = max(start_ms - group.timeout_ms + 10, second_ms - 480)
    off_ms = group.timeout_ms + draw.randint(0, 400)
    down_ms = draw.choice((1, 1, 20))
    faults: list[AnyFault] = [
        Transfer(start_ms=at_ms - 500, duration_ms=100, to=first),
        Cut(start_ms=at_ms, duration_ms=start_ms - at_ms, links=((first, waiting),)),
        Cut(start_ms=start_ms, duration_ms=off_ms, links=OFF),
    ]
    faults += [
        Crash(start_ms=start_ms, duration_ms=down_ms, node=name, loses_unsynced=False)
        for name in others
    ]
    return faults


def short_log(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """Whoever lacks the newest entries is the first to stand when the leader is lost."""
    behind_ms = draw.randint(2, 5) * group.timeout_ms
    faults: list[AnyFault] = [
        Cut(start_ms=at_ms, duration_ms=behind_ms, links=((LEADER, FOLLOWER),)),
    ]
    lost_ms = at_ms + behind_ms - draw.choice((0, 20, group.timeout_ms))
    away_ms = draw.randint(3, 6) * group.timeout_ms
    if draw.chance(0.5):
        faults.append(Crash(start_ms=lost_ms, duration_ms=away_ms, node=LEADER))
    else:
        faults.append(Cut(start_ms=lost_ms, duration_ms=away_ms, links=OFF))
    return faults


def deposed_unaware(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """A leader is cut off from the members, not from the clients, as long as it can be."""
    away_ms = draw.randint(2, 5) * group.timeout_ms
    links = draw.choice((OFF, ((LEADER, EVERYBODY),), ((EVERYBODY, LEADER),)))
    return [Cut(start_ms=at_ms, duration_ms=away_ms, links=links)]


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        figure_8,
        truncated_tail,
        failed_fsync,
        struck_candidate,
        eager_learner,
        parted_change,
        overlooked_promise,
        short_log,
        deposed_unaware,
    )
}
"""All scenarios by name."""


def draw_scenarios(
    draw: Stream, group: Group, *, from_ms: int, until_ms: int, ack: str
) -> tuple[AnyFault, ...]:
    """Draw up to SCENARIOS_MAX scenarios, one behind the other, that end before `until_ms`.

    Under "page-cache" no machine loses what it had not synced, as with all faults.
    """
    if len(group.members) < 3:
        return ()
    names = [name for name in SCENARIOS for _ in range(_weight(name, group))]
    count = draw.randint(1, SCENARIOS_MAX)
    latest_ms = max(from_ms, until_ms - LATEST_MS)
    starts = sorted(draw.randint(from_ms, latest_ms) for _ in range(count))
    faults: list[AnyFault] = []
    over_ms = 0
    for start_ms in starts:
        at_ms = max(start_ms, over_ms + GAP_MS)
        found = SCENARIOS[draw.choice(names)](draw, group, at_ms)
        over_ms = max(fault.end_ms for fault in found)
        if over_ms > until_ms:
            break
        faults += [_kept(fault, ack) for fault in found]
    return tuple(sorted(faults, key=lambda fault: fault.start_ms))


def _weight(name: str, group: Group) -> int:
    """How often a scenario comes: what needs the most luck, or a certain group, oftener there."""
    if name == overlooked_promise.__name__:
        return 6 if group.has_lease else 0
    if name == parted_change.__name__:
        return 3 if len(group.members) >= PARTED_MIN else 0
    return 4 if name == struck_candidate.__name__ else 1


def _kept(fault: AnyFault, ack: str) -> AnyFault:
    if ack == "page-cache" and isinstance(fault, Crash):
        return msgspec.structs.replace(fault, loses_unsynced=False)
    return fault
