"""Applies a schedule's faults to a simulated group, and undoes them.

A fault that has no effect (a crash of a node that is down) is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from shaketable.system.raft.protocol import Role, RoleChange, Truncate, Write
from shaketable.system.sim.disk import Platter, SimDisk
from shaketable.system.sim.event_heap import EventHeap
from shaketable.system.sim.network import Link
from shaketable.system.sim.run_trace import Counts, Trace
from shaketable.system.sim.schedules.faults import (
    ALL,
    FOLLOWER,
    LEADER,
    OTHERS,
    REBUILT,
    AddMember,
    AnyFault,
    BitRot,
    ClockOffset,
    ClockRate,
    Crash,
    CrashAtOperation,
    CrashAtTruncation,
    Cut,
    DamageFile,
    Eio,
    Expire,
    FailFsync,
    FullDisk,
    LinkFault,
    NodeFault,
    Pause,
    RefusedChange,
    RemoveMember,
    ReplaceMember,
    SlowDisk,
    StallDisk,
    Stop,
    Strike,
    Transfer,
    Wipe,
    expand_links,
    stand_ins,
)
from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.sim.schedules.schedule import Settings

AFault = TypeVar("AFault", bound=NodeFault)

MEMBERS_MAX = 7
DISKS_MIN = 3
"""In smaller groups no member is removed, and none loses its disk."""
REMOVALS_MAX = 2
"""Most removals that are requested at the same time."""
EXPIRE_EVERY_MS = 500.0
RESTART_AFTER_MS = 300.0
"""How soon a process that ended by itself is restarted."""


TAKES_MEMBER = (RemoveMember, ReplaceMember, Wipe, BitRot, DamageFile)
"""Faults after which a member may have to be replaced."""


class FaultyMember(Protocol):
    """What faults do to a member, or need to know of it."""

    name: str
    disk: SimDisk
    is_up: bool
    is_removed: bool
    is_damaged: bool
    loses_unsynced: bool
    slow_factor: float
    slow_until_ms: float
    stalled_until_ms: float
    wall_offset_ms: int

    @property
    def is_paused(self) -> bool:
        """Whether its process is paused."""
        ...

    def pause(self) -> None:
        """Pause its process."""
        ...

    def resume(self) -> None:
        """Resume its process."""
        ...

    def run_clock_at(self, rate: float) -> None:
        """Run its clock at another rate."""
        ...

    def measure_disk(self, *, older_by_ms: int = 0) -> None:
        """Measure its disk, as if everything were older by `older_by_ms`."""
        ...


class Links(Protocol):
    """The links of a network."""

    def link(self, source: str, target: str) -> Link:
        """Return the link of an ordered pair."""
        ...


class GroupOperator(Protocol):
    """The changes of a group that its operator makes on request."""

    @property
    def is_busy(self) -> bool:
        """Whether a membership change is in progress."""
        ...

    @property
    def jobs(self) -> int:
        """Number of changes requested and not yet done."""
        ...

    def add(self) -> object:
        """Add a new node."""
        ...

    def remove(self, name: str) -> None:
        """Remove a member."""
        ...

    def replace(self, name: str) -> None:
        """Replace a member by a new node."""
        ...

    def transfer(self, to: str) -> None:
        """Ask the leader to transfer its leadership."""
        ...

    def request_refused_change(self, why: str) -> None:
        """Request a change that the leader must refuse."""
        ...


Member = TypeVar("Member", bound=FaultyMember)


class FaultyWorld(Protocol[Member]):
    """What faults need of a world, be it of bare members or of whole nodes."""

    settings: Settings
    heap: EventHeap
    trace: Trace
    counts: Counts
    rngs: RandomStreams

    @property
    def network(self) -> Links:
        """Its network."""
        ...

    @property
    def operator(self) -> GroupOperator:
        """Its operator."""
        ...

    @property
    def present(self) -> Mapping[str, Member]:
        """All members except those removed for good."""
        ...

    def leader(self) -> str | None:
        """Return the leader."""
        ...

    def crash(self, member: Member, /, *, loses_unsynced: bool) -> None:
        """Kill a member's process, or crash its machine."""
        ...

    def stop(self, member: Member, /, *, loses_power: bool) -> None:
        """Stop a member's process cleanly."""
        ...

    def restart(self, member: Member, /) -> None:
        """Start a member that is down."""
        ...

    def lose_disk(self, member: Member, /) -> None:
        """Lose a member's disk: a new node replaces it."""
        ...

    def flip_log_bit(self, member: Member, place: float, bit: int, /) -> bool:
        """Flip one bit of a member's log; return False where there is none."""
        ...

    def damage(self, member: Member, fault: DamageFile, /) -> bool:
        """Damage one of a member's files; return False where there is none."""
        ...


class FaultActions(Generic[Member]):
    """The active faults of one world."""

    def __init__(self, world: FaultyWorld[Member]) -> None:
        self._world = world
        self._first: tuple[str, ...] = ()
        self._strikes: list[Strike] = []
        self._at_truncation: list[CrashAtTruncation] = []
        self._terms: dict[str, int] = {}
        self._to_fill: list[tuple[Platter, FullDisk]] = []
        self._in_force: list[tuple[Member | Platter, NodeFault, float]] = []

    def apply(self, fault: AnyFault) -> None:
        """Apply a fault, and schedule its end."""
        world = self._world
        self._first = self._first or tuple(world.present)
        if world.trace.write is not None:
            world.trace.line(world.heap.now_ms, "", f"fault {fault!r}")
        if isinstance(fault, LinkFault):
            if self._apply_to_links(fault):
                self._count(fault)
        elif isinstance(fault, NodeFault):
            for member in self._members_of(fault):
                self._apply_to_node(fault, member)
        else:
            self._apply_to_group(fault)

    def changed_role(self, name: str, change: RoleChange) -> None:
        """A member changed its role, before any other member knows: trigger waiting strikes."""
        stands = change.role is Role.CANDIDATE and change.term > self._terms.get(name, change.term)
        self._terms[name] = change.term
        for strike in tuple(self._strikes):
            if stands if strike.moment == "stands" else change.role is Role.LEADER:
                self._strikes.remove(strike)
                now_ms = int(self._world.heap.now_ms)
                links = ((name, ALL), (ALL, name))
                self._apply_to_links(
                    Cut(start_ms=now_ms, duration_ms=strike.end_ms - now_ms, links=links)
                )
                self._count(strike)

    def ordered(self, member: Member, writes: Sequence[Write]) -> None:
        """A member is about to hand writes to its disk: trigger a waiting crash at a truncation."""
        if not self._at_truncation or not any(isinstance(write, Truncate) for write in writes):
            return
        fault = self._at_truncation.pop(0)
        now_ms = int(self._world.heap.now_ms)
        crash = CrashAtOperation(
            start_ms=now_ms,
            duration_ms=fault.end_ms - now_ms,
            node=member.name,
            operations=fault.operations,
            loses_unsynced=fault.loses_unsynced,
        )
        self._apply_to_node(crash, member)
        self._count(fault)

    def member_of(self, node: str) -> Member | None:
        """Return the member that a fault's `node` means now: by id, or by role.

        Without a leader the first member takes its place, as in links (`expand_links`).
        """
        members = self._world.present
        leads = self._world.leader() or next(iter(members), None)
        if node == LEADER:
            node = leads or node
        elif node == FOLLOWER:
            return next((m for m in members.values() if m.name != leads), None)
        return members.get(self.stand_ins().get(node, node))

    def stand_ins(self) -> dict[str, str]:
        """Return who stands in for each member that has left."""
        return stand_ins(self._first, tuple(self._world.present))

    def _members_of(self, fault: NodeFault) -> list[Member]:
        """Return the members that a fault's `node` means now.

        None stands in for a member that is to be removed or to lose its disk: the one that has
        joined may be the replacement that such a fault is waiting for.
        """
        if fault.node == OTHERS:
            two = self.member_of(LEADER), self.member_of(FOLLOWER)
            return [member for member in self._world.present.values() if member not in two]
        is_gone = fault.node in self._first and fault.node not in self._world.present
        member = self.member_of(fault.node)
        if member is None or (is_gone and isinstance(fault, TAKES_MEMBER)):
            return []
        return [member]

    # ---- links ------------------------------------------------------------------------

    def _apply_to_links(self, fault: LinkFault) -> bool:
        """Apply the fault to the links that it means now; return False where there are none."""
        world = self._world
        members = tuple(world.present)
        pairs = expand_links(fault.links, members, world.leader(), self.stand_ins())
        links = [world.network.link(source, target) for source, target in pairs]
        for link in links:
            link.add_fault(fault)
        world.heap.push(fault.end_ms, self._undo_links, fault, links)
        return bool(links)

    def _undo_links(self, fault: LinkFault, links: list[Link]) -> None:
        for link in links:
            link.remove_fault(fault)

    def _undo_strike(self, strike: Strike) -> None:
        if strike in self._strikes:
            self._strikes.remove(strike)

    def _undo_crash_at_truncation(self, fault: CrashAtTruncation) -> None:
        if fault in self._at_truncation:
            self._at_truncation.remove(fault)

    # ---- nodes ------------------------------------------------------------------------

    def _count(self, fault: AnyFault | LinkFault | NodeFault) -> None:
        self._world.counts.fault(fault.kind)

    def _apply_to_node(self, fault: NodeFault, member: Member) -> None:
        world = self._world
        platter = member.disk.platter
        heap = world.heap
        if isinstance(fault, RemoveMember | ReplaceMember | Wipe | BitRot):
            self._change_membership(fault, member)
            return
        if isinstance(fault, Crash | CrashAtOperation | Pause) and not member.is_up:
            return
        if isinstance(fault, Stop | DamageFile):
            self._stop_or_damage(fault, member)
            return
        if isinstance(fault, Crash):
            world.crash(member, loses_unsynced=fault.loses_unsynced)
            heap.push(fault.end_ms, world.restart, member)
        elif isinstance(fault, CrashAtOperation):
            self._put_in_force(platter, fault, platter.operations + fault.operations)
            self._set_crash(member, platter)
            heap.push(fault.end_ms, self._undo_crash_at_operation, member, platter, fault)
            return  # counted when it happens
        elif isinstance(fault, Pause):
            member.pause()
            heap.push(fault.end_ms, member.resume)
        elif isinstance(fault, ClockRate):
            self._put_in_force(member, fault, fault.rate)
            member.run_clock_at(fault.rate)
            heap.push(fault.end_ms, self._undo_clock_rate, member, fault)
        elif isinstance(fault, ClockOffset):
            member.wall_offset_ms += fault.offset_ms
            heap.push(fault.end_ms, self._undo_offset, member, fault.offset_ms)
        else:
            self._apply_to_disk(fault, member)
        self._count(fault)

    def _stop_or_damage(self, fault: Stop | DamageFile, member: Member) -> None:
        """Stop a process cleanly, or damage a file, if the group tolerates it."""
        world = self._world
        if not member.is_up or member.is_paused or world.heap.now_ms < member.stalled_until_ms:
            return
        if isinstance(fault, Stop):
            world.heap.push(fault.end_ms, world.restart, member)
            world.stop(member, loses_power=fault.loses_power)
        else:
            may_be_lost = not world.operator.is_busy and len(world.present) >= DISKS_MIN
            if fault.file not in REBUILT and not may_be_lost:
                return
            world.heap.push(fault.end_ms, world.restart, member)
            if not world.damage(member, fault):
                return
        self._count(fault)

    def _change_membership(self, fault: NodeFault, member: Member) -> None:
        """Remove a member or destroy its disk, if the group tolerates it."""
        world = self._world
        operator = world.operator
        # A member that is down with damaged files may have to be replaced at its start. If another
        # member is removed for good before that, there may be no quorum to add the replacement.
        may_be_lost = sum(not other.is_up and other.is_damaged for other in world.present.values())
        jobs = operator.jobs + may_be_lost
        jobs_max = REMOVALS_MAX - 1 if isinstance(fault, RemoveMember) else 0
        if jobs > jobs_max or len(world.present) < DISKS_MIN + jobs:
            return
        if isinstance(fault, RemoveMember):
            operator.remove(member.name)
        elif isinstance(fault, ReplaceMember):
            operator.replace(member.name)
        elif isinstance(fault, Wipe):
            world.lose_disk(member)
        elif isinstance(fault, BitRot):
            if not member.is_up:
                return
            world.heap.push(fault.end_ms, world.restart, member)
            if not world.flip_log_bit(member, fault.place, fault.bit):
                return
        self._count(fault)

    def _apply_to_group(self, fault: AnyFault) -> None:
        world = self._world
        if isinstance(fault, Transfer):
            leader = world.leader()
            target = self.member_of(fault.to)
            if target is None or leader is None or target.name == leader:
                return
            world.operator.transfer(target.name)
        elif isinstance(fault, Strike):
            self._strikes.append(fault)
            world.heap.push(fault.end_ms, self._undo_strike, fault)
            return  # counted when it happens
        elif isinstance(fault, CrashAtTruncation):
            self._at_truncation.append(fault)
            world.heap.push(fault.end_ms, self._undo_crash_at_truncation, fault)
            return  # counted when it happens
        elif isinstance(fault, AddMember):
            if world.operator.is_busy or len(world.present) >= MEMBERS_MAX:
                return
            world.operator.add()
        elif isinstance(fault, RefusedChange):
            if world.operator.is_busy or world.leader() is None:
                return
            world.operator.request_refused_change(fault.why)
        elif isinstance(fault, Expire):
            world.heap.push(world.heap.now_ms, self._expire, fault)
        self._count(fault)

    def _expire(self, fault: Expire) -> None:
        """Treat every full file as expired, as long as the fault lasts."""
        world = self._world
        for member in world.present.values():
            member.measure_disk(older_by_ms=world.settings.reserved_ms)
        at_ms = world.heap.now_ms + EXPIRE_EVERY_MS
        if at_ms < fault.end_ms:
            world.heap.push(at_ms, self._expire, fault)

    def _apply_to_disk(self, fault: NodeFault, member: Member) -> None:
        heap = self._world.heap
        platter = member.disk.platter
        if isinstance(fault, SlowDisk):
            member.slow_factor *= fault.factor
            member.slow_until_ms = max(member.slow_until_ms, fault.end_ms)
            heap.push(fault.end_ms, self._undo_slow_disk, member, fault.factor)
        elif isinstance(fault, StallDisk):
            member.stalled_until_ms = max(member.stalled_until_ms, fault.end_ms)
        elif isinstance(fault, FailFsync):
            self._put_in_force(platter, fault)
            platter.sync_failures += 1
            heap.push(fault.end_ms, self._undo_fail_fsync, platter, fault)
        elif isinstance(fault, Eio):
            self._put_in_force(platter, fault)
            platter.is_failing = True
            heap.push(fault.end_ms, self._undo_eio, member, platter, fault)
        elif isinstance(fault, FullDisk):
            if fault.since:
                self._to_fill.append((platter, fault))
                platter.on_operation = partial(self._fill_at, member, platter)
            else:
                self._fill(member, platter, fault)
            heap.push(fault.end_ms, self._undo_full_disk, member, platter, fault)

    # ---- several faults of one kind at a node: the end of one leaves the others in force ----

    def _put_in_force(self, where: Member | Platter, fault: NodeFault, value: float = 0.0) -> None:
        self._in_force.append((where, fault, value))

    def _end(self, where: Member | Platter, fault: NodeFault) -> None:
        at = next(
            n for n, (on, one, _) in enumerate(self._in_force) if on is where and one is fault
        )
        del self._in_force[at]

    def _others(self, where: Member | Platter, kind: type[AFault]) -> list[tuple[AFault, float]]:
        """Return the faults of a kind in force there, the newest last, each with its value."""
        return [
            (fault, value)
            for on, fault, value in self._in_force
            if on is where and isinstance(fault, kind)
        ]

    def _set_crash(self, member: Member, platter: Platter) -> None:
        """Crash at the newest fault's operation, if that is still to come."""
        platter.stop_at = None
        for fault, stop_at in self._others(platter, CrashAtOperation)[-1:]:
            if stop_at > platter.operations:
                platter.stop_at = int(stop_at)
                member.loses_unsynced = fault.loses_unsynced

    def _set_capacity(self, member: Member, platter: Platter) -> None:
        """Leave as little space as any full-disk fault in force, and refuse as often."""
        full = self._others(platter, FullDisk)
        platter.capacity_bytes = min((int(capacity) for _, capacity in full), default=None)
        platter.copies_on_write = any(fault.copies_on_write for fault, _ in full)
        refused = max((fault.refused for fault, _ in full), default=1.0)
        rng = self._world.rngs.stream(f"full_disk/{member.name}")
        platter.refuses = None if refused >= 1 else partial(rng.chance, refused)

    def _undo_crash_at_operation(
        self, member: Member, platter: Platter, fault: CrashAtOperation
    ) -> None:
        self._end(platter, fault)
        self._set_crash(member, platter)
        self._world.restart(member)

    def _undo_clock_rate(self, member: Member, fault: ClockRate) -> None:
        self._end(member, fault)
        rates = [rate for _, rate in self._others(member, ClockRate)]
        member.run_clock_at(rates[-1] if rates else 1.0)

    def _undo_offset(self, member: Member, offset_ms: int) -> None:
        member.wall_offset_ms -= offset_ms

    def _undo_slow_disk(self, member: Member, factor: float) -> None:
        member.slow_factor /= factor

    def _undo_fail_fsync(self, platter: Platter, fault: FailFsync) -> None:
        self._end(platter, fault)
        left = len(self._others(platter, FailFsync))
        platter.sync_failures = min(platter.sync_failures, left)

    def _undo_eio(self, member: Member, platter: Platter, fault: Eio) -> None:
        self._end(platter, fault)
        if not self._others(platter, Eio):
            platter.is_failing = False
            self._world.restart(member)

    def _fill(self, member: Member, platter: Platter, fault: FullDisk) -> None:
        self._put_in_force(platter, fault, platter.used_bytes + fault.spare_bytes)
        self._set_capacity(member, platter)

    def _fill_at(self, member: Member, platter: Platter, _: str, path: str) -> None:
        """Begin what has waited for a write to that path."""
        for on, fault in list(self._to_fill):
            if on is platter and fault.since in path:
                self._forget_to_fill(platter, fault)
                self._fill(member, platter, fault)

    def _forget_to_fill(self, platter: Platter, fault: FullDisk) -> None:
        self._to_fill.remove((platter, fault))
        if all(on is not platter for on, _ in self._to_fill):
            platter.on_operation = None

    def _undo_full_disk(self, member: Member, platter: Platter, fault: FullDisk) -> None:
        if (platter, fault) in self._to_fill:  # nothing was written there
            self._forget_to_fill(platter, fault)
            return
        self._end(platter, fault)
        self._set_capacity(member, platter)
        self._world.restart(member)
        member.measure_disk()  # real nodes measure each second; some worlds only for expiry
