"""The pure broker: what it answers, when, and with which code."""

from __future__ import annotations

import pytest

from shaketable.system.broker.broker import Broker, BrokerEffects
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.ledger import LogView
from shaketable.system.raft.protocol import (
    Append,
    Batch,
    LogEnd,
    PushRequest,
    PushResponse,
    RaftConfig,
    SaveState,
    VoteResponse,
)
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import (
    ONEWAY_FLAG,
    Command,
    Frame,
    FrameBuffer,
    decode_command,
    encode_command,
)
from shaketable.system.remoting.requests import (
    PullMessage,
    QueueOffsetRequest,
    SendMessageV2,
    decode_request,
)
from shaketable.system.store.entry import EntryBuilder
from shaketable.system.store.message import walk_messages

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


class NoReader:
    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        raise AssertionError("everything is in the tail")

    def read(self, position: int, size: int) -> bytes:
        raise AssertionError("everything is in the tail")


class Bench:
    """One broker whose disk and peers are played by the test."""

    def __init__(self, peers: tuple[str, ...] = (), config: BrokerConfig | None = None) -> None:
        log = LogView(NoReader())
        core = RaftCore(
            "n0", peers, log, term=0, voted_for=None, uniform_ms=lambda low, _: low, now_ms=0.0
        )
        self.now_ms = 0.0
        self.broker = Broker(core, config or BrokerConfig(store_host=HOST))
        self.replies: dict[int, list[Command]] = {}
        self.effects: BrokerEffects = BrokerEffects()

    def pump(self, *, sync: bool = True) -> None:
        for _ in range(4):
            self.effects = effects = self.broker.take(self.now_ms, 1_700_000_000_000)
            for connection, frames in effects.replies.items():
                self.replies.setdefault(connection, []).extend(decode(b"".join(frames)))
            if sync and effects.writes:
                self.broker.synced(effects.write_seq)

    def lead(self) -> None:
        self.now_ms += 1000
        self.broker.tick(self.now_ms)
        self.pump()
        peers = self.broker.core.peers
        for pre_vote in (True, False):
            for peer in peers:
                term = self.broker.core.term + (1 if pre_vote else 0)
                self.broker.receive(VoteResponse(term, peer, True, pre_vote), self.now_ms)
                self.pump()
        self.acknowledge_all()

    def acknowledge_all(self) -> None:
        end = self.broker.core.log.end_index
        term = self.broker.core.term
        assert self.broker.core._leadership is not None
        round_now = self.broker.core._leadership.reads.round
        for peer in self.broker.core.peers:
            self.broker.receive(PushResponse(term, peer, True, end, round_now), self.now_ms)
        self.pump()

    def ask(self, *commands: Command, connection: int = 1) -> None:
        data = b"".join(encode_command(command) for command in commands)
        requests = [decode_request(frame) for frame in frames(data)]
        self.broker.handle(connection, HOST, requests, self.now_ms, 1_700_000_000_000)

    def answer(self, *commands: Command) -> list[Command]:
        self.ask(*commands)
        self.pump()
        return self.replies.pop(1, [])


def frames(data: bytes) -> list[Frame]:
    buffer = FrameBuffer()
    while data:
        view = buffer.writable()
        part, data = data[: len(view)], data[len(view) :]
        view[: len(part)] = part
        buffer.received(len(part))
        if found := buffer.frames():
            assert not data, "one read brings all"
            return found
    return []


def decode(data: bytes) -> list[Command]:
    out = []
    for frame in frames(data):
        command = decode_command(frame)
        command.body = bytes(command.body)
        out.append(command)
    return out


def send(topic: str, queue: int, body: bytes, opaque: int = 1, flag: int = 0) -> Command:
    ext = SendMessageV2("g", topic, queue, properties="KEYS\x01k\x02").to_ext()
    return Command(RequestCode.SEND_MESSAGE_V2, opaque, flag, ext=ext, body=body)


def pull(topic: str, queue: int, offset: int, count: int = 32) -> Command:
    return Command(
        RequestCode.PULL_MESSAGE, 7, ext=PullMessage("g", topic, queue, offset, count).to_ext()
    )


def max_offset(topic: str, queue: int) -> Command:
    return Command(RequestCode.GET_MAX_OFFSET, 8, ext=QueueOffsetRequest(topic, queue).to_ext())


def test_a_send_gets_its_offset_and_is_read_back() -> None:
    bench = Bench()
    bench.lead()
    replies = bench.answer(send("t", 3, b"one"), send("t", 3, b"two", 2), send("t", 4, b"x", 3))
    assert [(r.code, r.opaque, r.ext["queueId"], r.ext["queueOffset"]) for r in replies] == [
        (0, 1, "3", "0"),
        (0, 2, "3", "1"),
        (0, 3, "4", "0"),
    ]
    (got,) = bench.answer(pull("t", 3, 0))
    messages = list(walk_messages(got.body))
    assert got.code == ResponseCode.SUCCESS
    assert [(m.body, m.queue_offset, m.topic, m.properties) for m in messages] == [
        (b"one", 0, b"t", b"KEYS\x01k\x02"),
        (b"two", 1, b"t", b"KEYS\x01k\x02"),
    ]
    assert (got.ext["nextBeginOffset"], got.ext["maxOffset"]) == ("2", "2")
    assert bench.answer(max_offset("t", 3))[0].ext["offset"] == "2"


def test_a_message_stands_at_the_offset_that_its_id_names() -> None:
    bench = Bench()
    bench.lead()
    (reply,) = bench.answer(send("t", 0, b"body"))
    position = int(reply.ext["msgId"][16:], 16)
    (got,) = bench.answer(pull("t", 0, 0))
    assert next(iter(walk_messages(got.body))).physical_offset == position


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"),
    [
        (2, ResponseCode.PULL_NOT_FOUND, "2"),
        (9, ResponseCode.PULL_OFFSET_MOVED, "2"),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "0"),
    ],
)
def test_a_pull_outside_the_queue_says_where_it_goes_on(
    offset: int, code: int, next_offset: str
) -> None:
    bench = Bench()
    bench.lead()
    bench.answer(send("t", 0, b"a"), send("t", 0, b"b", 2))
    (got,) = bench.answer(pull("t", 0, offset))
    assert (got.code, got.ext["nextBeginOffset"], got.body) == (code, next_offset, b"")


def test_nothing_is_acknowledged_before_a_majority_has_it() -> None:
    bench = Bench(("n1", "n2"))
    bench.lead()
    assert bench.answer(send("t", 0, b"a")) == []
    bench.acknowledge_all()
    assert [r.code for r in bench.replies.pop(1)] == [0]


def test_a_read_waits_for_its_round() -> None:
    bench = Bench(("n1", "n2"))
    bench.lead()
    core = bench.broker.core
    assert bench.answer(max_offset("t", 0)) == []
    old = PushResponse(core.term, "n1", True, core.log.end_index, 0)
    bench.broker.receive(old, bench.now_ms)
    bench.pump()
    assert 1 not in bench.replies
    bench.acknowledge_all()
    assert [r.code for r in bench.replies.pop(1)] == [0]


def test_a_follower_refuses_and_names_the_leader() -> None:
    bench = Bench(("n1", "n2"))
    refused, retried = ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.PULL_RETRY_IMMEDIATELY
    for command, code in (
        (send("t", 0, b"a"), refused),
        (pull("t", 0, 0), retried),
        (max_offset("t", 0), refused),
    ):
        (reply,) = bench.answer(command)
        assert reply.code == code
        assert reply.remark is not None
        assert "not the leader" in reply.remark
    assert bench.broker.core.log.end_index == -1


def test_a_change_of_term_leaves_pending_sends_unknown_and_reads_refused() -> None:
    bench = Bench(("n1", "n2"))
    bench.lead()
    assert bench.answer(send("t", 0, b"a"), max_offset("t", 0)) == []
    bench.broker.receive(PushResponse(bench.broker.core.term + 1, "n1", False, -1, 0), bench.now_ms)
    bench.pump()
    codes = {reply.opaque: reply.code for reply in bench.replies.pop(1)}
    assert codes == {1: ResponseCode.SYSTEM_ERROR, 8: ResponseCode.SERVICE_NOT_AVAILABLE}


def test_a_send_that_nobody_acknowledges_ends_as_unknown() -> None:
    bench = Bench(("n1", "n2"), BrokerConfig(store_host=HOST, ack_timeout_ms=100.0))
    bench.lead()
    assert bench.answer(send("t", 0, b"a")) == []
    bench.now_ms += 100
    bench.broker.tick(bench.now_ms)
    bench.pump()
    (reply,) = bench.replies.pop(1)
    assert (reply.code, "no quorum" in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    bench.acknowledge_all()
    assert bench.replies == {}, "answered once"


def test_too_many_pending_sends_are_refused() -> None:
    bench = Bench(("n1", "n2"), BrokerConfig(store_host=HOST, pending_sends_max=2))
    bench.lead()
    replies = bench.answer(*(send("t", 0, b"a", opaque) for opaque in (1, 2, 3)))
    assert [(r.opaque, r.code) for r in replies] == [(3, ResponseCode.SYSTEM_BUSY)]


@pytest.mark.parametrize(
    "command",
    [
        send("", 0, b"a"),
        send("RMQ_SYS_DLEDGER_EVENT", 0, b"a"),
        send("t" * 128, 0, b"a"),
        send("t", 16, b"a"),
        send("t", -1, b"a"),
        send("t", 0, bytes(4 << 20)),
        Command(RequestCode.PULL_MESSAGE, 1, ext={"topic": "t"}),
    ],
    ids=["no topic", "reserved", "long topic", "queue 16", "queue -1", "big body", "no queue"],
)
def test_illegal_requests_are_refused_and_nothing_is_appended(command: Command) -> None:
    bench = Bench()
    bench.lead()
    end = bench.broker.core.log.end_index
    (reply,) = bench.answer(command)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.broker.core.log.end_index == end
    assert [r.code for r in bench.answer(send("t", 0, b"a"))] == [0], "it goes on serving"


def test_unknown_requests_are_refused() -> None:
    bench = Bench()
    (reply,) = bench.answer(Command(9999, 5))
    assert (reply.code, reply.opaque) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 5)


def test_a_oneway_send_is_stored_and_not_answered() -> None:
    bench = Bench()
    bench.lead()
    assert bench.answer(send("t", 0, b"a", flag=ONEWAY_FLAG)) == []
    assert bench.answer(max_offset("t", 0))[0].ext["offset"] == "1"


def test_each_term_starts_with_an_event_message_on_the_reserved_topic() -> None:
    bench = Bench()
    bench.lead()
    assert bench.broker.queues.max_offset((b"RMQ_SYS_DLEDGER_EVENT", 0)) == 1
    log = bench.broker.core.log
    data = b"".join(b.data for b in log.batches_from(0, 1 << 20))
    assert b"TAGS\x01TERM_START\x02" in data


def test_term_and_vote_are_written_before_entries() -> None:
    bench = Bench()
    bench.now_ms = 1000
    bench.broker.tick(bench.now_ms)
    effects = bench.broker.take(bench.now_ms, 0)
    assert [type(write) for write in effects.writes] == [SaveState]
    bench.broker.synced(effects.write_seq, bench.now_ms)
    effects = bench.broker.take(bench.now_ms, 0)
    assert [type(write) for write in effects.writes] == [Append]


def test_a_closed_connection_gets_no_reply() -> None:
    bench = Bench(("n1", "n2"))
    bench.ask(send("t", 0, b"a"))
    bench.broker.connection_closed(1)
    bench.pump()
    assert bench.replies == {}


def test_a_new_leaders_first_send_goes_behind_what_its_term_start_commits() -> None:
    """The commit of older entries and a send arrive in the same turn, before `take`."""
    bench = Bench(("n1", "n2"))
    builder = EntryBuilder(LogEnd(), 1, 1 << 30, HOST)
    builder.add(b"RMQ_SYS_DLEDGER_EVENT", 0, 0, b"n1 leads term 1")
    for offset in range(3):
        builder.add(b"t", 0, offset, b"old %d" % offset)
    push = PushRequest(1, "n1", -1, -1, -1, 0, tuple(builder.take()))
    bench.broker.receive(push, bench.now_ms)
    bench.pump()
    bench.now_ms += 1000
    bench.broker.tick(bench.now_ms)
    for pre_vote in (True, False):
        bench.pump()
        bench.broker.receive(VoteResponse(2, "n2", True, pre_vote), bench.now_ms)
    bench.pump()
    end = bench.broker.core.log.end_index
    bench.broker.receive(PushResponse(2, "n2", True, end, 0), bench.now_ms)
    bench.ask(send("t", 0, b"new"))
    bench.pump()
    bench.acknowledge_all()
    assert [reply.ext["queueOffset"] for reply in bench.replies.pop(1)] == ["3"]


def test_too_many_reads_are_refused_by_a_leader_that_stays_one() -> None:
    bench = Bench(("n1", "n2"))
    bench.lead()
    bench.broker.core.config = RaftConfig(reads_waiting_max=1)
    replies = bench.answer(max_offset("t", 0), max_offset("t", 0))
    assert [reply.code for reply in replies] == [ResponseCode.SYSTEM_BUSY]
