"""Planted bugs of consensus and storage, each where it decides: once right and once wrong."""

from __future__ import annotations

from random import Random

import pytest
from broker_group import FILE_BYTES, ROOT, BrokerGroup, Member, about, send
from planted import HEALTHY, Mutant, with_and_without

from shaketable.system.raft.dispatcher import DispatchState
from shaketable.system.raft.protocol import (
    Append,
    PushRequest,
    PushResponse,
    RaftConfig,
    Role,
    VoteRequest,
    VoteResponse,
)
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.sim.disk import SimFile
from shaketable.system.store.disk import DiskFailed, DiskFull

PIPELINED = RaftConfig(small_pushes_max=8)
"""Each entry goes by itself, without waiting for the one before."""


def votes_of(group: BrokerGroup, voter: str, *requests: VoteRequest) -> list[bool]:
    """What a member answers to requests for its vote."""
    group.network.clear()
    for request in requests:
        group.members[voter].broker.receive(request, group.now_ms)
        group.members[voter].pump()
    sent = [message for source, _, message in group.network if source == voter]
    return [message.granted for message in sent if isinstance(message, VoteResponse)]


@with_and_without("double-vote")
def test_a_voter_votes_once_a_term(mutant: Mutant) -> None:
    asked = [VoteRequest(1, candidate, -1, -1, pre_vote=False) for candidate in ("n1", "n2")]
    granted = votes_of(BrokerGroup(3, mutant=mutant), "n0", *asked)
    assert granted == [True, mutant is not HEALTHY]


@with_and_without("vote-for-shorter-log")
def test_a_candidate_without_the_log_gets_no_vote(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant)
    group.lead().answer(send("t", 0, b"x"))
    asked = VoteRequest(9, "n2", -1, -1, pre_vote=False, is_transfer=True)
    assert votes_of(group, "n1", asked) == [mutant is not HEALTHY]


@with_and_without("end-term-is-current-term")
def test_a_log_ends_with_its_last_entry_s_term(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant)
    group.lead()
    core = group.members["n1"].core
    entry_term = core.term
    votes_of(group, "n1", VoteRequest(9, "n2", -1, -1, pre_vote=False, is_transfer=True))
    assert core.term == 9
    assert core._log_end_term() == (entry_term if mutant is HEALTHY else 9)


@with_and_without("commit-by-counting")
def test_an_entry_of_an_earlier_term_is_not_committed_by_itself(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant)
    group.lead()
    group.cut = group.paused = {"n0"}
    core = group.lead("n1").core
    assert core._may_commit(0) is (mutant is not HEALTHY)
    assert core._may_commit(core.log.end_index)


@with_and_without("deaf-to-higher-terms")
def test_a_leader_steps_down_for_a_higher_term(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant)
    leader = group.lead()
    answer = PushResponse(99, "n1", success=False, match_index=-1, read_round=0)
    leader.broker.receive(answer, group.now_ms)
    assert (leader.core.role is Role.LEADER) is (mutant is not HEALTHY)


def pushes_to(group: BrokerGroup, follower: str, *bodies: bytes) -> list[PushRequest]:
    """Let the leader send messages to a follower; return them, undelivered."""
    leader = group.lead()
    pushes = []
    for number, body in enumerate(bodies):
        leader.ask(send("t", 0, body, number))
        leader.pump()
        for _, target, message in group.network:
            if target == follower and isinstance(message, PushRequest) and message.batches:
                pushes.append(message)
        group.network = [mail for mail in group.network if mail[1] != follower]
    return pushes


def deliver(member: Member, *pushes: PushRequest) -> int:
    """Deliver pushes to a member; return where its log ends."""
    for push in pushes:
        member.broker.receive(push, member.group.now_ms)
        member.pump()
    member.group.network.clear()
    return member.core.log.end_index


@with_and_without("unclamped-commit-index")
def test_a_follower_commits_what_it_has(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant)
    leader = group.lead()
    follower = group.members["n1"].core
    end = follower.log.end_index
    push = PushRequest(leader.core.term, "n0", end, leader.core.term, end + 50, 0)
    follower.receive(push, group.now_ms)
    assert follower.ledger.commit_index == (end if mutant is HEALTHY else end + 50)


@with_and_without("stale-push-truncates")
def test_a_push_that_comes_again_removes_nothing(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant, raft=PIPELINED)
    pushes = pushes_to(group, "n1", b"a", b"b")
    end = deliver(group.members["n1"], *pushes)
    again = deliver(group.members["n1"], pushes[0])
    assert again == (end if mutant is HEALTHY else end - 1)


@with_and_without("repeated-push-refused")
def test_a_push_that_came_too_early_is_taken_later(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant, raft=PIPELINED)
    first, second = pushes_to(group, "n1", b"a", b"b")
    member = group.members["n1"]
    end = deliver(member, second, first, second)
    assert end == (second if mutant is HEALTHY else first).batches[-1].last_index


@with_and_without("change-before-term-start")
def test_a_new_leader_changes_no_members_before_its_term_has_begun(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant)
    core = group.members["n0"].core
    while core.role is not Role.LEADER:
        if not group.network:
            group.now_ms += 10
            for member in group.members.values():
                member.broker.tick(group.now_ms)
                member.pump()
            continue
        _, target, message = group.network.pop(0)
        group.members[target].broker.receive(message, group.now_ms)
        group.members[target].pump()
    assert core._leadership is not None
    assert (core._leadership.change_refusal() is None) is (mutant is not HEALTHY)


@with_and_without("learners-count")
def test_a_learner_s_copy_is_not_counted(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant)
    leader = group.lead()
    leader.ask(about(RequestCode.ADD_MEMBER, "n3", "127.0.0.1:1"))
    leader.pump()
    assert leader.core.membership.learners == ("n3",)
    assert leader.core._leadership is not None
    counted = {dispatcher.peer for dispatcher in leader.core._leadership.voting}
    assert ("n3" in counted) is (mutant is not HEALTHY)


@with_and_without("lease-after-restart")
def test_who_restarts_keeps_the_promise_of_its_lease(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant, raft=RaftConfig(lease_ms=200.0))
    asked = VoteRequest(1, "n1", -1, -1, pre_vote=False)
    assert any(votes_of(group, "n0", asked)) is (mutant is not HEALTHY)


@with_and_without("expired-entries-not-served")
def test_who_needs_what_has_expired_gets_the_snapshot(mutant: Mutant) -> None:
    dispatcher = mutant.core.dispatcher_type("n1", RaftConfig(), 10, 0.0)
    dispatcher.install(5)
    assert (dispatcher.state is DispatchState.INSTALL) is (mutant is HEALTHY)


@with_and_without("idle-follower-not-refilled")
def test_a_follower_that_lacks_something_is_believed(mutant: Mutant) -> None:
    dispatcher = mutant.core.dispatcher_type("n1", RaftConfig(), 10, 0.0)
    dispatcher.acknowledged(10, -1, 0.0)
    assert dispatcher.state is DispatchState.APPEND
    assert dispatcher.refused(3) is (mutant is HEALTHY)


# ---- storage ----------------------------------------------------------------------------------


@with_and_without("ack-from-page-cache")
def test_what_is_acknowledged_is_on_the_disk(mutant: Mutant) -> None:
    leader = BrokerGroup(1, mutant=mutant).lead()
    (reply,) = leader.answer(send("t", 0, b"x"))
    assert reply.code == 0
    assert (leader.log.synced == leader.log.end) is (mutant is HEALTHY)


@with_and_without("flush-error-swallowed")
def test_an_fsync_that_fails_ends_the_node(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = BrokerGroup(1, mutant=mutant).lead()

    def failing(_: SimFile) -> None:
        raise DiskFailed("EIO")

    monkeypatch.setattr(SimFile, "sync", failing)
    if mutant is HEALTHY:
        with pytest.raises(DiskFailed):
            leader.answer(send("t", 0, b"x"))
    else:
        assert leader.answer(send("t", 0, b"x"))[0].code == 0


@with_and_without("flushed-beyond-truncation")
def test_what_replaces_a_truncated_tail_is_synced(mutant: Mutant) -> None:
    leader = BrokerGroup(1, mutant=mutant).lead()
    leader.answer(send("t", 0, b"x"))
    log, last = leader.log, leader.log.end.index
    batch = log.read_entries(last, 1 << 20)
    log.truncate(last - 1)
    log.append(batch)
    before = leader.disk.platter.syncs
    log.sync()
    assert (leader.disk.platter.syncs > before) is (mutant is HEALTHY)


@with_and_without("mark-ahead-of-fsync")
def test_the_synced_to_mark_never_runs_ahead_of_the_fsync(mutant: Mutant) -> None:
    leader = BrokerGroup(1, mutant=mutant).lead()
    leader.answer(send("t", 0, b"x"))
    log, last = leader.log, leader.log.end.index
    batch = log.read_entries(last, 1 << 20)
    log.truncate(last - 1)
    log.sync()
    log.append(batch)
    is_ahead = log._watermark.record.end.index > log.synced.index
    assert is_ahead is (mutant is not HEALTHY)


@with_and_without("partial-write-not-retried")
def test_what_found_no_room_is_given_back(mutant: Mutant) -> None:
    leader = BrokerGroup(1, mutant=HEALTHY).lead()
    batch = leader.log.read_entries(0, 1 << 20)

    class FullLog:
        begin = leader.log.start

        def append(self, _: object) -> None:
            raise DiskFull("no room")

        def sync(self) -> None:
            pass

    writer = mutant.log_writer(FullLog())  # type: ignore[arg-type]
    left = writer.carry_out([Append(batch)])
    assert len(left) == (1 if mutant is HEALTHY else 0)


@with_and_without("full-disk-skips-sync")
def test_what_fits_before_a_write_without_room_is_synced(mutant: Mutant) -> None:
    leader = BrokerGroup(1, mutant=HEALTHY).lead()
    batch = leader.log.read_entries(0, 1 << 20)
    done: list[str] = []

    class FillingLog:
        def append(self, _: object) -> None:
            if done:
                raise DiskFull("no room")
            done.append("append")

        def sync(self) -> None:
            done.append("sync")

    writer = mutant.log_writer(FillingLog())  # type: ignore[arg-type]
    left = writer.carry_out([Append(batch), Append(batch)])
    assert len(left) == 1
    assert done == (["append", "sync"] if mutant is HEALTHY else ["append"])


@with_and_without("truncation-in-memory")
def test_a_truncated_entry_is_gone_for_good(mutant: Mutant) -> None:
    leader = BrokerGroup(1, mutant=mutant).lead()
    leader.answer(send("t", 0, b"x"))
    last = leader.log.end.index
    leader.log.truncate(last - 1)
    assert leader.log.end.index == last - 1
    disk = leader.disk.restart(loses_unsynced=False, rng=Random(0))
    again = mutant.commit_log.open(disk, ROOT, "n0", FILE_BYTES, 4096)
    assert again.end.index == (last - 1 if mutant is HEALTHY else last)
