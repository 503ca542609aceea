"""Pulls that wait for messages: when they are answered, by what, and how many may wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from broker_group import FILE_BYTES, HOST, BrokerGroup, Member, min_offset, pull, send
from consumer_requests import HOLD_MS, pull_of, send_with
from group_requests import create_topic

from shaketable.system.broker.limits import BrokerConfig, DataFile, ExpiryConfig
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.store.message import walk_messages

CONFIG = BrokerConfig(data_file_bytes=FILE_BYTES, store_host=HOST)
CONSUMER = 5


def ask(member: Member, *commands: Command, connection: int = CONSUMER) -> list[Command]:
    member.ask(*commands, connection=connection)
    member.pump()
    member.group.settle()
    return member.replies.pop(connection, [])


def bodies(reply: Command) -> list[bytes]:
    return [message.body for message in walk_messages(reply.body)]


def test_a_held_pull_is_answered_by_the_next_message() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.answer(send("t", 0, b"old"))
    assert ask(leader, pull_of("t", 0, 1, hold_ms=HOLD_MS)) == []
    leader.answer(send("t", 1, b"elsewhere"))
    group.pass_time(5000)
    assert CONSUMER not in leader.replies
    leader.answer(send("t", 0, b"new"))
    (reply,) = leader.replies.pop(CONSUMER)
    assert (reply.code, bodies(reply), reply.ext["nextBeginOffset"]) == (0, [b"new"], "2")
    leader.answer(send("t", 0, b"later"))
    group.pass_time(HOLD_MS)
    assert CONSUMER not in leader.replies, "answered once"


def test_a_pull_of_a_queue_that_is_not_there_yet_waits_for_its_first_message() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    leader.answer(send("t", 0, b"x"))
    assert ask(leader, pull_of("t", 3, 0, hold_ms=HOLD_MS)) == []
    leader.answer(send("t", 3, b"first"))
    (reply,) = leader.replies.pop(CONSUMER)
    assert bodies(reply) == [b"first"]


def test_an_uncommitted_message_wakes_nobody() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.answer(send("t", 0, b"old"))
    ask(leader, pull_of("t", 0, 1, hold_ms=HOLD_MS))
    group.cut = {"n1", "n2"}
    leader.answer(send("t", 0, b"not acknowledged"))
    assert CONSUMER not in leader.replies


def test_a_held_pull_ends_with_its_time() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    leader.answer(send("t", 0, b"old"))
    ask(leader, pull_of("t", 0, 1, hold_ms=3000))
    group.pass_time(2900)
    assert CONSUMER not in leader.replies
    group.pass_time(600)
    (reply,) = leader.replies.pop(CONSUMER)
    assert reply.code == ResponseCode.PULL_NOT_FOUND
    assert (reply.ext["nextBeginOffset"], reply.ext["maxOffset"]) == ("1", "1")


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_only_a_pull_that_may_be_suspended_is_held(code: RequestCode) -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    leader.answer(send("t", 0, b"old"))
    (reply,) = ask(leader, pull_of("t", 0, 1, code=code))
    assert reply.code == ResponseCode.PULL_NOT_FOUND
    assert ask(leader, pull_of("t", 0, 1, code=code, hold_ms=HOLD_MS)) == []


def test_a_pull_outside_the_queue_is_answered_at_once() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    leader.answer(send("t", 0, b"x"), send("t", 0, b"y", 2))
    for offset, expected in ((9, "2"), (-1, "0")):
        (reply,) = ask(leader, pull_of("t", 0, offset, hold_ms=HOLD_MS))
        assert reply.code == ResponseCode.PULL_OFFSET_MOVED
        assert reply.ext["nextBeginOffset"] == expected


def test_no_pull_is_held_longer_than_the_limit_or_without_long_polling() -> None:
    group = BrokerGroup(1, config=replace(CONFIG, pull_hold_ms_max=2000.0))
    leader = group.lead()
    leader.answer(create_topic("t"))
    ask(leader, pull_of("t", 0, 0, hold_ms=1 << 50))
    group.pass_time(2500)
    assert leader.replies.pop(CONSUMER)[0].code == ResponseCode.PULL_NOT_FOUND
    group = BrokerGroup(1, config=replace(CONFIG, long_polling=False))
    leader = group.lead()
    leader.answer(create_topic("t"))
    assert ask(leader, pull_of("t", 0, 0, hold_ms=HOLD_MS)) == []
    group.pass_time(1500)
    assert leader.replies.pop(CONSUMER)[0].code == ResponseCode.PULL_NOT_FOUND


def test_so_many_pulls_are_held_and_no_more() -> None:
    group = BrokerGroup(1, config=replace(CONFIG, pulls_held_max=2))
    leader = group.lead()
    leader.answer(create_topic("t"))
    pulls = [pull_of("t", 0, 0, hold_ms=HOLD_MS, opaque=opaque) for opaque in (1, 2, 3)]
    (reply,) = ask(leader, *pulls)
    assert (reply.opaque, reply.code) == (3, ResponseCode.SYSTEM_BUSY)
    leader.answer(send("t", 0, b"x"))
    assert [reply.opaque for reply in leader.replies.pop(CONSUMER)] == [1, 2]
    assert ask(leader, *[pull_of("t", 0, 1, hold_ms=HOLD_MS) for _ in range(2)]) == []


def test_the_pulls_of_a_closed_connection_are_forgotten() -> None:
    group = BrokerGroup(1, config=replace(CONFIG, pulls_held_max=1))
    leader = group.lead()
    leader.answer(create_topic("t"))
    assert ask(leader, pull_of("t", 0, 0, hold_ms=HOLD_MS)) == []
    leader.broker.connection_closed(CONSUMER)
    assert ask(leader, pull_of("t", 0, 0, hold_ms=HOLD_MS), connection=6) == []
    leader.answer(send("t", 0, b"x"))
    assert CONSUMER not in leader.replies
    assert len(leader.replies[6]) == 1


def test_a_filtered_pull_is_woken_by_what_it_wants_alone() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    leader.answer(send_with("t", 0, b"0", {"TAGS": "blue"}))
    assert ask(leader, pull_of("t", 0, 1, tags="red", hold_ms=3000)) == []
    for number in range(1, 4):
        leader.answer(send_with("t", 0, b"%d" % number, {"TAGS": "blue"}))
        assert CONSUMER not in leader.replies
    leader.answer(send_with("t", 0, b"4", {"TAGS": "red"}))
    (reply,) = leader.replies.pop(CONSUMER)
    assert (reply.code, bodies(reply), reply.ext["nextBeginOffset"]) == (0, [b"4"], "5")
    ask(leader, pull_of("t", 0, 5, tags="red", hold_ms=3000))
    leader.answer(send_with("t", 0, b"5", {"TAGS": "blue"}))
    group.pass_time(3500)
    (reply,) = leader.replies.pop(CONSUMER)
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert reply.ext["nextBeginOffset"] == "6", "it need not be looked at again"


def test_a_filter_looks_at_a_bounded_number_of_messages() -> None:
    group = BrokerGroup(1, config=replace(CONFIG, filtered_units_max=40))
    leader = group.lead()
    leader.answer(create_topic("t"))
    ask(leader, pull_of("t", 0, 0, tags="red", hold_ms=HOLD_MS))
    sends = [send_with("t", 0, b"", {"TAGS": "blue"}, opaque) for opaque in range(41)]
    leader.answer(*sends)
    (reply,) = leader.replies.pop(CONSUMER)
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert reply.ext["nextBeginOffset"] == "40"


def test_a_deposed_leader_answers_the_pulls_that_it_held() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.answer(send("t", 0, b"old"))
    ask(leader, pull_of("t", 0, 1, hold_ms=HOLD_MS))
    group.cut = {"n0"}
    group.pass_time(3000)
    (reply,) = leader.replies.pop(CONSUMER)
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert reply.ext["nextBeginOffset"] == "1"


def test_a_snapshot_ends_the_wait_for_what_it_replaced() -> None:
    expiry = ExpiryConfig(reserved_ms=1000)
    group = BrokerGroup(3, config=replace(CONFIG, slave_read_enable=True, expiry=expiry))
    leader = group.lead()
    leader.answer(send("t", 0, b"old"))
    group.pass_time(200)
    follower = group.members["n2"]
    assert ask(follower, pull_of("t", 0, 1, hold_ms=HOLD_MS)) == []
    group.cut = {"n2"}
    for _ in range(40):
        leader.answer(send("t", 0, bytes(500)))
    files = [
        DataFile(leader.log.log_end_at(index), group.wall_ms - 1000)
        for index in range(leader.log.first_index, leader.log.end.index)
        if leader.log.log_end_at(index + 1).position // FILE_BYTES
        > leader.log.log_end_at(index).position // FILE_BYTES
    ]
    leader.broker.disk_usage(0.1, files[:3], group.now_ms, group.wall_ms)
    leader.pump()
    begin = int(leader.answer(min_offset("t", 0))[0].ext["offset"])
    assert begin > 1
    group.cut = set()
    group.pass_time(3000)
    assert follower.installed
    (reply,) = follower.replies.pop(CONSUMER)
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY, "the leader may know better"
    assert (reply.ext["nextBeginOffset"], reply.ext["minOffset"]) == ("1", str(begin))


def test_committed_messages_are_still_read_from_any_member() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.answer(send("t", 0, b"x"))
    group.pass_time(200)
    (reply,) = ask(group.members["n1"], pull("t", 0, 0, committed=True))
    assert bodies(reply) == [b"x"]
