"""Random faults of a run: which kinds a seed has at all, how many, when, where and how long.

Combinations that no system could survive are not generated: less than a majority loses its disk or
suffers bit rot, and clocks stay within what leases tolerate. So a violation is the system's fault,
not the schedule's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from shaketable.system.sim.schedules.faults import (
    ALL,
    FOLLOWER,
    LEADER,
    AddMember,
    AnyFault,
    BitRot,
    ClockOffset,
    ClockRate,
    Crash,
    CrashAtOperation,
    Cut,
    Duplicate,
    Eio,
    Expire,
    FailFsync,
    FullDisk,
    Links,
    LossyLink,
    Pause,
    RemoveMember,
    Reorder,
    ReplaceMember,
    SlowDisk,
    SlowLink,
    StallDisk,
    Strike,
    Transfer,
    Wipe,
)
from shaketable.system.sim.schedules.random_streams import RandomStream, RandomStreams

if TYPE_CHECKING:
    from collections.abc import Callable

    from shaketable.system.sim.schedules.random_streams import RandomStream


GRID_MS = 50
CLOCK_RATE_OFF_MAX = 0.02
"""Most that a clock rate differs from 1.0: two clocks stay within RaftConfig.clock_drift_max."""


class TargetPicker:
    """Picks random nodes and links of one group as targets of faults."""

    def __init__(self, rng: RandomStream, members: tuple[str, ...], *, leads: float) -> None:
        self.rng = rng
        self._leads = leads
        self.members = members

    def node(self) -> str:
        """Return a member by id, or "leader", or "follower"."""
        roll = self.rng.random()
        if roll < self._leads:
            return LEADER
        if roll < self._leads + 0.15:
            return FOLLOWER
        return self.rng.choice(self.members)

    def links(self) -> Links:
        """Return links that split the group, isolate a node, cut one way, or cut one pair."""
        rng = self.rng
        node = self.node()
        roll = rng.random()
        if roll < 0.35:
            return ((node, ALL), (ALL, node))
        if roll < 0.5:
            return ((node, ALL),)
        if roll < 0.65:
            return ((ALL, node),)
        if roll < 0.8:
            other = rng.choice(self.members)
            return ((node, other), (other, node))
        some = [member for member in self.members if rng.random() < 0.5]
        rest = [member for member in self.members if member not in some]
        pairs = [(a, b) for a in some for b in rest]
        return tuple(pairs + [(b, a) for a, b in pairs])

    def wide_links(self) -> Links:
        """Return all links, or those of one node: for faults that do not partition the group."""
        if self.rng.random() < 0.5:
            return ((ALL, ALL),)
        return self.links()


Maker = Callable[[TargetPicker, RandomStream, int, int], AnyFault]
"""Creates a fault from its start and duration."""

FULL_SINCE = (
    *("", "", "", "", "", ""),
    *("/data/", "/consumequeue/", "/index/", "/appliedto", "/appliedto", "/snapshot"),
)
"""What is written as a disk becomes full; half of the time that does not matter."""

FAULT_MAKERS: dict[str, Maker] = {
    "crash": lambda w, d, at, ms: Crash(
        start_ms=at, duration_ms=ms, node=w.node(), loses_unsynced=d.random() < 0.7
    ),
    "crash_at_operation": lambda w, d, at, ms: CrashAtOperation(
        start_ms=at,
        duration_ms=ms,
        node=w.node(),
        operations=d.randint(1, 60),
        loses_unsynced=d.random() < 0.8,
    ),
    "pause": lambda w, _, at, ms: Pause(start_ms=at, duration_ms=ms, node=w.node()),
    "cut": lambda w, _, at, ms: Cut(start_ms=at, duration_ms=ms, links=w.links()),
    "slow_link": lambda w, d, at, ms: SlowLink(
        start_ms=at, duration_ms=ms, links=w.wide_links(), delay_ms=d.choice((5.0, 30.0, 120.0))
    ),
    "lossy_link": lambda w, d, at, ms: LossyLink(
        start_ms=at, duration_ms=ms, links=w.wide_links(), probability=d.choice((0.02, 0.2, 0.5))
    ),
    "duplicate": lambda w, d, at, ms: Duplicate(
        start_ms=at, duration_ms=ms, links=w.wide_links(), probability=d.choice((0.05, 0.5))
    ),
    "reorder": lambda w, d, at, ms: Reorder(
        start_ms=at,
        duration_ms=ms,
        links=w.wide_links(),
        probability=d.choice((0.05, 0.4)),
        delay_ms=d.choice((5.0, 50.0, 300.0)),
    ),
    "clock_rate": lambda w, d, at, ms: ClockRate(
        start_ms=at,
        duration_ms=ms,
        node=w.node(),
        rate=1.0 + d.uniform(-CLOCK_RATE_OFF_MAX, CLOCK_RATE_OFF_MAX),
    ),
    "clock_offset": lambda w, d, at, ms: ClockOffset(
        start_ms=at, duration_ms=ms, node=w.node(), offset_ms=d.choice((-60_000, -500, 60_000))
    ),
    "slow_disk": lambda w, d, at, ms: SlowDisk(
        start_ms=at, duration_ms=ms, node=w.node(), factor=d.choice((5.0, 30.0, 100.0))
    ),
    "stall_disk": lambda w, _, at, ms: StallDisk(start_ms=at, duration_ms=ms, node=w.node()),
    "fail_fsync": lambda w, _, at, ms: FailFsync(start_ms=at, duration_ms=ms, node=w.node()),
    "eio": lambda w, _, at, ms: Eio(start_ms=at, duration_ms=ms, node=w.node()),
    "full_disk": lambda w, d, at, ms: FullDisk(
        start_ms=at,
        duration_ms=ms,
        node=w.node(),
        spare_bytes=d.choice((0, 6_000, 6_000, 20_000, 200_000)),
        copies_on_write=d.random() < 0.6,
        refused=d.choice((1.0, 1.0, 0.5, 0.1)),
        since=d.choice(FULL_SINCE),
    ),
    "bit_rot": lambda w, d, at, ms: BitRot(
        start_ms=at, duration_ms=ms, node=w.node(), place=d.random(), bit=d.randrange(8)
    ),
    "wipe": lambda w, _, at, ms: Wipe(start_ms=at, duration_ms=ms, node=w.node()),
    "transfer": lambda w, _, at, ms: Transfer(start_ms=at, duration_ms=ms, to=w.node()),
    "add_member": lambda _, __, at, ms: AddMember(start_ms=at, duration_ms=ms),
    "remove_member": lambda w, _, at, ms: RemoveMember(start_ms=at, duration_ms=ms, node=w.node()),
    "replace_member": lambda w, _, at, ms: ReplaceMember(
        start_ms=at, duration_ms=ms, node=w.node()
    ),
    "expire": lambda _, __, at, ms: Expire(start_ms=at, duration_ms=ms),
}
"""How each kind of fault is generated, by its name."""

KINDS: tuple[str, ...] = tuple(FAULT_MAKERS)
DISK_LOSS_KINDS = ("bit_rot", "wipe")
"""Kinds that destroy a node's copy of the log; at most one such fault in a run."""
MEMBERSHIP_KINDS = ("wipe", "bit_rot", "add_member", "remove_member", "replace_member")
"""Kinds that change the membership; the group gets time to finish one before the next."""
STORM_KINDS = (
    "crash",
    "crash_at_operation",
    "pause",
    "cut",
    "slow_link",
    "lossy_link",
    "reorder",
    "stall_disk",
    "transfer",
)
"""Kinds of a storm: those that end a leadership, or delay its messages."""
SHARE_OF_KINDS = 0.45
"""Probability that a seed has a given kind at all."""
MEMBERSHIP_GAP_MS = 5000


def draw_faults(
    rngs: RandomStreams,
    *,
    members: int,
    from_ms: int,
    until_ms: int,
    kinds: tuple[str, ...] | None,
    count: int,
    ack: str,
    is_storm: bool = False,
) -> tuple[AnyFault, ...]:
    """Generate `count` faults between `from_ms` and `until_ms`, in order of time.

    Each fault has its own random stream. Under "page-cache" no machine loses unsynced data: that
    policy does not promise to survive it.
    """
    mix = rngs.stream("fault_mix")
    allowed = KINDS if kinds is None else tuple(kind for kind in KINDS if kind in kinds)
    if not allowed:
        return ()
    if is_storm:
        allowed = tuple(kind for kind in allowed if kind in STORM_KINDS) or allowed
    own = tuple(kind for kind in allowed if mix.random() < SHARE_OF_KINDS) or allowed
    names = tuple(f"n{number}" for number in range(members))
    faults: list[AnyFault] = []
    disks_lost = 0
    changed_ms = -MEMBERSHIP_GAP_MS
    starts = sorted(mix.randrange(from_ms, until_ms - 500, GRID_MS) for _ in range(count))
    for number, start_ms in enumerate(starts):
        # A stream of its own: what one fault consumes changes no other fault.
        rng = rngs.stream(f"fault/{number}")
        usable = [
            kind
            for kind in own
            if (kind not in DISK_LOSS_KINDS or (members > 2 and not disks_lost))
            and (kind not in MEMBERSHIP_KINDS or start_ms - changed_ms >= MEMBERSHIP_GAP_MS)
        ]
        kind = rng.choice(usable or ["crash"])
        disks_lost += kind in DISK_LOSS_KINDS
        changed_ms = start_ms if kind in MEMBERSHIP_KINDS else changed_ms
        longest = rng.choice((400, 800) if is_storm else (500, 1500, 3500))
        duration_ms = min(rng.randrange(GRID_MS, longest, GRID_MS), until_ms - start_ms)
        where = TargetPicker(rng, names, leads=0.7 if is_storm else 0.45)
        fault = FAULT_MAKERS[kind](where, rng, start_ms, duration_ms)
        faults += [fault, *draw_paired_faults(rng, fault, names)]
    if members > 2:
        faults += draw_first_strike(rngs.stream("first_strike"))
        faults += draw_return_after_expiry(rngs.stream("return"), names, from_ms)
    in_time = [
        _limit(fault, until_ms, ack)
        for fault in faults
        if (kinds is None or fault.kind in kinds) and fault.start_ms < until_ms
    ]
    return tuple(sorted(in_time, key=lambda fault: fault.start_ms))


def _limit(fault: AnyFault, until_ms: int, ack: str) -> AnyFault:
    """Return `fault` so that it ends in time and loses only what the policy promises to keep."""
    if fault.end_ms > until_ms:
        fault = msgspec.structs.replace(fault, duration_ms=until_ms - fault.start_ms)
    if ack == "page-cache" and isinstance(fault, Crash | CrashAtOperation):
        fault = msgspec.structs.replace(fault, loses_unsynced=False)
    return fault


# Faults that are generated next to another one, so that both meet: alone they seldom would.
#
# A node is away while the others' files expire, and returns to a snapshot while its disk is stalled
# or full, while messages are late, or to lose power during it. A leadership is transferred to a
# paused member. A node with a full disk is elected.

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
        still_ms = max(GRID_MS, at_ms - rng.choice((50, 100, 150)))
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
    return [Strike(start_ms=GRID_MS, duration_ms=rng.choice((1500, 3000)), moment="elected")]


def draw_return_after_expiry(
    rng: RandomStream, members: tuple[str, ...], from_ms: int
) -> list[AnyFault]:
    """Generate, for some seeds, a node that is away while files expire."""
    if not rng.chance(RETURN_SHARE):
        return []
    start_ms = from_ms + rng.randrange(1000, 12_000, GRID_MS)
    expiry = Expire(start_ms=start_ms, duration_ms=rng.choice((1000, 2000)))
    return [expiry, *_node_away(rng, expiry, members)]


def _node_away(rng: RandomStream, fault: Expire, members: tuple[str, ...]) -> list[AnyFault]:
    """Take a node away from before `fault` until after its end; it returns to some trouble."""
    start_ms = max(GRID_MS, fault.start_ms - rng.randrange(500, 2000, GRID_MS))
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
    full_ms = max(GRID_MS, start_ms - rng.choice((300, 600)))
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
    return [FullDisk(start_ms=back_ms - GRID_MS, duration_ms=lasts_ms, node=node)]


def _stalled(rng: RandomStream, _: int, back_ms: int, node: str) -> list[AnyFault]:
    """The snapshot is not durable before the leader compacts its log again."""
    lasts_ms = rng.choice((1000, 2000))
    return [
        StallDisk(start_ms=back_ms, duration_ms=lasts_ms, node=node),
        Expire(start_ms=back_ms + 2 * GRID_MS, duration_ms=lasts_ms),
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
