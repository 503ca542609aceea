"""What a member sends, acknowledges, removes and takes on: each rule catches a planted bug."""

from __future__ import annotations

import msgspec
import pytest

from shaketable.system.invariants.violated import Violated
from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.dispatcher import DispatchState, EntryDispatcher
from shaketable.system.raft.leadership import Leadership, ReadRounds
from shaketable.system.raft.leadership import Transfer as TransferState
from shaketable.system.raft.member_state import Follower
from shaketable.system.raft.membership import MembershipError, MembershipLog
from shaketable.system.raft.protocol import TransferError
from shaketable.system.sim.rules.client_history import (
    APPEND,
    LARGE_BYTES,
    Operation,
    check_blame,
)
from shaketable.system.sim.schedules.faults import (
    AddMember,
    Crash,
    CrashAtOperation,
    Cut,
    Expire,
    FullDisk,
    RemoveMember,
    StallDisk,
    Transfer,
)
from shaketable.system.sim.schedules.schedule import Call, Options, Schedule, Settings
from shaketable.system.sim.world import run_seed

STALE = (("n1", "*"), ("*", "n1"))
LEADER_OFF = (("n0", "*"), ("*", "n0"))
LEADS = Transfer(start_ms=1000, duration_ms=100, to="n0")
LOAD = tuple(Call(at_ms, at_ms // 20 % 3, "batch", 0, 6, 0, 100) for at_ms in range(500, 6_000, 20))


def violated(core: type[RaftCore], *faults, **settings) -> str:
    """Run three members under load, which is healthy; return what breaks with this core."""
    schedule = Schedule(
        seed=5,
        settings=msgspec.structs.replace(Settings(run_ms=7_500, lease_ms=200.0), **settings),
        faults=faults,
        calls=LOAD,
    )
    assert run_seed(5, schedule=schedule, mutant=HEALTHY).violation is None
    found = run_seed(5, schedule=schedule, mutant=Mutant("planted", core)).violation
    return "" if found is None else found.invariant


class WaitsForHeartbeat(Leadership):
    def push_all(self, now_ms):
        pass


class NeverWaits(EntryDispatcher):
    __slots__ = ()

    def may_push(self, end_index, end_position):
        return self.next_index <= end_index and self.state is DispatchState.APPEND


class NeverPipelines(EntryDispatcher):
    __slots__ = ()

    def may_push(self, end_index, end_position):
        return not self._in_flight and super().may_push(end_index, end_position)


class Understates(Follower):
    __slots__ = ()

    def _acknowledged_match(self):
        return min(self._ledger.durable_index, self._ledger.commit_index)


class KeepsLease(ReadRounds):
    __slots__ = ()

    def drop_lease(self):
        pass


class AsksTheFarthest(TransferState):
    __slots__ = ()

    def best(self, voting, end_index, now_ms):
        able = [voter for voter in voting if self._may_ask(voter, end_index, now_ms)]
        return min(able, key=lambda voter: voter.match_index, default=None)


class TakesAnyway(Follower):
    __slots__ = ()

    def take_push(self, push, *, is_full):
        return super().take_push(push, is_full=False)


class UsesRemoved(MembershipLog):
    __slots__ = ()

    def truncate(self, end_index):
        removed = self.current
        super().truncate(end_index)
        self._memberships[-1] = removed
        self._use_latest()


class ForgetsMore(MembershipLog):
    __slots__ = ()

    def truncate(self, end_index):
        if self.current_index > end_index:
            super().truncate(-1)


class SendsNoSnapshot(EntryDispatcher):
    __slots__ = ()

    def snapshot_due(self, now_ms):
        return super().snapshot_due(now_ms) and self.match_index < 0


class Hasty(RaftCore):
    leadership_type = WaitsForHeartbeat


class Flooding(RaftCore):
    dispatcher_type = NeverWaits


class Patient(RaftCore):
    dispatcher_type = NeverPipelines


class Modest(RaftCore):
    follower_type = Understates


class Leasing(RaftCore):
    reads_type = KeepsLease


class Choosing(RaftCore):
    transfer_type = AsksTheFarthest


class Campaigning(RaftCore):
    def _may_campaign(self):
        return self._is_voter


class Filling(RaftCore):
    follower_type = TakesAnyway


class Remembering(RaftCore):
    memberships_type = UsesRemoved


class Forgetting(RaftCore):
    memberships_type = ForgetsMore


class Withholding(RaftCore):
    dispatcher_type = SendsNoSnapshot


class Blaming(RaftCore):
    def _refuse_append(self, leading, batches):
        try:
            super()._refuse_append(leading, batches)
        except TransferError as error:
            raise MembershipError(str(error)) from error


@pytest.mark.parametrize(
    ("core", "invariant"),
    [
        (Hasty, "entries-go-out-at-once"),
        (Flooding, "pushes-keep-to-the-window"),
        (Modest, "all-is-acknowledged"),
    ],
)
def test_entries_are_sent_and_acknowledged_without_delay(core, invariant):
    assert violated(core) == invariant


def test_a_window_with_room_is_used():
    assert violated(Patient, push_bytes_max=600) == "entries-go-out-at-once"


def test_a_transfer_ends_the_lease_for_the_term():
    gone = Crash(start_ms=3000, duration_ms=3000, node="n1")
    assert violated(Leasing, LEADS, Transfer(start_ms=2995, duration_ms=100, to="n1"), gone) == (
        "lease-ends-with-a-transfer"
    )


class RestartsTransfers(Leadership):
    def continue_transfer(self, now_ms, *, must_step_down):
        if (target := self.transfer.target) is not None:
            self._start_transfer(target, now_ms, must_step_down=must_step_down)
        else:
            super().continue_transfer(now_ms, must_step_down=must_step_down)


class NeverGivesUp(TransferState):
    __slots__ = ()

    def give_up(self, now_ms):
        return False


@pytest.mark.parametrize(
    "core",
    [
        type("Core", (RaftCore,), {"leadership_type": RestartsTransfers}),
        type("Core", (RaftCore,), {"transfer_type": NeverGivesUp}),
    ],
    ids=["restarted", "never given up"],
)
def test_a_transfer_ends_at_its_timeout(core):
    gone = Crash(start_ms=2_995, duration_ms=3_000, node="n1")
    asked = Transfer(start_ms=3_000, duration_ms=100, to="n1")
    assert violated(core, LEADS, gone, asked) == "transfers-are-given-up"


class SilentToOldLeaders(RaftCore):
    def _refuse_old_leader(self, leader, prev_index):
        if self.leader is not None:
            super()._refuse_old_leader(leader, prev_index)


def test_a_leader_of_an_older_term_is_told_of_the_new_one():
    asked = Transfer(start_ms=3_000, duration_ms=100, to="n1")
    as_it_stands = CrashAtOperation(start_ms=3_000, duration_ms=300, node="n1", operations=6)
    found = violated(SilentToOldLeaders, LEADS, asked, as_it_stands)
    assert found == "old-leaders-are-answered"


def test_a_term_that_cannot_be_saved_is_not_told():
    asked = Transfer(start_ms=3_000, duration_ms=100, to="n1")
    full = FullDisk(start_ms=3_001, duration_ms=2_500, node="n1", copies_on_write=True)
    assert violated(SilentToOldLeaders, LEADS, asked, full) == ""


def test_an_old_leader_is_not_told_of_a_term_that_is_over():
    """Its disk was full as an old leader pushed; when it had room a later term had begun."""
    assert run_seed(1, Options(run_ms=12_000)).violation is None


def test_a_leader_with_a_full_disk_asks_the_nearest_to_lead():
    away = Cut(start_ms=2500, duration_ms=200, links=(("n0", "n1"),))
    full = FullDisk(start_ms=2600, duration_ms=1000, node="n0", copies_on_write=True)
    assert violated(Choosing, LEADS, away, full) == "the-nearest-takes-over"


@pytest.mark.parametrize("fault", [FullDisk, StallDisk])
def test_a_member_whose_disk_is_full_or_stalls_does_not_campaign(fault):
    options = {"copies_on_write": True} if fault is FullDisk else {}
    sick = fault(start_ms=2000, duration_ms=4000, node="n1", **options)
    away = Cut(start_ms=4500, duration_ms=1000, links=STALE)
    assert violated(Campaigning, LEADS, sick, away) == "sick-disk-does-not-campaign"


def test_a_follower_with_a_full_disk_takes_no_entries():
    full = FullDisk(start_ms=2000, duration_ms=2000, node="n1", copies_on_write=True)
    assert violated(Filling, LEADS, full) == "full-disk-takes-nothing"


@pytest.mark.parametrize("core", [Remembering, Forgetting])
def test_a_change_that_is_removed_from_the_log_is_undone(core):
    joins = AddMember(start_ms=1500, duration_ms=1000)
    off = Cut(start_ms=3000, duration_ms=2000, links=LEADER_OFF)
    leaves = RemoveMember(start_ms=3010, duration_ms=2000, node="n2")
    assert violated(core, LEADS, joins, off, leaves) == "membership-is-the-log-s"


def test_a_follower_that_lacks_what_has_expired_is_sent_the_snapshot():
    away = Cut(start_ms=2000, duration_ms=2500, links=STALE)
    expired = Expire(start_ms=3500, duration_ms=900)
    found = violated(Withholding, LEADS, away, expired, data_file_bytes=8192)
    assert found == "snapshots-go-out-at-once"


def test_a_sound_request_is_not_blamed():
    handed = Transfer(start_ms=3010, duration_ms=100, to="n1")
    gone = Crash(start_ms=3005, duration_ms=2000, node="n1")
    assert violated(Blaming, LEADS, handed, gone) == "sound-requests-are-not-blamed"


class Unlimited(RaftCore):
    def plan_change(self, change):
        try:
            return super().plan_change(change)
        except MembershipError:
            return self.membership.with_learner(change.member, change.address)


def test_a_group_takes_no_more_members_than_its_limit():
    assert violated(Unlimited, LEADS, crowded=True) == "changes-are-checked"


def test_only_what_is_too_large_may_be_blamed():
    operation = Operation(1, 0, APPEND, 0, -1, 0.0)
    check_blame(operation, 14, "not the leader")
    with pytest.raises(Violated, match="sound-requests-are-not-blamed"):
        check_blame(operation, 13, "illegal")
    operation.body = bytes(LARGE_BYTES)
    check_blame(operation, 13, "too large")
