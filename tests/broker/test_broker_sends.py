"""Batches, refusals of the core, and what becomes of appends when a leader loses its place."""

from __future__ import annotations

import pytest
from broker_group import FILE_BYTES, HOST, BrokerGroup, about, max_offset, pull, send

from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.raft.protocol import PushRequest, RaftConfig
from shaketable.system.remoting.codes import RequestCode, ResponseCode, outcome_of
from shaketable.system.remoting.command import ONEWAY_FLAG, Command, CommandError
from shaketable.system.remoting.requests import (
    BatchMessage,
    SendMessageV2,
    decode_batch,
    encode_batch,
)
from shaketable.system.store.message import offset_message_id, walk_messages

BIG_FILES = BrokerConfig(data_file_bytes=1 << 20, store_host=HOST)


def batch(
    *messages: BatchMessage,
    topic: str = "t",
    queue: int = 0,
    properties: str = "",
    flag: int = 0,
    code: int = RequestCode.SEND_BATCH_MESSAGE,
) -> Command:
    fields = SendMessageV2("g", topic, queue, properties=properties, batch=True)
    return Command(code, 1, flag, ext=fields.to_ext(), body=encode_batch(messages))


@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_batch_is_stored_in_order_and_answered_once(code: int) -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.answer(send("t", 0, b"before"))
    messages = [BatchMessage(b"one", b"TAGS\x01a\x02", 7), BatchMessage(b"two"), BatchMessage(b"")]
    (reply,) = leader.answer(batch(*messages, properties="WAIT\x01true\x02", code=code))
    assert (reply.code, reply.ext["queueId"], reply.ext["queueOffset"]) == (0, "0", "1")
    (got,) = leader.answer(pull("t", 0, 1))
    stored = list(walk_messages(got.body))
    assert [(m.body, m.properties, m.flag, m.queue_offset) for m in stored] == [
        (b"one", b"TAGS\x01a\x02WAIT\x01true\x02", 7, 1),
        (b"two", b"WAIT\x01true\x02", 0, 2),
        (b"", b"WAIT\x01true\x02", 0, 3),
    ]
    ids = [offset_message_id(HOST, message.physical_offset).decode() for message in stored]
    assert reply.ext["msgId"] == ",".join(ids)
    assert leader.answer(send("t", 0, b"behind"))[0].ext["queueOffset"] == "4"


def test_a_batch_waits_for_its_last_entry() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    group.cut = {"n1", "n2"}
    leader.ask(batch(*[BatchMessage(bytes(900))] * 9))
    leader.pump()
    assert leader.replies == {}
    group.cut = set()
    group.pass_time(1000)
    (reply,) = leader.replies.pop(1)
    assert (reply.code, len(reply.ext["msgId"].split(","))) == (0, 9)


def test_a_one_way_batch_is_stored_and_not_answered() -> None:
    leader = BrokerGroup(1).lead()
    assert leader.answer(batch(BatchMessage(b"a"), BatchMessage(b"b"), flag=ONEWAY_FLAG)) == []
    assert leader.answer(max_offset("t", 0))[0].ext["offset"] == "2"


def _damaged(body: bytes) -> Command:
    command = batch(BatchMessage(b"a"))
    command.body = body
    return command


GOOD = encode_batch([BatchMessage(b"good"), BatchMessage(b"good")])


@pytest.mark.parametrize(
    "command",
    [
        batch(),
        _damaged(GOOD[:-1]),
        _damaged(GOOD + b"\0\0"),
        _damaged(GOOD[:16] + b"\xff\xff\xff\xff" + GOOD[20:]),
        _damaged(b"\0\0\0\xff" + GOOD[4:]),
        batch(BatchMessage(b"good"), BatchMessage(bytes(FILE_BYTES))),
        batch(BatchMessage(b"a"), BatchMessage(b"b"), topic="%RETRY%g"),
        batch(BatchMessage(b"a"), BatchMessage(b"b"), topic="RMQ_SYS_X"),
        batch(BatchMessage(b"a"), BatchMessage(b"b"), queue=99),
        batch(*[BatchMessage(b"")] * 4097),
    ],
    ids=[
        "empty",
        "cut off",
        "more behind",
        "negative length",
        "wrong size",
        "one too large",
        "retry topic",
        "reserved topic",
        "no such queue",
        "too many",
    ],
)
def test_a_bad_batch_is_refused_as_a_whole(command: Command) -> None:
    leader = BrokerGroup(1).lead()
    end = leader.core.log.end_index
    (reply,) = leader.answer(command)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert leader.core.log.end_index == end
    assert leader.answer(send("t", 0, b"a"))[0].ext["queueOffset"] == "0"


def test_the_batch_body_is_rocketmqs() -> None:
    body = encode_batch([BatchMessage(b"hi", b"K\x01v\x02", 3)])
    assert body == (
        (28).to_bytes(4, "big") + bytes(8) + b"\0\0\0\3" + b"\0\0\0\2hi" + b"\0\4K\x01v\x02"
    )
    (message,) = decode_batch(body, 1)
    assert (bytes(message.body), bytes(message.properties), message.flag) == (b"hi", b"K\1v\2", 3)
    with pytest.raises(CommandError, match="properties of 32768 bytes"):
        encode_batch([BatchMessage(b"", bytes(32_768))])


def test_too_many_uncommitted_bytes_are_refused_definitely_and_taken_back() -> None:
    group = BrokerGroup(3, config=BIG_FILES, raft=RaftConfig(uncommitted_bytes_max=2000))
    leader = group.lead()
    group.cut = {"n1", "n2"}
    leader.ask(send("t", 0, bytes(2500), 1), send("t", 1, b"", 2))
    leader.pump()
    assert leader.replies == {}
    leader.ask(send("t", 0, b"a", 3), send("u", 0, b"b", 4), batch(BatchMessage(b"c")))
    leader.pump()
    replies = leader.replies.pop(1)
    assert [(reply.opaque, reply.code) for reply in replies] == [
        (3, ResponseCode.SYSTEM_BUSY),
        (4, ResponseCode.SYSTEM_BUSY),
        (1, ResponseCode.SYSTEM_BUSY),
    ]
    assert all("[503]" in (reply.remark or "") for reply in replies)
    group.cut = set()
    group.pass_time(1000)
    assert sorted(reply.opaque for reply in leader.replies.pop(1)) == [1, 2]
    replies = leader.answer(send("t", 0, b"a", 5), send("u", 0, b"b", 6))
    assert [reply.ext["queueOffset"] for reply in replies] == ["1", "0"]


def test_a_full_disk_refuses_sends_and_takes_them_again_later() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    leader.answer(send("t", 0, b"a"))
    leader.broker.disk_full(True, group.now_ms)
    (reply,) = leader.answer(send("t", 0, b"b"))
    assert (reply.code, outcome_of(reply.code)) == (ResponseCode.SYSTEM_BUSY, "fail")
    assert "[415]" in (reply.remark or "")
    leader.broker.disk_full(False, group.now_ms)
    (reply,) = leader.answer(send("t", 0, b"c"))
    assert (reply.code, reply.ext["queueOffset"]) == (0, "1")


def test_a_leader_whose_disk_fills_before_its_term_start_goes_on_once_there_is_room() -> None:
    group = BrokerGroup(1)
    member = group.members["n0"]
    group.now_ms += 1000
    member.broker.tick(group.now_ms)
    member.broker.disk_full(True, group.now_ms)
    member.pump()
    assert not member.broker.is_ready
    assert member.core.log.end_index == -1
    member.broker.disk_full(False, group.now_ms)
    group.lead()
    assert member.answer(send("t", 0, b"a"))[0].code == 0


def test_what_is_refused_is_taken_back_however_many_files_it_spans() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    leader.answer(send("t", 0, b"a"))
    leader.broker.disk_full(True, group.now_ms)
    replies = leader.answer(*(send("t", 0, bytes(900), opaque) for opaque in range(1, 13)))
    assert [reply.opaque for reply in replies] == list(range(1, 13))
    leader.broker.disk_full(False, group.now_ms)
    assert leader.answer(send("t", 0, b"b"))[0].ext["queueOffset"] == "1"


def test_a_change_that_is_refused_takes_no_send_before_it_along() -> None:
    group = BrokerGroup(3, config=BIG_FILES, raft=RaftConfig(uncommitted_bytes_max=2000))
    leader = group.lead()
    group.cut = {"n1", "n2"}
    leader.answer(send("t", 0, bytes(2500), 9))
    replies = leader.answer(
        send("t", 0, b"a", 1),
        about(RequestCode.REMOVE_MEMBER, "n2", opaque=2),
        send("t", 0, b"", 3),
    )
    assert [(reply.opaque, reply.code) for reply in replies] == [
        (1, ResponseCode.SYSTEM_BUSY),
        (2, ResponseCode.SYSTEM_BUSY),
        (3, ResponseCode.SYSTEM_BUSY),
    ]


def test_a_batch_past_the_bound_of_pending_appends_is_refused() -> None:
    config = BrokerConfig(data_file_bytes=FILE_BYTES, store_host=HOST, pending_sends_max=1)
    group = BrokerGroup(3, config=config)
    leader = group.lead()
    leader.ask(send("t", 0, b"a", 2), batch(BatchMessage(b"b"), BatchMessage(b"c")))
    leader.pump()
    (reply,) = leader.replies.pop(1)
    assert (reply.opaque, reply.code) == (1, ResponseCode.SYSTEM_BUSY)


def test_an_append_that_another_leaders_entry_replaced_is_unknown() -> None:
    """It learns in one turn that its term is over and what was committed in its entry's place."""
    group = BrokerGroup(3)
    leader = group.lead()
    leader.answer(send("t", 0, b"a"))
    shared = leader.core.log.end_index
    group.cut = group.paused = {"n0"}
    leader.ask(send("t", 0, b"lost", 2))
    leader.pump()
    heir = group.lead("n1")
    heir.answer(send("t", 0, b"kept"))
    log = heir.core.log
    push = PushRequest(
        heir.core.term,
        "n1",
        shared,
        log.term_at(shared),
        heir.core.ledger.commit_index,
        0,
        log.batches_from(shared + 1, 1 << 20),
    )
    leader.broker.receive(push, group.now_ms)
    assert leader.core.ledger.commit_index > shared
    leader.pump()
    (reply,) = leader.replies.pop(1)
    assert (reply.opaque, reply.code) == (2, ResponseCode.SYSTEM_ERROR)


def test_what_was_committed_when_the_leader_lost_its_place_is_acknowledged() -> None:
    """It learns in one turn that a majority has the entry, and that its term is over."""
    group = BrokerGroup(3)
    leader = group.lead()
    leader.ask(send("t", 0, b"committed", 1))
    leader.pump()
    for source, target, message in list(group.network):
        if target == "n1":
            group.members["n1"].broker.receive(message, group.now_ms)
            group.members["n1"].pump()
            group.network.remove((source, target, message))
    answers = [m for s, t, m in group.network if (s, t) == ("n1", "n0")]
    group.network.clear()
    leader.ask(send("t", 0, b"lost", 2))
    leader.broker.take(group.now_ms, group.wall_ms)
    for message in answers:
        leader.broker.receive(message, group.now_ms)
    leader.broker.core._become_follower(leader.core.term + 1, None)
    leader.pump()
    assert {reply.opaque: reply.code for reply in leader.replies.pop(1)} == {
        1: 0,
        2: ResponseCode.SYSTEM_ERROR,
    }


def test_no_code_that_may_follow_an_append_is_definite() -> None:
    """The one table: what is said after the append is info, what is said before is fail."""
    assert outcome_of(ResponseCode.SYSTEM_ERROR) == "info"
    before = (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    )
    assert {outcome_of(code) for code in before} == {"fail"}
