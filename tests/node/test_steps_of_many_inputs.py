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
from shaketable.system.raft.protocol import InvariantError, PushResponse, Role, VoteResponse
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command, FrameBuffer, encode_command
from shaketable.system.remoting.requests import QueueOffsetRequest, SendMessageV2, decode_request
from shaketable.system.store.state_files import HardState

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
