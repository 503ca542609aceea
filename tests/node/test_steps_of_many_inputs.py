"""A member's own checks, where several inputs are handled in one step: no healthy one is accused.

A real member handles all that has arrived before it carries out what follows.
"""

from __future__ import annotations

import pytest

from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.mutants import HEALTHY, Mutant, load
from shaketable.system.node.self_checks import SelfWatch
from shaketable.system.node.watched_broker import watched
from shaketable.system.raft.ledger import LogView
from shaketable.system.raft.protocol import (
    Batch,
    InvariantError,
    PushRequest,
    PushResponse,
    Role,
    VoteRequest,
    VoteResponse,
)
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command, FrameBuffer, encode_command
from shaketable.system.remoting.requests import QueueOffsetRequest, SendMessageV2, decode_request
from shaketable.system.store.state_files import HardState
from tests.support.raft_group import batch_of

WALL_MS = 1_700_000_000_000
PEERS = ("n1", "n2")


class NoReader:
    """The log is short: all of it is in memory."""

    def read_entries(self, *_: object) -> bytes:
        raise AssertionError


class Member:
    """The broker n0 of three, which checks itself, and its disk."""

    def __init__(self, parts: Mutant = HEALTHY) -> None:
        self.now_ms, self._unsynced, self._last_seq = 0.0, 0, 0
        self._watch = SelfWatch("n0")
        parts = watched(parts, self._watch)
        self.core = parts.core(
            "n0", PEERS, LogView(NoReader()), term=0, voted_for=None,
            uniform_ms=lambda low, high: low, now_ms=0.0,
        )  # fmt: skip
        self.broker = parts.broker(self.core, BrokerConfig())
        self._watch.started(self.core, HardState())

    def take(self) -> None:
        effects = self.broker.take(self.now_ms, WALL_MS)
        self._unsynced += len(effects.writes)
        self._last_seq = effects.write_seq

    def sync(self) -> None:
        self._watch.carried_out(self._unsynced)
        self._unsynced = 0
        self.broker.synced(self._last_seq, self.now_ms)

    def settle(self) -> None:
        for _ in range(4):
            self.take()
            if self._unsynced:
                self.sync()

    def campaign(self) -> None:
        """Let the election timeout pass; the others would vote."""
        self.now_ms += 1_000
        self.broker.tick(self.now_ms)
        self.settle()
        self.voted("n1", self.core.term + 1, pre_vote=True)

    def lead(self) -> None:
        self.campaign()
        self.settle()
        self.voted("n1", self.core.term)
        self.settle()
        assert self.core.role is Role.LEADER

    def voted(self, by: str, term: int, *, pre_vote: bool = False) -> None:
        self.broker.receive(VoteResponse(term, by, True, pre_vote), self.now_ms)

    def acknowledged(self, by: str, index: int) -> None:
        round_ = self.core._leadership.reads.round  # type: ignore[union-attr]
        self.broker.receive(PushResponse(self.core.term, by, True, index, round_), self.now_ms)

    def send(self, opaque: int) -> None:
        ext = SendMessageV2("g", "t", 0).to_ext()
        self.handle(Command(RequestCode.SEND_MESSAGE_V2, opaque, ext=ext, body=b"x"))

    def read(self, opaque: int) -> None:
        self.handle(
            Command(RequestCode.GET_MAX_OFFSET, opaque, ext=QueueOffsetRequest("t", 0).to_ext())
        )

    def handle(self, command: Command) -> None:
        sent = encode_command(command)
        buffer = FrameBuffer()
        buffer.writable()[: len(sent)] = sent
        buffer.received(len(sent))
        requests = [decode_request(frame) for frame in buffer.frames()]
        self.broker.handle(1, bytes(8), requests, self.now_ms, WALL_MS)


def test_a_late_vote_of_an_older_term_takes_none_away() -> None:
    member = Member()
    member.campaign()  # term 1, in which n1 votes for itself and n2 is slow
    member.settle()
    member.campaign()
    member.take()
    member.voted("n1", 2)
    member.take()
    member.voted("n2", 1)
    member.sync()
    member.take()
    assert member.core.role is Role.LEADER


@pytest.mark.parametrize("is_measured", [False, True], ids=["refused", "measured"])
def test_who_takes_over_is_chosen_before_a_later_acknowledgement(is_measured: bool) -> None:
    member = Member()
    member.lead()
    end = member.core.log.end_index
    for peer in PEERS:
        member.acknowledged(peer, end)
    member.settle()
    for opaque in range(6):
        member.send(opaque)
        member.take()
    member.sync()
    member.take()
    end = member.core.log.end_index
    for peer, index in zip(PEERS, (end - 2, end - 3), strict=True):
        member.acknowledged(peer, index)
        member.take()
    if is_measured:
        member.broker.disk_usage(0.99, [], member.now_ms, WALL_MS)
    else:
        member.broker.disk_full(True, member.now_ms)
    member.acknowledged("n2", end - 1)
    member.take()
    assert member.core.transferee == "n1"


@pytest.mark.parametrize("bug", ["reads-put-off-ticks", None])
def test_a_leader_that_is_read_from_ends_its_transfer_in_time(bug: str | None) -> None:
    member = Member(load(bug) if bug else HEALTHY)
    member.lead()
    for peer in PEERS:
        member.acknowledged(peer, member.core.log.end_index)
    member.settle()
    member.core.transfer("n2", member.now_ms)

    def is_read_from() -> None:
        for number in range(600):
            member.now_ms += 10
            if member.now_ms >= member.core.deadline_ms:
                member.broker.tick(member.now_ms)
            member.read(number)
            member.take()
            member.acknowledged("n1", member.core.log.end_index)
            member.take()

    if bug is None:
        is_read_from()
        assert member.core.transferee is None
    else:
        with pytest.raises(InvariantError, match="leaders-are-ticked: it leads and was not"):
            is_read_from()
        assert member.core.transferee == "n2"


def leading(bug: str | None = None) -> Member:
    """Return a leader whose term's first entry is committed."""
    member = Member(load(bug) if bug else HEALTHY)
    member.lead()
    for peer in PEERS:
        member.acknowledged(peer, member.core.log.end_index)
    member.settle()
    return member


def ticks_on(member: Member, until_ms: float) -> None:
    """Let time pass; the others answer each heartbeat, and hold what they held."""
    while member.now_ms < until_ms and member.core.role is Role.LEADER:
        member.now_ms += 10
        member.broker.tick(member.now_ms)
        member.take()
        if member.core.role is Role.LEADER:
            for peer in PEERS:
                member.acknowledged(peer, member.core.ledger.commit_index)
        member.take()


@pytest.mark.parametrize("bug", ["leads-with-dead-disk", None])
def test_a_leader_whose_disk_stalls_steps_down(bug: str | None) -> None:
    member = leading(bug)
    member.send(1)
    member.take()
    assert member._unsynced
    if bug is None:
        ticks_on(member, 10_000)
        assert member.core.role is not Role.LEADER
    else:
        with pytest.raises(InvariantError, match="stalled-disk-leads-not: a write waits for 2"):
            ticks_on(member, 10_000)


def test_a_slow_disk_is_none_that_stalls() -> None:
    """A write waits all the time, and none of them for long."""
    member = leading()
    for number in range(20):
        member.send(number)
        member.take()
        assert member._unsynced
        first = member._last_seq
        ticks_on(member, member.now_ms + 900)
        member.send(100 + number)
        member.take()
        member._watch.carried_out(member._unsynced)
        member._unsynced = 0
        member.broker.synced(first, member.now_ms)
        member.take()
    assert member.core.role is Role.LEADER
    assert member.now_ms > 15_000


def pushed(member: Member, term: int, prev: tuple[int, int], *batches: Batch, commit: int) -> None:
    push = PushRequest(term, "n1", *prev, commit, 0, batches)
    member.broker.receive(push, member.now_ms)


def test_requests_for_votes_wait_while_the_log_grows_and_are_no_ones_fault() -> None:
    """The disk stalls, so that two requests wait, with the log that it had then, and has now."""
    member = Member()
    member.now_ms += 1_000
    member.broker.tick(member.now_ms)  # asks for pre-votes, which wait for nothing yet
    member.take()
    pushed(member, 3, (-1, -1), batch_of(0, 2, 3, 0), commit=-1)
    member.take()
    member.now_ms += 1_000
    member.broker.tick(member.now_ms)
    member.take()
    pushed(member, 4, (1, 3), batch_of(2, 1, 4, 128), commit=-1)
    member.now_ms += 1_000
    member.broker.tick(member.now_ms)
    member.take()
    member.sync()
    member.take()
    assert member.core.role is Role.CANDIDATE
    assert member.core.log.end_index == 2


@pytest.mark.parametrize("bug", ["vote-for-shorter-log", None])
def test_who_lacks_entries_gets_no_vote(bug: str | None) -> None:
    member = Member(load(bug) if bug else HEALTHY)
    pushed(member, 3, (-1, -1), batch_of(0, 2, 3, 0), commit=-1)
    member.settle()
    member.now_ms += 10_000

    def asked() -> None:
        for index in (0, 1):  # the second request is for the same term, with the whole log
            member.broker.receive(VoteRequest(4, "n2", 3, index, True, False), member.now_ms)
            member.settle()

    if bug is None:
        asked()
    else:
        with pytest.raises(InvariantError, match="votes-go-to-complete-logs: n2 gets its pre-vote"):
            asked()


@pytest.mark.parametrize("bug", ["commit-by-counting", None])
def test_what_an_older_term_left_is_committed_with_an_entry_of_the_new_one(
    bug: str | None,
) -> None:
    other = Member()
    other.lead()
    other.send(1)
    other.settle()
    member = Member(load(bug) if bug else HEALTHY)
    first = other.core.log.batches_from(0, 1 << 20)
    pushed(member, 1, (-1, -1), *first, commit=-1)
    member.settle()
    member.lead()
    assert member.core.log.end_index > 0, "the first entry of its term"

    def acknowledged() -> None:
        for index in (0, member.core.log.end_index):
            member.acknowledged("n2", index)
            member.settle()

    if bug is None:
        acknowledged()
        assert member.core.ledger.commit_index == member.core.log.end_index
    else:
        with pytest.raises(InvariantError, match="commits-begin-with-the-term: it commits entry 0"):
            acknowledged()


@pytest.mark.parametrize("bug", ["idle-follower-not-refilled", None])
def test_what_seems_lost_is_sent_again(bug: str | None) -> None:
    member = leading(bug)
    before = member.core.log.end_index
    member.send(1)
    member.settle()

    def goes_on() -> None:
        for _ in range(200):
            member.now_ms += 10
            member.broker.tick(member.now_ms)
            member.settle()
            for peer in PEERS:
                member.acknowledged(peer, before)
            member.settle()

    if bug is None:
        goes_on()
    else:
        with pytest.raises(InvariantError, match="lost-pushes-are-sent-again: n1 has acknowledged"):
            goes_on()
