"""What consumers send back: when it comes again, as what, and when it is dead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from broker_group import FILE_BYTES, HOST, BrokerGroup, Member, send
from consumer_requests import back, pull_of, send_with
from group_requests import create_topic

from shaketable.system.broker.delay_levels import DEFAULT_LEVELS_MS, SCHEDULE_TOPIC
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import SendMessageV2
from shaketable.system.store.message import Message, find_property, offset_message_id, walk_messages

CONFIG = BrokerConfig(data_file_bytes=FILE_BYTES, store_host=HOST)
SCHEDULE = SCHEDULE_TOPIC.decode()
RETRY, DEAD = "%RETRY%g", "%DLQ%g"


def stored(member: Member, topic: str, queue: int = 0) -> list[Message]:
    (reply,) = member.answer(pull_of(topic, queue, 0, code=RequestCode.PULL_COMMITTED))
    return list(walk_messages(reply.body))


def sent(group: BrokerGroup) -> Message:
    """A message that a consumer got."""
    leader = group.lead()
    leader.answer(send_with("t", 0, b"body", {"KEYS": "k", "TAGS": "a"}))
    (message,) = stored(leader, "t")
    return message


def test_a_message_that_was_sent_back_comes_again() -> None:
    group = BrokerGroup(3, config=CONFIG)
    first = sent(group)
    leader = group.lead()
    (reply,) = leader.answer(back(first.physical_offset, "g"))
    assert (reply.code, reply.opaque) == (0, 36)
    (waiting,) = stored(leader, SCHEDULE, 2)  # level 3
    assert stored(leader, RETRY) == []
    group.pass_time(DEFAULT_LEVELS_MS[2] + 200)
    (again,) = stored(leader, RETRY)
    assert (again.body, again.reconsume_times, again.born_ms) == (b"body", 1, first.born_ms)
    own_id = offset_message_id(first.store_host, first.physical_offset)
    for name, value in (
        (b"RETRY_TOPIC", b"t"),
        (b"ORIGIN_MESSAGE_ID", own_id),
        (b"KEYS", b"k"),
        (b"TAGS", b"a"),
        (b"DELAY", b""),
    ):
        assert find_property(again.properties, name) == value
    assert waiting.reconsume_times == 1

    leader.answer(back(again.physical_offset, "g"))
    group.pass_time(DEFAULT_LEVELS_MS[3] + 200)
    (_, third) = stored(leader, RETRY)
    assert third.reconsume_times == 2
    assert find_property(third.properties, b"RETRY_TOPIC") == b"t", "of the first of them all"
    assert find_property(third.properties, b"ORIGIN_MESSAGE_ID") == own_id


def test_the_retry_topic_is_made_and_kept() -> None:
    group = BrokerGroup(1, config=CONFIG)
    first = sent(group)
    leader = group.lead()
    leader.answer(back(first.physical_offset, "g"))
    leader.answer(back(first.physical_offset, "g", -1))
    _, topics = leader.broker.topic_table
    made = {topic.topic_name: topic for topic in topics}
    for name in (RETRY, DEAD):
        assert (made[name].read_queue_nums, made[name].write_queue_nums, made[name].perm) == (
            1,
            1,
            6,
        )


@pytest.mark.parametrize(
    ("level", "reconsumed", "times_max", "queue"),
    [(0, 0, None, 2), (0, 4, None, 6), (5, 4, None, 4), (99, 0, None, 17), (0, 15, 16, 17)],
)
def test_for_how_long_it_waits(
    level: int, reconsumed: int, times_max: int | None, queue: int
) -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    request = send("t", 0, b"x")
    request.ext["j"] = str(reconsumed)
    leader.answer(request)
    (message,) = stored(leader, "t")
    assert (
        leader.answer(back(message.physical_offset, "g", level, times_max=times_max))[0].code == 0
    )
    (waiting,) = stored(leader, SCHEDULE, queue)
    assert waiting.reconsume_times == reconsumed + 1


@pytest.mark.parametrize(
    ("level", "reconsumed", "times_max"), [(-1, 0, None), (0, 16, None), (0, 2, 2), (3, 16, -1)]
)
def test_what_came_often_enough_is_dead(level: int, reconsumed: int, times_max: int | None) -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    request = send("t", 0, b"x")
    request.ext["j"] = str(reconsumed)
    leader.answer(request)
    (message,) = stored(leader, "t")
    assert (
        leader.answer(back(message.physical_offset, "g", level, times_max=times_max))[0].code == 0
    )
    (dead,) = stored(leader, DEAD)
    assert (dead.body, dead.reconsume_times) == (b"x", reconsumed + 1)
    assert find_property(dead.properties, b"RETRY_TOPIC") == b"t"
    group.pass_time(1000)
    assert all(not stored(leader, SCHEDULE, queue) for queue in range(18))


def test_it_is_answered_when_the_group_has_it() -> None:
    group = BrokerGroup(3, config=CONFIG)
    first = sent(group)
    leader = group.lead()
    group.cut = {"n1", "n2"}
    assert leader.answer(back(first.physical_offset, "g")) == []
    group.cut = set()
    group.pass_time(300)
    (reply,) = leader.replies.pop(1)
    assert reply.code == 0


def test_what_cannot_be_sent_back_is_refused_in_one_line() -> None:
    group = BrokerGroup(3, config=CONFIG)
    first = sent(group)
    leader = group.lead()
    group.pass_time(100)
    at = first.physical_offset
    for request, code in (
        (back(at + 1, "g"), ResponseCode.SYSTEM_ERROR),
        (back(1 << 60, "g"), ResponseCode.SYSTEM_ERROR),
        (back(at, "bad group"), ResponseCode.MESSAGE_ILLEGAL),
        (back(at, "g" * 121), ResponseCode.MESSAGE_ILLEGAL),
        (Command(RequestCode.CONSUMER_SEND_MSG_BACK, 1, ext={}), ResponseCode.MESSAGE_ILLEGAL),
    ):
        (reply,) = leader.answer(request)
        assert reply.code == code
        assert reply.remark
        assert "\n" not in reply.remark
    (reply,) = group.members["n1"].answer(back(at, "g"))
    assert (reply.code, reply.ext["leaderId"]) == (ResponseCode.SERVICE_NOT_AVAILABLE, "n0")
    assert leader.core.log.end_index == leader.core.ledger.commit_index
    assert all(not stored(leader, SCHEDULE, queue) for queue in range(18))


def test_so_many_wait_for_the_group_and_no_more() -> None:
    group = BrokerGroup(3, config=replace(CONFIG, pending_sends_max=1))
    first = sent(group)
    leader = group.lead()
    group.cut = {"n1", "n2"}
    leader.ask(back(first.physical_offset, "g"), back(first.physical_offset, "g", opaque=37))
    leader.pump()
    (reply,) = leader.replies.pop(1)
    assert (reply.opaque, reply.code) == (37, ResponseCode.SYSTEM_BUSY)


def retried(times: int, times_max: int | None, **properties: str) -> Command:
    """What a client sends to the retry topic itself, where sending back failed."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = SendMessageV2(
        "g", RETRY, 0, properties=text, reconsume_times=times, max_reconsume_times=times_max
    )
    return Command(RequestCode.SEND_MESSAGE_V2, 1, ext=fields.to_ext(), body=b"again")


@pytest.mark.parametrize(
    ("times", "times_max", "is_dead"),
    [(1, 16, False), (16, 16, False), (17, 16, True), (17, None, True), (3, 2, True)],
)
def test_a_client_may_send_to_the_retry_topic_itself(
    times: int, times_max: int | None, is_dead: bool
) -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    (reply,) = leader.answer(retried(times, times_max, DELAY="1", RETRY_TOPIC="t"))
    assert reply.code == 0
    group.pass_time(1300)
    (message,) = stored(leader, DEAD if is_dead else RETRY)
    assert (message.body, message.reconsume_times) == (b"again", times)
    assert not find_property(message.properties, b"DELAY")
    assert stored(leader, RETRY if is_dead else DEAD) == []
    assert len(stored(leader, SCHEDULE, 0)) == (0 if is_dead else 1)


def test_a_retry_topic_that_nobody_may_write_is_respected() -> None:
    group = BrokerGroup(1, config=CONFIG)
    first = sent(group)
    leader = group.lead()
    leader.answer(create_topic(DEAD, perm=4, read_queue_nums=1, write_queue_nums=1))
    (reply,) = leader.answer(back(first.physical_offset, "g", -1))
    assert reply.code == ResponseCode.NO_PERMISSION
    assert stored(leader, DEAD) == []
