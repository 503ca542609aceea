"""Each rule of the core, broken on purpose: the promises' machine must see it, and see
nothing where the rule is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from raft_machine import GroupMachine

from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.leadership import Leadership, ReadRounds
from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.member_state import Follower
from shaketable.system.raft.membership import (
    AddLearner,
    MembershipError,
    MembershipLog,
    Promote,
    Remove,
)
from shaketable.system.raft.protocol import InvariantError, PushRequest, Role, Snapshot, VoteRequest


def begun(core: type[RaftCore], *, lease: float = 0.0, size: int = 3) -> GroupMachine:
    """A group that n0 leads; its term start is committed everywhere."""

    class Machine(GroupMachine):
        core_type = core

    steps = Machine()
    steps.begin(lease=lease, size=size)
    steps.elect("n0")
    steps.calm(2)
    look(steps)
    assert steps.leader() == "n0"
    return steps


def look(steps: GroupMachine) -> None:
    steps.committed_stands()
    steps.leaders_are_complete()
    steps.snapshots_are_true()
    steps.log_matching()
    steps.bounded()


def part(steps: GroupMachine, *sides: str) -> None:
    """Cut every link between members of different sides, named by their digits."""
    steps.heal()
    names = [[f"n{digit}" for digit in side] for side in sides]
    for side in names:
        others = [name for other in names if other is not side for name in other]
        steps.group.cut |= {(a, b) for a in side for b in others}


def lead(steps: GroupMachine, name: str) -> None:
    """Time passes until `name` leads."""
    for _ in range(20):
        if steps.group.cores[name].role is Role.LEADER:
            return
        steps.time_out(name)
        while steps.group.network and steps.group.cores[name].role is not Role.LEADER:
            steps.group.deliver()
    raise AssertionError(f"{name} never led")


# ---- memberships ------------------------------------------------------------------------


class ChangesBeforeItsTerm(Leadership):
    """Changes the membership before an entry of its own term is committed."""

    def change_refusal(self) -> str | None:
        return None


class KeepsWhatWasRemoved(MembershipLog):
    """A membership stays in force when its entry is truncated."""

    def truncate(self, end_index: int) -> None:
        pass


def two_leaders_change_the_membership(core: type[RaftCore]) -> None:
    """Ongaro's counterexample of 2015 (raft-dev): two majorities without a common voter."""
    steps = begun(core, size=4)
    group = steps.group
    group.join("n4")
    group.change("n0", AddLearner("n4", "n4:1"))
    steps.calm(3)
    part(steps, "04", "123")
    group.change("n0", Promote("n4"))  # stands at n0 and n4 alone
    steps.deliver_in_order(20)
    lead(steps, "n1")
    part(steps, "04", "12", "3")
    with contextlib.suppress(MembershipError):
        group.change("n1", Remove("n0"))
    steps.deliver_in_order(40)
    look(steps)
    part(steps, "034", "12")
    group.now_ms += 1000
    steps.time_out("n0")  # it has heard no majority and steps down
    lead(steps, "n0")
    steps.deliver_in_order(40)
    look(steps)


def a_change_is_truncated(core: type[RaftCore]) -> None:
    steps = begun(core)
    part(steps, "0", "12")
    steps.group.change("n0", Remove("n2"))
    lead(steps, "n1")
    steps.heal()
    steps.calm(4)
    look(steps)
    assert len(steps.group.cores["n0"].membership.voters) == 3


# ---- snapshots --------------------------------------------------------------------------


class KeepsItsOldSnapshot(Ledger):
    """Installs the log's new begin, and keeps for others the snapshot it had."""

    def install(self, snapshot: Snapshot) -> None:
        old = self.snapshot
        super().install(snapshot)
        self.snapshot = old


class CountsAnUnsyncedSnapshot(Ledger):
    """A snapshot counts as durable before it is (the leader may commit by that copy)."""

    def install(self, snapshot: Snapshot) -> None:
        super().install(snapshot)
        self.durable_index = snapshot.end.index + 1


def a_member_gets_two_snapshots(core: type[RaftCore]) -> None:
    steps = begun(core)
    for _ in range(2):
        steps.fall_behind("n2")
        look(steps)
        steps.calm(4)
        look(steps)
    assert len(steps.group.installed) == 2


# ---- leases and transfers -----------------------------------------------------------------


class VotesAtOnceAfterItsStart(RaftCore):
    """A restarted voter forgets that a lease may rest on what it echoed."""

    def _last_contact_before_start_ms(self) -> float:
        return float("-inf")


class KeepsItsLease(ReadRounds):
    """Serves reads by a lease while it hands the leadership over."""

    def drop_lease(self) -> None:
        pass


class LeaseForEver(ReadRounds):
    """A lease that nobody has to renew."""

    def holds_lease(self, now_ms: float) -> bool:
        return True


def a_voter_restarts_inside_a_lease(core: type[RaftCore]) -> None:
    """n2 hears nothing of n0, whose lease rests on n1 alone; n1 restarts and is asked."""
    steps = begun(core, lease=200.0)
    steps.group.cut.add(("n0", "n2"))
    n2 = steps.group.cores["n2"]
    while n2.deadline_ms - steps.group.now_ms > 60 or steps.group.now_ms < 1200:
        steps.time_out("n0")
        steps.deliver_in_order(20)
        if steps.group.now_ms >= n2.deadline_ms:
            steps.elect("n2")
    part(steps, "0", "12")
    steps.crash_and_start("n1")
    steps.elect("n2")
    if n2.role is Role.LEADER:
        steps.append("n2", 1)
        steps.deliver_in_order(20)
    steps.committed_stands()
    steps.read("n0")
    assert steps.group.reads == [("n0", "r1", "ready")], "inside its lease"
    look(steps)


def a_leader_that_hands_over_is_read(core: type[RaftCore]) -> None:
    steps = begun(core, lease=200.0)
    steps.transfer("n1")
    steps.deliver_in_order(1)
    part(steps, "0", "12")
    steps.deliver_in_order(30)
    assert steps.leader() == "n1"
    look(steps)
    steps.read("n0")
    look(steps)


def a_leader_is_read_long_after_its_lease(core: type[RaftCore]) -> None:
    steps = begun(core, lease=200.0)
    part(steps, "0", "12")
    lead(steps, "n1")
    steps.deliver_in_order(30)
    look(steps)
    steps.read("n0")
    look(steps)


# ---- elections and commitment ---------------------------------------------------------------


class VotesForAnybody(RaftCore):
    """Does not look at the candidate's log (Raft section 5.4.1)."""

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        return True


class TrustsTheCommitIndex(Follower):
    """Commits up to the leader's word what stands here, equal or not (DLEDGER.md E4)."""

    def _commit_point(self, push: PushRequest) -> int:
        return min(push.commit_index, self._ledger.log.end_index)


class StaysDurable(Ledger):
    """What was durable before a truncation still counts after it."""

    def _durable_after_truncate(self, end_index: int) -> int:
        return self.durable_index


def one_that_missed_everything_is_elected(core: type[RaftCore]) -> None:
    steps = begun(core)
    part(steps, "01", "2")
    steps.append("n0", 3)
    steps.deliver_in_order(20)
    look(steps)
    part(steps, "0", "12")
    steps.group.now_ms += 1000
    with contextlib.suppress(AssertionError):
        lead(steps, "n2")
    steps.deliver_in_order(20)
    look(steps)


def a_longer_log_hears_of_a_commit(core: type[RaftCore]) -> None:
    """n0 wrote entries alone; the next leader's comparison carries its commit index."""
    steps = begun(core)
    part(steps, "0", "12")
    steps.append("n0", 6)
    lead(steps, "n1")
    for _ in range(3):
        steps.append("n1", 1)
        steps.deliver_in_order(20)
    look(steps)
    steps.heal()
    for _ in range(6):
        steps.calm(1)
        look(steps)


CASES: list[tuple[Callable[[type[RaftCore]], None], dict[str, type]]] = [
    (two_leaders_change_the_membership, {"leadership_type": ChangesBeforeItsTerm}),
    (a_change_is_truncated, {"memberships_type": KeepsWhatWasRemoved}),
    (a_member_gets_two_snapshots, {"ledger_type": KeepsItsOldSnapshot}),
    (a_member_gets_two_snapshots, {"ledger_type": CountsAnUnsyncedSnapshot}),
    (a_leader_that_hands_over_is_read, {"reads_type": KeepsItsLease}),
    (a_leader_is_read_long_after_its_lease, {"reads_type": LeaseForEver}),
    (a_voter_restarts_inside_a_lease, {"": VotesAtOnceAfterItsStart}),
    (one_that_missed_everything_is_elected, {"": VotesForAnybody}),
    (a_longer_log_hears_of_a_commit, {"follower_type": TrustsTheCommitIndex}),
    (a_longer_log_hears_of_a_commit, {"ledger_type": StaysDurable}),
]


def planted(parts: dict[str, type]) -> type[RaftCore]:
    """A core with one part replaced, or the broken core itself."""
    (attribute, part_type), *_ = parts.items()
    if attribute:
        return type(part_type.__name__, (RaftCore,), {attribute: part_type})
    return part_type


@pytest.mark.parametrize(
    ("tell", "parts"), CASES, ids=[next(iter(parts.values())).__name__ for _, parts in CASES]
)
def test_only_the_broken_rule_is_seen(
    tell: Callable[[type[RaftCore]], None], parts: dict[str, type]
) -> None:
    tell(RaftCore)
    with pytest.raises((AssertionError, InvariantError)):
        tell(planted(parts))
