"""Planted bugs of consensus and storage that need a situation of their own to be seen."""

from __future__ import annotations

from random import Random

import pytest
from broker_group import FILE_BYTES, ROOT, BrokerGroup, about, send
from planted import HEALTHY, Mutant, with_and_without

from shaketable.system.raft.member_state import Elector
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import NotLeaderError, RaftConfig, Role
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.store.entry import HEADER
from shaketable.system.store.log_writer import LogWriter


def deliver_one(group: BrokerGroup) -> None:
    """Deliver one message; let time pass where there is none."""
    if group.network:
        _, target, message = group.network.pop(0)
        group.members[target].broker.receive(message, group.now_ms)
        group.members[target].pump()
        return
    group.now_ms += 10
    for member in group.members.values():
        member.broker.tick(group.now_ms)
        member.pump()


@with_and_without("transfer-never-given-up")
def test_a_leader_takes_appends_again_when_a_handover_fails(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant)
    leader = group.lead()
    leader.answer(send("t", 0, b"before"))
    group.cut = {"n2"}
    leader.ask(about(RequestCode.TRANSFER_LEADERSHIP, "n2"))
    leader.pump()
    assert leader.core.transferee == "n2"
    group.pass_time(30_000)
    assert leader.core.role is Role.LEADER
    (reply,) = [reply for reply in leader.answer(send("t", 0, b"x", 9)) if reply.opaque == 9]
    assert (reply.code == 0) is (mutant is HEALTHY)


@with_and_without("prevotes-count-as-votes")
def test_an_answer_to_a_pre_vote_is_no_vote(mutant: Mutant) -> None:
    elector: Elector = mutant.core.elector_type()
    voters = Membership(("n0", "n1", "n2"))
    elector.start("n0", 5, pre_vote=True)
    elector.granted("n1", 5, pre_vote=True)
    assert elector.is_won(voters)
    elector.start("n0", 5, pre_vote=False)
    elector.granted("n2", 5, pre_vote=True)
    assert elector.is_won(voters) is (mutant is not HEALTHY)


@with_and_without("learner-stands")
def test_a_member_without_a_vote_does_not_stand(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant)
    leader = group.lead()
    learner = group.join("n3")
    leader.ask(about(RequestCode.ADD_MEMBER, "n3", "127.0.0.1:1"))
    leader.pump()
    while "n3" not in learner.core.membership.learners:
        deliver_one(group)
    stood = False
    for _ in range(300):
        group.now_ms += 10
        learner.broker.tick(group.now_ms)
        learner.pump()
        stood = stood or learner.core.role is Role.CANDIDATE
    assert stood is (mutant is not HEALTHY)


@with_and_without("read-before-term-start")
def test_a_new_leader_reads_when_its_term_has_begun(mutant: Mutant) -> None:
    group = BrokerGroup(3, mutant=mutant)
    core = group.members["n0"].core
    while core.role is not Role.LEADER:
        deliver_one(group)
    assert not core.is_ready
    if mutant is HEALTHY:
        with pytest.raises(NotLeaderError):
            core.read("token", group.now_ms)
    else:
        core.read("token", group.now_ms)


@with_and_without("read-joins-open-round")
def test_a_read_waits_for_an_echo_of_what_was_sent_after_it(mutant: Mutant) -> None:
    rounds = BrokerGroup(3, mutant=mutant).members["n0"].core.reads_type(RaftConfig())
    rounds.ask("first", 0)
    assert rounds.open(now_ms=0.0)
    rounds.ask("second", 0)
    assert rounds.confirmed(rounds.round, 0) == (
        ["first"] if mutant is HEALTHY else ["first", "second"]
    )


@with_and_without("torn-body-accepted")
def test_recovery_finds_an_entry_without_its_body(mutant: Mutant) -> None:
    group = BrokerGroup(1, mutant=mutant)
    leader = group.lead()
    leader.answer(send("t", 0, b"whole", 1))
    whole = leader.log.end
    leader.writer = LogWriter(leader.log, "page-cache")
    leader.answer(send("t", 0, b"torn" * 20, 2))
    disk = leader.disk
    path = f"{ROOT}/dledger-n0/data/{0:020d}"
    file = disk.open(path)
    size = leader.log.end.position - whole.position - HEADER.size
    file.pwrite([bytes(size)], whole.position + HEADER.size)
    file.close()
    log = mutant.commit_log.open(
        disk.restart(loses_unsynced=False, rng=Random(0)), ROOT, "n0", FILE_BYTES, 4096
    )
    assert log.end.index == whole.index + (mutant is not HEALTHY)


@with_and_without("directory-not-synced")
def test_a_file_that_was_synced_is_there_after_a_loss_of_power(mutant: Mutant) -> None:
    found = []
    for seed in range(10):
        group = BrokerGroup(1, mutant=mutant)
        disk = group.lead().disk.restart(loses_unsynced=True, rng=Random(seed))
        found.append(disk.names(f"{ROOT}/dledger-n0/data"))
    assert all(found) is (mutant is HEALTHY)
