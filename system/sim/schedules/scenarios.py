"""Scenarios: fault sequences that real consensus bugs needed, generated as ordinary faults.

Faults generated one by one seldom meet: the bug of Raft's figure 8 needs a leader that is cut off
with unreplicated entries, a successor that is lost at once, and the first one back. A scenario
generates such a sequence as a whole; its faults are data like all others, and can be removed one by
one.

`harness.campaigns.scenarios` has the same scenarios for groups of processes, by the same names;
some here need what only this world has: a strike at an exact moment, a failing fsync, a learner.

Source: Raft section 5.4.2 (figure 8); Ongaro, raft-dev, 10 July 2015; dissertation sections 3.6,
4.2.1, 6.4.1 and 9.6; DLEDGER.md section E (1, 2, 5, 13, 17, 31, 32).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from shaketable.system.sim.schedules.faults import (
    ALL,
    FOLLOWER,
    LEADER,
    OTHERS,
    AddMember,
    AnyFault,
    ClockRate,
    Crash,
    CrashAtOperation,
    CrashAtTruncation,
    Cut,
    Duplicate,
    Expire,
    FailFsync,
    FullDisk,
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
from shaketable.system.sim.schedules.random_streams import RandomStream

SCENARIOS_MAX = 3
"""Most scenarios in a seed, one after the other."""
LATEST_MS = 5000
"""The last scenario starts no later than this before the end; one that would outlast it is
dropped."""
PARTITION_MIN = 4
"""Smallest group in which a membership change under a partition is interesting."""
TWO_CHANGES_MEMBERS = 3
"""In a group of this size the two members cut off from the leader are a majority, and so are the
leader and a new member."""
GAP_MS = 800
"""Time for the group to settle between two scenarios."""
TWO_AWAY_MIN = 5
"""Smallest group that keeps a quorum with two members away."""
TRANSFER_MS = 400
"""Time after which a requested transfer is done."""
LATE_MS = 400
"""A delay longer than this outlasts its fault."""
HEARD_MS = 80
"""How long before a follower is cut off it may have heard of its leader for the last time."""
ISOLATE_LEADER: Links = ((LEADER, ALL), (ALL, LEADER))
"""Links that isolate the leader."""


@dataclass(frozen=True, slots=True)
class Group:
    """What a scenario needs to know of the group: its members and election timeout."""

    members: tuple[str, ...]
    timeout_ms: int
    """The minimum election timeout."""
    has_lease: bool


Scenario = Callable[[RandomStream, Group, int], list[AnyFault]]
"""Creates the faults of one scenario that starts at a given time."""


def _crash_all(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """All machines crash at once: what was acknowledged must be on disk."""
    down_ms = rng.choice((50, 200, 600))
    return [Crash(start_ms=at_ms, duration_ms=down_ms, node=name) for name in group.members]


def figure_8(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """Isolate a leader, then its successor, and bring the first one back; perhaps again."""
    away_ms = rng.randint(3, 6) * group.timeout_ms
    longer_ms = rng.randint(3, 6) * group.timeout_ms
    faults: list[AnyFault] = [
        Cut(start_ms=at_ms, duration_ms=away_ms, links=ISOLATE_LEADER),
        Strike(start_ms=at_ms + 50, duration_ms=away_ms + longer_ms, moment="elected"),
    ]
    if rng.chance(0.5):
        crash_ms = rng.randint(100, 400)
        faults.append(Crash(start_ms=at_ms + crash_ms, duration_ms=away_ms - crash_ms, node=LEADER))
    return faults


def truncated_tail(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """An isolated leader returns, its tail is truncated, and power fails right after that."""
    away_ms = group.timeout_ms * rng.randint(10, 22) // 5
    after_ms = at_ms + away_ms + rng.randint(20, 400)
    cut = Cut(start_ms=at_ms, duration_ms=away_ms, links=ISOLATE_LEADER)
    return [cut, *_crash_all(rng, group, after_ms)]


def failed_fsync(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """An fsync fails, and the machines lose power before the pages are written again."""
    node = rng.choice((LEADER, *group.members))
    after_ms = rng.randint(30, 500)
    failing = FailFsync(start_ms=at_ms, duration_ms=after_ms, node=node)
    return [failing, *_crash_all(rng, group, at_ms + after_ms)]


def struck_candidate(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A candidate is isolated as it starts a new term, and the old leader leads on."""
    quiet_ms = group.timeout_ms * rng.randint(13, 19) // 10
    away_ms = rng.randint(2, 8) * group.timeout_ms
    strike = Strike(start_ms=at_ms, duration_ms=quiet_ms + away_ms, moment="stands")
    links: Links = rng.choice((ISOLATE_LEADER, ((LEADER, ALL),), ((LEADER, FOLLOWER),)))
    if len(links) == 1 and links[0][1] == FOLLOWER:
        quiet_ms *= 2
    return [Cut(start_ms=at_ms, duration_ms=quiet_ms, links=links), strike]


def eager_learner(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A learner replicates faster than the voters; the leader may then be lost."""
    lasts_ms = rng.choice((800, 2000))
    near = group.members[: rng.choice((0, 0, len(group.members) // 2 - 1))]
    links = tuple((LEADER, name) for name in group.members if name not in near)
    delay_ms = rng.choice((20.0, 60.0, 150.0))
    faults: list[AnyFault] = [
        SlowLink(start_ms=at_ms, duration_ms=lasts_ms, links=links, delay_ms=delay_ms),
        AddMember(start_ms=at_ms + rng.randint(0, 100), duration_ms=lasts_ms),
    ]
    if rng.chance(0.5):
        start_ms = at_ms + rng.randint(100, lasts_ms)
        faults.append(Crash(start_ms=start_ms, duration_ms=1000, node=LEADER))
    return faults


def change_under_partition(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A leader is in a minority partition while members of the majority are to be removed."""
    names = list(group.members)
    rng.shuffle(names)
    few = max(1, (len(names) - 1) // 2)
    minority, majority = names[:few], names[few:]
    pairs = [(a, b) for a in minority for b in majority]
    part_ms = at_ms + 500
    lasts_ms = rng.randint(4, 8) * group.timeout_ms
    links = tuple(pairs + [(b, a) for a, b in pairs])
    faults: list[AnyFault] = [
        Transfer(start_ms=at_ms, duration_ms=100, to=minority[0]),
        Cut(start_ms=part_ms, duration_ms=lasts_ms, links=links),
    ]
    change_ms = part_ms + rng.randint(0, 60)
    return faults + [
        RemoveMember(start_ms=change_ms, duration_ms=lasts_ms, node=name)
        for name in majority[: rng.choice((1, 2, 2))]
    ]


def two_changes_under_partition(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A leader is alone with a new member that joins while an old member is removed.

    A leader of three that starts a change before an earlier one is committed then needs only one
    vote beside its own, and the two others need no vote but their own: two disjoint majorities.
    """
    if len(group.members) != TWO_CHANGES_MEMBERS:
        return change_under_partition(rng, group, at_ms)
    first, *others = group.members
    joins_ms = at_ms + TRANSFER_MS
    part_ms = joins_ms + rng.randint(0, 100)
    lasts_ms = rng.randint(4, 8) * group.timeout_ms
    pairs = [(first, other) for other in others]
    return [
        Transfer(start_ms=at_ms, duration_ms=100, to=first),
        AddMember(start_ms=joins_ms, duration_ms=lasts_ms),
        Cut(
            start_ms=part_ms,
            duration_ms=lasts_ms,
            links=(*pairs, *((other, leader) for leader, other in pairs)),
        ),
        RemoveMember(start_ms=joins_ms + rng.randint(1, 60), duration_ms=lasts_ms, node=others[-1]),
    ]


def dead_disk(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """The leader's disk stalls for longer than a leader may tolerate, and nothing else happens."""
    return [StallDisk(start_ms=at_ms, duration_ms=rng.randint(2700, 4000), node=LEADER)]


def overlooked_promise(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """Voters restart as their leader is isolated, beside one that heard it long ago.

    A restarted voter must not forget that it may have promised a lease. The one that waits is cut
    off in the second half of a second, which is quiet where the load comes in waves, so that it
    misses no entry.
    """
    second_ms = at_ms // 1000 * 1000 + 1000
    start_ms = second_ms + rng.randint(-40, 20)
    at_ms = max(start_ms - group.timeout_ms + HEARD_MS, second_ms - 480)
    off_ms = group.timeout_ms + rng.randint(0, 400)
    down_ms = rng.choice((1, 1, 20))
    return [
        Cut(start_ms=at_ms, duration_ms=start_ms - at_ms, links=((LEADER, FOLLOWER),)),
        Cut(start_ms=start_ms, duration_ms=off_ms, links=ISOLATE_LEADER),
        Crash(start_ms=start_ms, duration_ms=down_ms, node=OTHERS, loses_unsynced=False),
    ]


def short_log(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """The member that lacks the newest entries campaigns first when the leader is lost."""
    lag_ms = rng.randint(2, 5) * group.timeout_ms
    faults: list[AnyFault] = [
        Cut(start_ms=at_ms, duration_ms=lag_ms, links=((LEADER, FOLLOWER),)),
    ]
    lost_ms = at_ms + lag_ms - rng.choice((0, 20, group.timeout_ms))
    away_ms = rng.randint(3, 6) * group.timeout_ms
    if rng.chance(0.5):
        faults.append(Crash(start_ms=lost_ms, duration_ms=away_ms, node=LEADER))
    else:
        faults.append(Cut(start_ms=lost_ms, duration_ms=away_ms, links=ISOLATE_LEADER))
    return faults


def deposed_unaware(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A leader is cut off from the members, not from the clients, as long as possible."""
    away_ms = rng.randint(2, 5) * group.timeout_ms
    links = rng.choice((ISOLATE_LEADER, ((LEADER, ALL),), ((ALL, LEADER),)))
    return [Cut(start_ms=at_ms, duration_ms=away_ms, links=links)]


def strike_the_elected(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """Each newly elected leader is isolated at once, two or three times."""
    away_ms = rng.randint(3, 5) * group.timeout_ms
    count = 2 if len(group.members) < TWO_AWAY_MIN else 3
    strikes = [
        Strike(start_ms=at_ms + 10 + number, duration_ms=away_ms, moment="elected")
        for number in range(count)
    ]
    # Each strike isolates the first one elected while it lasts, so the strikes start staggered.
    spread = [
        msgspec.structs.replace(strike, start_ms=strike.start_ms + number * 2 * group.timeout_ms)
        for number, strike in enumerate(strikes)
    ]
    return [Crash(start_ms=at_ms, duration_ms=away_ms, node=LEADER), *spread]


def stale_tail(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A leader with an unreplicated tail returns, and the new leader dies just then."""
    first = rng.choice(group.members)
    cut_ms = at_ms + TRANSFER_MS
    away_ms = group.timeout_ms * rng.randint(10, 25) // 5
    back_ms = cut_ms + away_ms
    off: Links = ((first, ALL), (ALL, first))
    faults: list[AnyFault] = [
        Transfer(start_ms=at_ms, duration_ms=100, to=first),
        Cut(start_ms=cut_ms, duration_ms=away_ms, links=off),
        Crash(start_ms=back_ms + rng.randint(-50, 300), duration_ms=800, node=LEADER),
    ]
    if rng.chance(0.5):
        again_ms = back_ms + rng.randint(20, 600)
        faults.append(Crash(start_ms=again_ms, duration_ms=rng.choice((20, 300)), node=first))
    return faults


def vote_and_crash(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """Voters lose power at a disk operation during an election, and are soon back."""
    away_ms = rng.randint(3, 6) * group.timeout_ms
    voters = list(group.members)
    rng.shuffle(voters)
    few = max(1, (len(voters) - 1) // 2)
    faults: list[AnyFault] = [Cut(start_ms=at_ms, duration_ms=away_ms, links=ISOLATE_LEADER)]
    for name in voters[:few]:
        # It restarts when the fault ends: soon after its vote, in the same election.
        ends_ms = group.timeout_ms + rng.randint(0, group.timeout_ms)
        faults.append(
            CrashAtOperation(
                start_ms=at_ms + 20,
                duration_ms=ends_ms,
                node=name,
                operations=rng.randint(1, 6),
            )
        )
    return faults


def held_over_election(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A leader's messages are delivered one or two elections later, some of them twice."""
    window_ms = rng.choice((100, 300, 800))
    late_ms = float(rng.choice((2, 4, 8)) * group.timeout_ms)
    whom = rng.choice((ALL, FOLLOWER))
    links: Links = ((LEADER, whom),) if rng.chance(0.7) else ((LEADER, whom), (whom, LEADER))
    fall_ms = at_ms + window_ms + rng.randint(-50, 100)
    held = SlowLink(start_ms=at_ms, duration_ms=window_ms, links=links, delay_ms=late_ms)
    some = Reorder(
        start_ms=at_ms, duration_ms=window_ms, links=links, probability=0.5, delay_ms=late_ms
    )
    faults: list[AnyFault] = [
        rng.choice((held, some)),
        Duplicate(start_ms=at_ms, duration_ms=window_ms, links=links, probability=0.5),
    ]
    away_ms = rng.randint(2, 4) * group.timeout_ms
    if rng.chance(0.5):
        faults.append(Crash(start_ms=fall_ms, duration_ms=away_ms, node=LEADER))
    else:
        faults.append(Cut(start_ms=fall_ms, duration_ms=away_ms, links=ISOLATE_LEADER))
    if rng.chance(0.5):
        faults.append(Strike(start_ms=fall_ms + 10, duration_ms=away_ms, moment="elected"))
    return faults


def majority_power_loss(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A minority is paused while the majority that acknowledges loses power at a sync."""
    names = list(group.members)
    rng.shuffle(names)
    few = (len(names) - 1) // 2
    lost_ms = at_ms + rng.randint(100, 800)
    away_ms = lost_ms - at_ms + rng.choice((0, 50, 600))
    faults: list[AnyFault] = [
        Pause(start_ms=at_ms, duration_ms=away_ms, node=name) for name in names[:few]
    ]
    if rng.chance(0.5):
        return faults + [Crash(start_ms=lost_ms, duration_ms=300, node=n) for n in names[few:]]
    operations = rng.randint(1, 12)
    return faults + [
        CrashAtOperation(start_ms=lost_ms, duration_ms=500, node=n, operations=operations)
        for n in names[few:]
    ]


def slow_leader_and_wipe(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """The leader's disk is slow while a follower loses its own; the leader may then crash."""
    first, second = rng.sample(group.members, 2)
    slow_ms = rng.choice((1000, 2000))
    from_ms = at_ms + TRANSFER_MS
    faults: list[AnyFault] = [
        Transfer(start_ms=at_ms, duration_ms=100, to=first),
        SlowDisk(
            start_ms=from_ms, duration_ms=slow_ms, node=first, factor=rng.choice((30.0, 100.0))
        ),
        Wipe(start_ms=from_ms + rng.randint(50, 500), duration_ms=500, node=second),
    ]
    if rng.chance(0.5):
        lost_ms = from_ms + rng.randint(500, slow_ms)
        faults.append(Crash(start_ms=lost_ms, duration_ms=400, node=first))
    return faults


def snapshot_during_truncation(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A follower gets a snapshot while an old leader's tail is truncated; then one dies."""
    first, second = rng.sample(group.members, 2)
    cut_ms = at_ms + TRANSFER_MS
    away_ms = rng.randint(3, 6) * group.timeout_ms
    back_ms = cut_ms + away_ms
    off: Links = ((first, ALL), (ALL, first))
    away: AnyFault = Crash(start_ms=cut_ms + 50, duration_ms=away_ms, node=second)
    if len(group.members) < TWO_AWAY_MIN:
        away = Crash(start_ms=back_ms, duration_ms=600, node=second)
    dies = rng.choice((LEADER, first, second))
    return [
        Transfer(start_ms=at_ms, duration_ms=100, to=first),
        Cut(start_ms=cut_ms, duration_ms=away_ms, links=off),
        away,
        Expire(start_ms=back_ms - 200, duration_ms=rng.choice((800, 1500))),
        CrashAtOperation(
            start_ms=away.end_ms,
            duration_ms=600,
            node=dies,
            operations=rng.randint(1, 24),
        ),
    ]


def clock_jump_at_lease(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A clock jumps ahead as the leader is isolated; with leases only the leader's clock.

    A lease relies on no follower's clock running ahead, and a leader's own jump ends its lease
    early. Without leases any clock may jump.
    """
    node = LEADER if group.has_lease else rng.choice((LEADER, *group.members))
    jump_ms = rng.choice((20, 50))
    away_ms = rng.randint(2, 5) * group.timeout_ms
    return [
        ClockRate(start_ms=at_ms, duration_ms=jump_ms, node=node, rate=rng.choice((5.0, 20.0))),
        Cut(start_ms=at_ms + rng.choice((0, 10, 60)), duration_ms=away_ms, links=ISOLATE_LEADER),
    ]


def transfer_to_the_stale(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """Leadership is transferred to a follower that was isolated until a moment ago."""
    name = rng.choice(group.members)
    stale_ms = rng.randint(2, 6) * group.timeout_ms
    links: Links = ((name, ALL), (ALL, name))
    asked_ms = at_ms + stale_ms - rng.choice((0, 0, 50, 200))
    return [
        Cut(start_ms=at_ms, duration_ms=stale_ms, links=links),
        Transfer(start_ms=asked_ms, duration_ms=500, to=name),
    ]


def target_goes_away(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """Leadership is transferred to a member that crashes just then, and is not back in time."""
    name = rng.choice(group.members)
    return [
        Transfer(start_ms=at_ms, duration_ms=100, to=name),
        Crash(
            start_ms=at_ms + rng.randint(-20, 10),
            duration_ms=rng.randint(2500, 4000),
            node=name,
        ),
    ]


def crashed_successor(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """Leadership is transferred to a member that loses power as it takes the new term.

    It is soon back, in a term that no other member has heard of.
    """
    name = rng.choice(group.members)
    return [
        Transfer(start_ms=at_ms, duration_ms=100, to=name),
        CrashAtOperation(
            start_ms=at_ms,
            duration_ms=rng.randint(200, 1500),
            node=name,
            operations=rng.randint(1, 8),
        ),
    ]


def undone_change(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A member joins; then a leader that is cut off starts a change, which its successor undoes.

    The leader's log has changes before the one that is removed, and these stay in force.
    """
    first, *others = group.members
    joins_ms = at_ms + TRANSFER_MS
    part_ms = joins_ms + rng.randint(500, 1000)
    lasts_ms = rng.randint(4, 7) * group.timeout_ms
    return [
        Transfer(start_ms=at_ms, duration_ms=100, to=first),
        AddMember(start_ms=joins_ms, duration_ms=lasts_ms),
        Cut(start_ms=part_ms, duration_ms=lasts_ms, links=((first, ALL), (ALL, first))),
        RemoveMember(
            start_ms=part_ms + rng.randint(0, 60), duration_ms=lasts_ms, node=rng.choice(others)
        ),
    ]


def power_loss_at_truncation(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A leader is isolated, and the one who then truncates its log loses power just there."""
    away_ms = rng.randint(3, 7) * group.timeout_ms
    strike_ms = at_ms + away_ms - 50
    return [
        Cut(start_ms=at_ms, duration_ms=away_ms, links=ISOLATE_LEADER),
        CrashAtTruncation(
            start_ms=strike_ms,
            duration_ms=rng.randint(600, 1200),
            operations=rng.choice((1, 2, 3, 4, 6, 10)),
        ),
    ]


def sick_disk(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A member whose disk is full, or stalls, hears no leader any more."""
    name = rng.choice(group.members)
    away_ms = rng.randint(2, 4) * group.timeout_ms
    links: Links = ((name, ALL), (ALL, name))
    if rng.chance(0.5):
        lost_ms = at_ms + rng.randint(100, 600)
        lasts_ms = lost_ms + away_ms - at_ms
        full = FullDisk(start_ms=at_ms, duration_ms=lasts_ms, node=name, copies_on_write=True)
        return [full, Cut(start_ms=lost_ms, duration_ms=away_ms, links=links)]
    lost_ms = at_ms + rng.randint(1800, 2200)
    lasts_ms = lost_ms + away_ms - at_ms
    stalled = StallDisk(start_ms=at_ms, duration_ms=lasts_ms, node=name)
    return [stalled, Cut(start_ms=lost_ms, duration_ms=away_ms, links=links)]


def snapshot_meets_sick_disk(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """A follower needs a snapshot, and its disk is full, or stalls while the log goes on expiring.

    A full disk was full before, so that the follower knows; it takes the snapshot once it has room.
    """
    first, name = rng.sample(group.members, 2)
    away_ms = at_ms + TRANSFER_MS + rng.randint(300, 600)
    back_ms = away_ms + rng.randint(1000, 1800)
    lasts_ms = rng.randint(500, 1500)
    faults: list[AnyFault] = [
        Transfer(start_ms=at_ms, duration_ms=100, to=first),
        Cut(start_ms=away_ms, duration_ms=back_ms - away_ms, links=((name, ALL), (ALL, name))),
        Expire(start_ms=back_ms - 700, duration_ms=700 + lasts_ms),
    ]
    if rng.chance(0.5):
        # What expires frees room: only a disk without old files stays full.
        full_ms = at_ms + TRANSFER_MS
        full_for_ms = back_ms + lasts_ms - full_ms
        full = FullDisk(start_ms=full_ms, duration_ms=full_for_ms, node=name, copies_on_write=True)
        return [*faults, Expire(start_ms=at_ms, duration_ms=TRANSFER_MS), full]
    return [*faults, StallDisk(start_ms=back_ms, duration_ms=lasts_ms, node=name)]


def slow_leader(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """The leader's disk is slow for so long that under load some write always waits.

    It makes progress all the same, and does not count as stalled.
    """
    first, lasts_ms = rng.choice(group.members), rng.randint(2800, 4200)
    factor = rng.choice((60.0, 150.0))
    from_ms = at_ms + TRANSFER_MS
    return [
        Transfer(start_ms=at_ms, duration_ms=100, to=first),
        SlowDisk(start_ms=from_ms, duration_ms=lasts_ms, node=first, factor=factor),
    ]


def full_at_checkpoint(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """Disks fill up when a checkpoint is all but saved, and have room again before the next one."""
    lasts_ms = rng.choice((900, 2800))
    return [
        FullDisk(
            start_ms=at_ms,
            duration_ms=lasts_ms,
            node=name,
            copies_on_write=True,
            since="/appliedto",
        )
        for name in rng.sample(group.members, 2)
    ]


def final_power_loss(rng: RandomStream, group: Group, at_ms: int) -> list[AnyFault]:
    """All machines lose power at once, under load."""
    return _crash_all(rng, group, at_ms)


def _named(*scenarios: Scenario) -> dict[str, Scenario]:
    return {scenario.__name__: scenario for scenario in scenarios}


BASE_SCENARIOS = _named(
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
"""Scenarios of half of the seeds. Adding to them changes the schedules of old seeds."""
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
"""Scenarios from a stream of their own, independent of what else a seed has."""
CHAIN_WEIGHTS = {
    "figure_8": 3,
    "two_changes_under_partition": 3,
    "dead_disk": 3,
    "target_goes_away": 3,
    "full_at_checkpoint": 2,
    "power_loss_at_truncation": 3,
}
"""Weights of chains that need luck to hit their target; the others have weight 1."""
LATER = _named(
    undone_change,
    sick_disk,
    snapshot_meets_sick_disk,
    crashed_successor,
    full_at_checkpoint,
    power_loss_at_truncation,
    overlooked_promise,
    slow_leader,
)
"""Scenarios from a stream of their own, most often with nothing beside them."""
SCENARIOS = {**BASE_SCENARIOS, **CHAINS, **LATER}
"""All scenarios by name."""


def draw_scenarios(
    rng: RandomStream,
    group: Group,
    *,
    from_ms: int,
    until_ms: int,
    ack: str,
    among: Mapping[str, Scenario] = BASE_SCENARIOS,
    weights: Mapping[str, int] | None = None,
    may_lose_disk: bool = False,
) -> tuple[AnyFault, ...]:
    """Generate up to SCENARIOS_MAX scenarios, one after the other, that end before `until_ms`.

    Under "page-cache" no machine loses unsynced data, as with all faults. With `may_lose_disk` one
    scenario, and no more, may lose a disk.
    """
    if len(group.members) < 3:
        return ()
    names = [name for name in among for _ in range(_weight(name, group, weights or {}))]
    count = rng.randint(1, SCENARIOS_MAX)
    latest_ms = max(from_ms, until_ms - LATEST_MS)
    starts = sorted(rng.randint(from_ms, latest_ms) for _ in range(count))
    faults: list[AnyFault] = []
    over_ms = 0
    for start_ms in starts:
        at_ms = max(start_ms, over_ms + GAP_MS)
        found = among[rng.choice(names)](rng, group, at_ms)
        over_ms = max(_over_ms(fault) for fault in found)
        if over_ms > until_ms:
            break
        for fault in found:
            if isinstance(fault, Wipe):
                if not may_lose_disk:
                    continue
                may_lose_disk = False
            faults.append(_limit(fault, ack))
    return tuple(sorted(faults, key=lambda fault: fault.start_ms))


def _over_ms(fault: AnyFault) -> int:
    """Return when a fault is over, including the messages that it delayed."""
    late_ms = fault.delay_ms if isinstance(fault, SlowLink | Reorder) else 0.0
    return fault.end_ms + (int(late_ms) if late_ms > LATE_MS else 0)


def _weight(name: str, group: Group, weights: Mapping[str, int]) -> int:
    """Return a scenario's weight: higher where it needs luck or a certain kind of group."""
    if name == overlooked_promise.__name__:
        return 6 if group.has_lease else 0
    if name == change_under_partition.__name__:
        return 3 if len(group.members) >= PARTITION_MIN else 0
    return 4 if name == struck_candidate.__name__ else weights.get(name, 1)


def _limit(fault: AnyFault, ack: str) -> AnyFault:
    if ack == "page-cache" and isinstance(fault, Crash | CrashAtOperation | CrashAtTruncation):
        return msgspec.structs.replace(fault, loses_unsynced=False)
    return fault
