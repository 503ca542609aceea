"""Delayed messages: each is delivered in time and once, whoever leads and whatever is lost."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from broker_group import FILE_BYTES, HOST, WALL_MS, BrokerGroup, Member, send
from consumer_requests import pull_of, send_with
from group_requests import commit

from shaketable.system.broker.broker_state import decode_state
from shaketable.system.broker.delay_levels import DELIVERY_GROUP, SCHEDULE_TOPIC
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.raft.protocol import RaftConfig
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import BatchMessage, SendMessageV2, encode_batch
from shaketable.system.store.message import Message, encode_message, find_property, walk_messages

CONFIG = BrokerConfig(data_file_bytes=FILE_BYTES, store_host=HOST, delay_levels_ms=(1000, 5000))
SCHEDULE = SCHEDULE_TOPIC.decode()


def delayed(body: bytes, level: int, opaque: int = 1, queue: int = 0) -> Command:
    return send_with("t", queue, body, {"DELAY": str(level), "TAGS": "a"}, opaque)


def stored(member: Member, topic: str = "t", queue: int = 0, offset: int = 0) -> list[Message]:
    """Every message of a queue, read from the member itself."""
    request = pull_of(topic, queue, offset, code=RequestCode.PULL_COMMITTED)
    found: list[Message] = []
    while True:
        (reply,) = member.answer(request)
        if reply.code:
            return found
        found += walk_messages(reply.body)
        offset = int(reply.ext["nextBeginOffset"])
        request = pull_of(topic, queue, offset, code=RequestCode.PULL_COMMITTED)


def bodies(member: Member, topic: str = "t", queue: int = 0) -> list[bytes]:
    return [message.body for message in stored(member, topic, queue)]


def test_a_delayed_message_comes_when_its_time_is_over() -> None:
    group = BrokerGroup(3, config=CONFIG)
    leader = group.lead()
    (reply,) = leader.answer(delayed(b"later", 1))
    assert (reply.code, reply.ext["queueId"]) == (0, "0")
    leader.answer(delayed(b"much later", 2, 2), send("t", 0, b"now", 3))
    assert bodies(leader) == [b"now"]
    group.pass_time(900)
    assert bodies(leader) == [b"now"]
    group.pass_time(300)
    assert bodies(leader) == [b"now", b"later"]
    group.pass_time(3500)
    assert bodies(leader) == [b"now", b"later"]
    group.pass_time(500)
    for member in group.members.values():
        group.pass_time(100)
        assert bodies(member) == [b"now", b"later", b"much later"]
    group.pass_time(20_000)
    assert len(bodies(leader)) == 3


def test_what_comes_is_the_message_that_was_sent() -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    properties = {"DELAY": "1", "TAGS": "a", "KEYS": "k", "REAL_TOPIC": "forged"}
    leader.answer(send("t", 5, b"x"))
    sent = send_with("t", 3, b"body", properties)
    sent.ext |= {"h": "7", "g": "1234", "j": "2", "f": "2"}
    leader.answer(sent)
    (waiting,) = stored(leader, SCHEDULE, 0)
    assert find_property(waiting.properties, b"DELAY") == b"1"
    assert find_property(waiting.properties, b"REAL_TOPIC") == b"t"
    group.pass_time(1200)
    (message,) = stored(leader, "t", 3)
    assert message.body == b"body"
    assert (message.flag, message.born_ms, message.sys_flag, message.reconsume_times) == (
        7,
        1234,
        2,
        2,
    )
    assert message.born_host == waiting.born_host == HOST
    assert message.store_ms >= waiting.store_ms + 1000
    for name, value in ((b"TAGS", b"a"), (b"KEYS", b"k"), (b"REAL_TOPIC", b"t"), (b"DELAY", b"")):
        assert find_property(message.properties, name) == value
    (reply,) = leader.answer(pull_of("t", 3, 0, tags="a"))
    assert reply.code == 0, "its tags count where it is delivered"


def test_a_levels_queue_says_when_its_messages_are_due() -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    leader.answer(delayed(b"x", 2))
    (waiting,) = stored(leader, SCHEDULE, 1)
    units = leader.broker.queues.units((SCHEDULE_TOPIC, 1), 0, 1)
    assert units[0][2] == waiting.store_ms + 5000, "as RocketMQ's consume queues have it"


def test_levels_beyond_the_last_are_the_last_and_none_is_none() -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    leader.answer(delayed(b"a", 99), delayed(b"b", 0, 2), delayed(b"c", -3, 3))
    assert bodies(leader) == [b"b", b"c"]
    assert bodies(leader, SCHEDULE, 1) == [b"a"]
    (reply,) = leader.answer(send_with("t", 0, b"", {"DELAY": "soon"}))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "DELAY is a level 1..2" in (reply.remark or "")


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_new_leader_goes_on_behind_what_is_in_the_log(is_lost: bool) -> None:
    group = BrokerGroup(3, config=CONFIG)
    leader = group.lead()
    for number in range(10):
        leader.answer(delayed(b"%d" % number, 1))
        group.pass_time(50)
    group.pass_time(600)
    done = len(bodies(leader))
    assert 0 < done < 10
    if is_lost:
        group.cut = {"n0"}  # it delivers more, and nobody has it
        group.pass_time(150)
    else:
        group.paused = group.cut = {"n0"}
    new = group.lead("n1")
    group.pass_time(2000)
    assert bodies(new) == [b"%d" % number for number in range(10)]
    group.cut = group.paused = set()
    group.pass_time(2000)
    for member in group.members.values():
        assert bodies(member) == [b"%d" % number for number in range(10)]


def test_a_leader_that_leads_again_forgets_deliveries_that_were_truncated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = BrokerGroup(3, config=CONFIG)
    leader = group.lead()
    leader.answer(delayed(b"a", 1), delayed(b"b", 1, 2))
    group.pass_time(800)
    group.cut = {"n0"}
    committed = leader.core.ledger.commit_index
    group.pass_time(250)
    assert leader.core.log.end_index > committed, "delivered, and nobody has it"
    for name in ("n1", "n2"):
        monkeypatch.setattr(group.members[name].broker._delays, "deliver", lambda *_: None)
    between = group.lead("n1")
    group.cut = set()
    group.pass_time(500)
    assert bodies(leader) == []
    between.core.transfer("n0", group.now_ms)
    group.lead("n0")
    group.pass_time(300)
    assert bodies(leader) == [b"a", b"b"]


@pytest.mark.parametrize("seed", range(12))
def test_no_message_comes_twice_or_never_through_crashes_and_cuts(seed: int) -> None:
    draw = Random(seed)
    group = BrokerGroup(3, config=CONFIG, raft=RaftConfig(push_bytes_max=300))
    group.lead()
    acknowledged: set[bytes] = set()
    for number in range(40):
        leaders = [m for m in group.members.values() if m.broker.is_ready]
        if leaders:
            leader = draw.choice(leaders)
            body = b"%d" % number
            replies = leader.answer(delayed(body, draw.choice((1, 1, 2)), number))
            acknowledged |= {body for reply in replies if reply.code == 0}
        what = draw.random()
        if what < 0.15:
            group.restart(draw.choice(sorted(group.members)))
        elif what < 0.3:
            group.cut = {draw.choice(sorted(group.members))}
        elif what < 0.5:
            group.cut = set()
        elif what < 0.6:
            draw.choice(list(group.members.values())).save_checkpoint()
        group.pass_time(draw.choice((10, 50, 200, 800)))
    group.cut = set()
    group.pass_time(12_000)
    (leader,) = [m for m in group.members.values() if m.broker.is_ready]
    came = bodies(leader)
    assert len(came) == len(set(came))
    waited = bodies(leader, SCHEDULE, 0) + bodies(leader, SCHEDULE, 1)
    assert sorted(came) == sorted(waited)
    assert acknowledged <= set(came)
    assert len(acknowledged) > 10


def test_the_progress_is_in_checkpoints_and_snapshots() -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    for number in range(3):
        leader.answer(delayed(b"%d" % number, 1))
    group.pass_time(1500)
    assert len(bodies(leader)) == 3
    checkpoint = leader.broker.take_checkpoint()
    assert checkpoint is not None
    offsets = decode_state(checkpoint.state).group_offsets
    assert offsets == {f"{SCHEDULE}@{DELIVERY_GROUP}": {0: 3}}
    assert leader.save_checkpoint()
    group.restart("n0", loses_unsynced=False)
    leader = group.lead()
    group.pass_time(3000)
    assert len(bodies(leader)) == 3
    (reply,) = leader.answer(Command(RequestCode.GET_ALL_DELAY_OFFSET, 45))
    assert b'"offsetTable":{1:3}' in bytes(reply.body)


def test_nobody_else_moves_the_progress() -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    leader.answer(send_with("t", 0, b"forged", {"FROM_DELAY": "0:41"}))
    body = encode_batch([BatchMessage(b"forged", b"FROM_DELAY\x010:42\x02KEYS\x01k\x02")])
    ext = SendMessageV2("g", "t", 0, batch=True).to_ext()
    assert (
        leader.answer(Command(RequestCode.SEND_BATCH_MESSAGE, 2, ext=ext, body=body))[0].code == 0
    )
    (reply,) = leader.answer(commit(DELIVERY_GROUP, SCHEDULE, 0, 43))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    first, second = stored(leader)
    assert not find_property(first.properties, b"FROM_DELAY")
    assert second.properties == b"KEYS\x01k\x02"
    leader.answer(delayed(b"x", 1))
    group.pass_time(1500)
    assert bodies(leader)[2:] == [b"x"]
    delivered = stored(leader)[2]
    assert find_property(delivered.properties, b"FROM_DELAY") == b"0:0"
    text = delivered.properties.replace(b"0:0", b"0:9").decode()
    ext = SendMessageV2("g", "t", 0, properties=text).to_ext()
    leader.answer(Command(RequestCode.SEND_MESSAGE_V2, 3, ext=ext, body=b"sent on"))
    leader.answer(delayed(b"y", 1))
    group.pass_time(1500)
    assert bodies(leader)[3:] == [b"sent on", b"y"]


def test_a_batch_may_not_be_delayed() -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    body = encode_batch([BatchMessage(b"a"), BatchMessage(b"b", b"DELAY\x011\x02")])
    ext = SendMessageV2("g", "t", 0, batch=True).to_ext()
    (reply,) = leader.answer(Command(RequestCode.SEND_BATCH_MESSAGE, 2, ext=ext, body=body))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "batch" in (reply.remark or "")


def test_a_message_without_room_for_its_delivery_is_refused() -> None:
    group = BrokerGroup(1, config=replace(CONFIG, properties_bytes_max=200))
    leader = group.lead()
    for filler, code in ((80, 0), (115, ResponseCode.MESSAGE_ILLEGAL)):
        properties = {"DELAY": "1", "KEYS": "k" * filler}
        assert leader.answer(send_with("t", 0, b"", properties))[0].code == code
    for body_bytes in range(3500, 4096, 7):
        leader.answer(send_with("t", 0, bytes(body_bytes), {"DELAY": "1"}))
    taken = len(bodies(leader, SCHEDULE, 0))
    assert taken > 1
    group.pass_time(3000)
    assert len(bodies(leader)) == taken


def test_many_that_are_due_at_once_come_in_steps_and_in_order() -> None:
    group = BrokerGroup(1, config=replace(CONFIG, deliveries_a_step_max=3))
    leader = group.lead()
    leader.answer(*[delayed(b"%03d" % number, 1, number) for number in range(50)])
    group.pass_time(1200)
    assert bodies(leader) == [b"%03d" % number for number in range(50)]


def test_what_the_core_refuses_comes_later() -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    leader.answer(delayed(b"a", 1), delayed(b"b", 1, 2))
    leader.broker.disk_full(True, group.now_ms)
    group.pass_time(2000)
    assert bodies(leader) == []
    leader.broker.disk_full(False, group.now_ms)
    group.pass_time(500)
    assert bodies(leader) == [b"a", b"b"]


def test_a_wall_clock_that_was_set_back_holds_nobody_up_for_long() -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    leader.answer(delayed(b"x", 1))
    group.wall_ms -= 3_600_000
    group.pass_time(100)
    assert bodies(leader) == [b"x"], "not in an hour"


def test_what_a_plain_log_had_delivered_is_not_delivered_again() -> None:
    plain_log: dict[int, bytes] = {}
    position = 0

    def put(topic: bytes, queue: int, offset: int, store_ms: int, properties: bytes) -> None:
        nonlocal position
        message = Message(
            topic,
            queue,
            offset,
            position,
            b"%d" % offset,
            properties,
            0,
            0,
            0,
            HOST,
            store_ms,
            HOST,
        )
        plain_log[position] = encode_message(message)
        position += len(plain_log[position])

    waiting = b"DELAY\x012\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02"
    start_ms = WALL_MS - 60_000
    put(SCHEDULE_TOPIC, 1, 0, start_ms, waiting)
    put(SCHEDULE_TOPIC, 1, 1, start_ms + 3000, waiting)
    put(b"t", 0, 0, start_ms + 5000, b"REAL_TOPIC\x01t\x02")
    group = BrokerGroup(1, config=CONFIG, plain_log=plain_log)
    leader = group.lead()
    group.pass_time(500)
    assert bodies(leader) == [b"0", b"1"], "the second was still to come"
    leader.save_checkpoint()
    group.restart("n0", loses_unsynced=False)
    leader = group.lead()
    group.pass_time(3000)
    assert bodies(leader) == [b"0", b"1"]
