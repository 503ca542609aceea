"""Sequences of faults that real consensus bugs needed, drawn as plain faults in a telling order.

Faults drawn one by one seldom meet: the bug of Raft's figure 8 needs a leader that is cut off with
what it could not replicate, a successor that is lost at once, and the first one back. Here such a
sequence is drawn as a whole; its faults are data like all others, and can be removed one by one.

`harness.campaigns.scenarios` has the same for groups of processes, by the same names; here are some
more, which need what only this world has: a strike in the very moment, a failing fsync, a learner.

Source: Raft section 5.4.2 (figure 8); Ongaro, raft-dev, 10 July 2015; dissertation sections 3.6,
4.2.1, 6.4.1 and 9.6; DLEDGER.md section E (1, 2, 5, 13, 17, 31, 32).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from shaketable.system.sim.schedules.draws import Stream
from shaketable.system.sim.schedules.faults import (
    EVERYBODY,
    FOLLOWER,
    LEADER,
    AddMember,
    AnyFault,
    ClockRate,
    Crash,
    CrashAtOperation,
    Cut,
    Duplicate,
    Expire,
    FailFsync,
    Links,
    Pause,
    RemoveMember,
    Reorder,
    SlowDisk,
    SlowLink,
    StallDisk,
    Strike,
    Transfer,
    Wipe,
)

SCENARIOS_MAX = 3
"""So many scenarios follow one another in a seed at most."""
LATEST_MS = 5000
"""So long before the end the last one begins; one that would last beyond the end is left out."""
PARTED_MIN = 4
"""A change parts a smaller group in no way that matters."""
TWO_CHANGES_MEMBERS = 3
"""Of so many members two that are parted from a leader are a majority, as it and a new one are."""
GAP_MS = 800
"""A group gets so long to settle between two."""
STRUCK_IN_TURN_MIN = 5
"""In a group of that size two may be away, and a quorum is left."""
LED_AFTER_MS = 400
"""So long after it was asked for a transfer is done."""
LATE_MS = 400
"""A delay that is longer than this outlasts its fault."""
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


def change_under_partition(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
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


def two_changes_under_partition(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """A leader is parted with a new member alone, while that one joins and an old one is removed.

    A leader of three that begins a change before an earlier one is committed then needs one vote
    beside its own, and the two that are parted from it need nobody else's.
    """
    if len(group.members) != TWO_CHANGES_MEMBERS:
        return change_under_partition(draw, group, at_ms)
    first, *others = group.members
    joins_ms = at_ms + LED_AFTER_MS
    part_ms = joins_ms + draw.randint(0, 100)
    lasts_ms = draw.randint(4, 8) * group.timeout_ms
    pairs = [(first, other) for other in others]
    return [
        Transfer(start_ms=at_ms, duration_ms=100, to=first),
        AddMember(start_ms=joins_ms, duration_ms=lasts_ms),
        Cut(
            start_ms=part_ms,
            duration_ms=lasts_ms,
            links=(*pairs, *((other, leader) for leader, other in pairs)),
        ),
        RemoveMember(
            start_ms=joins_ms + draw.randint(1, 60), duration_ms=lasts_ms, node=others[-1]
        ),
    ]


def dead_disk(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """The leader's disk stands still for longer than a leader's may, and nothing else happens."""
    return [StallDisk(start_ms=at_ms, duration_ms=draw.randint(2700, 4000), node=LEADER)]


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


def strike_the_elected(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """Whoever is elected is cut off just then, and who is elected next."""
    away_ms = draw.randint(3, 5) * group.timeout_ms
    count = 2 if len(group.members) < STRUCK_IN_TURN_MIN else 3
    strikes = [
        Strike(start_ms=at_ms + 10 + number, duration_ms=away_ms, moment="elected")
        for number in range(count)
    ]
    # One strike alone takes the first who is elected; the next begins when that one has begun.
    spread = [
        msgspec.structs.replace(strike, start_ms=strike.start_ms + number * 2 * group.timeout_ms)
        for number, strike in enumerate(strikes)
    ]
    return [Crash(start_ms=at_ms, duration_ms=away_ms, node=LEADER), *spread]


def stale_tail(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """A leader with a tail that nobody has comes back, and the new leader dies just then."""
    first = draw.choice(group.members)
    cut_ms = at_ms + LED_AFTER_MS
    away_ms = group.timeout_ms * draw.randint(10, 25) // 5
    back_ms = cut_ms + away_ms
    off: Links = ((first, EVERYBODY), (EVERYBODY, first))
    faults: list[AnyFault] = [
        Transfer(start_ms=at_ms, duration_ms=100, to=first),
        Cut(start_ms=cut_ms, duration_ms=away_ms, links=off),
        Crash(start_ms=back_ms + draw.randint(-50, 300), duration_ms=800, node=LEADER),
    ]
    if draw.chance(0.5):
        again_ms = back_ms + draw.randint(20, 600)
        faults.append(Crash(start_ms=again_ms, duration_ms=draw.choice((20, 300)), node=first))
    return faults


def vote_and_crash(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """Voters lose power at a disk operation while a leader is elected, and are soon back."""
    away_ms = draw.randint(3, 6) * group.timeout_ms
    voters = list(group.members)
    draw.shuffle(voters)
    few = max(1, (len(voters) - 1) // 2)
    faults: list[AnyFault] = [Cut(start_ms=at_ms, duration_ms=away_ms, links=OFF)]
    for name in voters[:few]:
        # It starts again when the fault is over: soon after its vote, in the same election.
        ends_ms = group.timeout_ms + draw.randint(0, group.timeout_ms)
        faults.append(
            CrashAtOperation(
                start_ms=at_ms + 20,
                duration_ms=ends_ms,
                node=name,
                operations=draw.randint(1, 6),
            )
        )
    return faults


def held_over_election(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """What a leader sends is held, and delivered one or two elections later, some of it twice."""
    window_ms = draw.choice((100, 300, 800))
    late_ms = float(draw.choice((2, 4, 8)) * group.timeout_ms)
    whom = draw.choice((EVERYBODY, FOLLOWER))
    links: Links = ((LEADER, whom),) if draw.chance(0.7) else ((LEADER, whom), (whom, LEADER))
    fall_ms = at_ms + window_ms + draw.randint(-50, 100)
    held = SlowLink(start_ms=at_ms, duration_ms=window_ms, links=links, delay_ms=late_ms)
    some = Reorder(
        start_ms=at_ms, duration_ms=window_ms, links=links, probability=0.5, delay_ms=late_ms
    )
    faults: list[AnyFault] = [
        draw.choice((held, some)),
        Duplicate(start_ms=at_ms, duration_ms=window_ms, links=links, probability=0.5),
    ]
    away_ms = draw.randint(2, 4) * group.timeout_ms
    if draw.chance(0.5):
        faults.append(Crash(start_ms=fall_ms, duration_ms=away_ms, node=LEADER))
    else:
        faults.append(Cut(start_ms=fall_ms, duration_ms=away_ms, links=OFF))
    if draw.chance(0.5):
        faults.append(Strike(start_ms=fall_ms + 10, duration_ms=away_ms, moment="elected"))
    return faults


def majority_power_loss(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """While a minority stands still the majority that acknowledges loses power at a sync."""
    names = list(group.members)
    draw.shuffle(names)
    few = (len(names) - 1) // 2
    lost_ms = at_ms + draw.randint(100, 800)
    away_ms = lost_ms - at_ms + draw.choice((0, 50, 600))
    faults: list[AnyFault] = [
        Pause(start_ms=at_ms, duration_ms=away_ms, node=name) for name in names[:few]
    ]
    if draw.chance(0.5):
        return faults + [Crash(start_ms=lost_ms, duration_ms=300, node=n) for n in names[few:]]
    operations = draw.randint(1, 12)
    return faults + [
        CrashAtOperation(start_ms=lost_ms, duration_ms=500, node=n, operations=operations)
        for n in names[few:]
    ]


def slow_leader_and_wipe(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """The leader's disk is slow while a follower loses its own; the leader may lose power then."""
    first, second = draw.sample(group.members, 2)
    slow_ms = draw.choice((1000, 2000))
    from_ms = at_ms + LED_AFTER_MS
    faults: list[AnyFault] = [
        Transfer(start_ms=at_ms, duration_ms=100, to=first),
        SlowDisk(
            start_ms=from_ms, duration_ms=slow_ms, node=first, factor=draw.choice((30.0, 100.0))
        ),
        Wipe(start_ms=from_ms + draw.randint(50, 500), duration_ms=500, node=second),
    ]
    if draw.chance(0.5):
        lost_ms = from_ms + draw.randint(500, slow_ms)
        faults.append(Crash(start_ms=lost_ms, duration_ms=400, node=first))
    return faults


def snapshot_during_truncation(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """A follower starts from a snapshot while an old leader's tail is cut off; then one dies."""
    first, second = draw.sample(group.members, 2)
    cut_ms = at_ms + LED_AFTER_MS
    away_ms = draw.randint(3, 6) * group.timeout_ms
    back_ms = cut_ms + away_ms
    off: Links = ((first, EVERYBODY), (EVERYBODY, first))
    away: AnyFault = Crash(start_ms=cut_ms + 50, duration_ms=away_ms, node=second)
    if len(group.members) < STRUCK_IN_TURN_MIN:
        away = Crash(start_ms=back_ms, duration_ms=600, node=second)
    dies = draw.choice((LEADER, first, second))
    return [
        Transfer(start_ms=at_ms, duration_ms=100, to=first),
        Cut(start_ms=cut_ms, duration_ms=away_ms, links=off),
        away,
        Expire(start_ms=back_ms - 200, duration_ms=draw.choice((800, 1500))),
        CrashAtOperation(
            start_ms=away.end_ms,
            duration_ms=600,
            node=dies,
            operations=draw.randint(1, 24),
        ),
    ]


def clock_jump_at_lease(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """A clock jumps ahead as the leader is cut off: with leases the leader's, which ends them.

    A lease trusts that no follower's clock runs ahead. Without one any clock may.
    """
    node = LEADER if group.has_lease else draw.choice((LEADER, *group.members))
    jump_ms = draw.choice((20, 50))
    away_ms = draw.randint(2, 5) * group.timeout_ms
    return [
        ClockRate(start_ms=at_ms, duration_ms=jump_ms, node=node, rate=draw.choice((5.0, 20.0))),
        Cut(start_ms=at_ms + draw.choice((0, 10, 60)), duration_ms=away_ms, links=OFF),
    ]


def transfer_to_the_stale(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """Leadership is handed to a follower that was cut off until a moment ago."""
    name = draw.choice(group.members)
    stale_ms = draw.randint(2, 6) * group.timeout_ms
    links: Links = ((name, EVERYBODY), (EVERYBODY, name))
    asked_ms = at_ms + stale_ms - draw.choice((0, 0, 50, 200))
    return [
        Cut(start_ms=at_ms, duration_ms=stale_ms, links=links),
        Transfer(start_ms=asked_ms, duration_ms=500, to=name),
    ]


def target_goes_away(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """Leadership is handed to a member that is lost just then, and not back in time."""
    name = draw.choice(group.members)
    return [
        Transfer(start_ms=at_ms, duration_ms=100, to=name),
        Crash(
            start_ms=at_ms + draw.randint(-20, 10),
            duration_ms=draw.randint(2500, 4000),
            node=name,
        ),
    ]


def final_power_loss(draw: Stream, group: Group, at_ms: int) -> list[AnyFault]:
    """All machines lose power at once, in the middle of the load."""
    return _everybody_loses_power(draw, group, at_ms)


def _named(*scenarios: Scenario) -> dict[str, Scenario]:
    return {scenario.__name__: scenario for scenario in scenarios}


FIRST = _named(
    figure_8,
    truncated_tail,
    failed_fsync,
    struck_candidate,
    eager_learner,
    change_under_partition,
    overlooked_promise,
    short_log,
    deposed_unaware,
)
"""Those that half of the seeds draw from, as they always did."""
CHAINS = _named(
    strike_the_elected,
    stale_tail,
    vote_and_crash,
    held_over_election,
    change_under_partition,
    majority_power_loss,
    slow_leader_and_wipe,
    snapshot_during_truncation,
    clock_jump_at_lease,
    transfer_to_the_stale,
    final_power_loss,
    figure_8,
    overlooked_promise,
    two_changes_under_partition,
    dead_disk,
    target_goes_away,
)
"""Those that seeds draw from a stream of its own, whatever else they have."""
OFTEN = {"figure_8": 3, "two_changes_under_partition": 3, "dead_disk": 3, "target_goes_away": 3}
"""How often a chain comes that needs luck to meet what it is for; the others: once."""
SCENARIOS = {**FIRST, **CHAINS}
"""All scenarios by name."""


def draw_scenarios(
    draw: Stream,
    group: Group,
    *,
    from_ms: int,
    until_ms: int,
    ack: str,
    among: Mapping[str, Scenario] = FIRST,
    often: Mapping[str, int] | None = None,
    may_lose_disk: bool = False,
) -> tuple[AnyFault, ...]:
    """Draw up to SCENARIOS_MAX scenarios, one after the other, that end before `until_ms`.

    Under "page-cache" no machine loses what it had not synced, as with all faults. With
    `may_lose_disk` one of them may take a disk, and no more than one.
    """
    if len(group.members) < 3:
        return ()
    names = [name for name in among for _ in range(_weight(name, group, often or {}))]
    count = draw.randint(1, SCENARIOS_MAX)
    latest_ms = max(from_ms, until_ms - LATEST_MS)
    starts = sorted(draw.randint(from_ms, latest_ms) for _ in range(count))
    faults: list[AnyFault] = []
    over_ms = 0
    for start_ms in starts:
        at_ms = max(start_ms, over_ms + GAP_MS)
        found = among[draw.choice(names)](draw, group, at_ms)
        over_ms = max(_over_ms(fault) for fault in found)
        if over_ms > until_ms:
            break
        for fault in found:
            if isinstance(fault, Wipe):
                if not may_lose_disk:
                    continue
                may_lose_disk = False
            faults.append(_kept(fault, ack))
    return tuple(sorted(faults, key=lambda fault: fault.start_ms))


def _over_ms(fault: AnyFault) -> int:
    """When a fault is over, what it made late included."""
    late_ms = fault.delay_ms if isinstance(fault, SlowLink | Reorder) else 0.0
    return fault.end_ms + (int(late_ms) if late_ms > LATE_MS else 0)


def _weight(name: str, group: Group, often: Mapping[str, int]) -> int:
    """How often a scenario comes: what needs the most luck, or a certain group, oftener there."""
    if name == overlooked_promise.__name__:
        return 6 if group.has_lease else 0
    if name == change_under_partition.__name__:
        return 3 if len(group.members) >= PARTED_MIN else 0
    return 4 if name == struck_candidate.__name__ else often.get(name, 1)


def _kept(fault: AnyFault, ack: str) -> AnyFault:
    if ack == "page-cache" and isinstance(fault, Crash | CrashAtOperation):
        return msgspec.structs.replace(fault, loses_unsynced=False)
    return fault
