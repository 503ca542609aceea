"""Messages by key, by unique key and by position, offsets by time: at the leader and elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from broker_group import FILE_BYTES, HOST, WALL_MS, BrokerGroup, Member, send
from consumer_requests import by_key, earliest, offset_at, send_with, view
from hypothesis import given
from hypothesis import strategies as st

from shaketable.system.broker.consume_queue import ConsumeQueues
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reading.key_items import message_at
from shaketable.system.broker.reading.queries import offset_by_time
from shaketable.system.raft.ledger import LogView
from shaketable.system.raft.protocol import Batch, LogEnd
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.store.entry import EntryBuilder, iter_dispatches
from shaketable.system.store.message import walk_messages

CONFIG = BrokerConfig(data_file_bytes=FILE_BYTES, store_host=HOST, key_items_max=1000)


def keyed_group(size: int = 1, **limits: object) -> BrokerGroup:
    """Messages 0 to 5, one a second, of keys "even" or "odd", "k0".., and unique keys "U0".."""
    group = BrokerGroup(size, config=replace(CONFIG, **limits))  # type: ignore[arg-type]
    leader = group.lead()
    for number in range(6):
        keys = f"{('even', 'odd')[number % 2]} k{number}"
        properties = {"KEYS": keys, "UNIQ_KEY": f"U{number}"}
        (reply,) = leader.answer(send_with("t", number % 3, b"%d" % number, properties))
        assert reply.code == 0
        group.wall_ms += 1000
    leader.answer(send_with("other", 0, b"other", {"KEYS": "even"}))
    return group


def found(member: Member, request: Command) -> list[bytes]:
    (reply,) = member.answer(request)
    bodies = [message.body for message in walk_messages(reply.body)]
    assert (reply.code == 0) == bool(bodies)
    if not bodies:
        assert reply.code == ResponseCode.QUERY_NOT_FOUND
        assert reply.remark
    return bodies


def test_messages_are_found_by_key_newest_first() -> None:
    group = keyed_group()
    leader = group.members["n0"]
    assert found(leader, by_key("t", "even")) == [b"4", b"2", b"0"]
    assert found(leader, by_key("t", "k3")) == [b"3"]
    assert found(leader, by_key("t", "U3")) == [b"3"]
    assert found(leader, by_key("other", "even")) == [b"other"]
    assert found(leader, by_key("t", "even", count=2)) == [b"4", b"2"]
    for nothing in (by_key("t", "none"), by_key("nowhere", "even"), by_key("t", "")):
        assert found(leader, nothing) == []


def test_the_index_and_what_is_not_in_it_yet_are_one() -> None:
    group = keyed_group()
    leader = group.members["n0"]
    assert leader.save_checkpoint()
    leader.answer(send_with("t", 0, b"6", {"KEYS": "even"}))
    assert found(leader, by_key("t", "even")) == [b"6", b"4", b"2", b"0"]
    leader.sync()
    group.restart("n0", loses_unsynced=False)
    leader = group.lead()
    assert found(leader, by_key("t", "even")) == [b"6", b"4", b"2", b"0"]


@pytest.mark.parametrize("is_saved", [False, True])
def test_times_are_told_apart_to_the_millisecond(is_saved: bool) -> None:
    group = keyed_group()
    leader = group.members["n0"]
    if is_saved:
        leader.save_checkpoint()
    third_ms = next(iter(walk_messages(leader.answer(by_key("t", "k2"))[0].body))).store_ms
    for begin_ms, end_ms, expected in (
        (third_ms, third_ms, [b"2"]),
        (third_ms + 1, third_ms + 1999, []),
        (third_ms + 1, third_ms + 2000, [b"4"]),
        (0, third_ms - 1, [b"0"]),
    ):
        assert found(leader, by_key("t", "even", begin_ms=begin_ms, end_ms=end_ms)) == expected


def test_a_query_for_a_unique_key_finds_no_other_keys() -> None:
    group = keyed_group()
    leader = group.members["n0"]
    assert found(leader, by_key("t", "U2", is_unique=True)) == [b"2"]
    assert found(leader, by_key("t", "k2", is_unique=True)) == []


def test_an_answer_says_what_is_newest_and_is_bounded() -> None:
    group = keyed_group(query_messages_max=2, query_bytes_max=300)
    leader = group.members["n0"]
    (reply,) = leader.answer(by_key("t", "even", count=1000))
    messages = list(walk_messages(reply.body))
    assert [message.body for message in messages] == [b"4", b"2"]
    assert reply.ext["indexLastUpdateTimestamp"] == str(messages[0].store_ms)
    assert reply.ext["indexLastUpdatePhyoffset"] == str(messages[0].physical_offset)
    group = keyed_group(query_bytes_max=1)
    assert found(group.members["n0"], by_key("t", "even")) == [b"4"]


def test_hashes_that_collide_are_told_apart() -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    leader.answer(send_with("t", 0, b"first", {"KEYS": "Aa"}))
    leader.answer(send_with("t", 0, b"second", {"KEYS": "BB"}))
    leader.save_checkpoint()
    assert found(leader, by_key("t", "Aa")) == [b"first"]
    assert found(leader, by_key("t", "BB")) == [b"second"]


def test_a_broker_without_an_index_says_so() -> None:
    group = BrokerGroup(1, config=replace(CONFIG, key_items_max=0))
    leader = group.lead()
    leader.answer(send_with("t", 0, b"x", {"KEYS": "k"}))
    (reply,) = leader.answer(by_key("t", "k"))
    assert reply.code == ResponseCode.QUERY_NOT_FOUND
    assert "messageIndexEnable=false" in (reply.remark or "")


def test_a_follower_finds_what_it_knows_to_be_committed() -> None:
    group = keyed_group(3)
    group.pass_time(300)
    follower = group.members["n2"]
    assert found(follower, by_key("t", "even")) == [b"4", b"2", b"0"]
    position = next(iter(walk_messages(follower.answer(by_key("t", "k1"))[0].body))).physical_offset
    (reply,) = follower.answer(view(position))
    assert [message.body for message in walk_messages(reply.body)] == [b"1"]


def test_a_message_is_found_by_the_id_that_its_sender_got() -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    ids = [leader.answer(send("t", 0, bytes(900), opaque))[0].ext["msgId"] for opaque in range(8)]
    for number, message_id in enumerate(ids):
        (reply,) = leader.answer(view(int(message_id[16:], 16)))
        (message,) = walk_messages(reply.body)
        assert message.queue_offset == number
        assert leader.answer(view(int(message_id[16:], 16), "t"))[0].code == 0
        assert leader.answer(view(int(message_id[16:], 16), "u"))[0].code != 0


def test_no_position_shows_anything_but_a_whole_committed_message() -> None:
    group = BrokerGroup(3, config=CONFIG, tail_bytes_max=1500)
    leader = group.lead()
    for number in range(12):
        leader.answer(send("t", 0, b"%d" % number + bytes(600)))
    positions = set()
    for position in range(-3, leader.core.log.end_position + 3):
        (reply,) = leader.answer(view(position))
        if reply.code == 0:
            (message,) = walk_messages(reply.body)
            assert message.physical_offset == position
            positions.add(position)
        else:
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "no committed message" in (reply.remark or "")
    assert len(positions) == 14, "the messages, and the leader's own two entries"
    group.cut = {"n1", "n2"}
    log = leader.core.log
    committed_end = log.end_position
    leader.ask(send("t", 0, b"not committed"))
    leader.pump()
    behind = committed_end + 48
    assert log.end_position > behind
    assert message_at(log, behind, committed_end) is None
    assert message_at(log, behind, log.end_position - 1) is None
    whole = message_at(log, behind, log.end_position)
    assert whole is not None
    assert whole[0].body == b"not committed"
    for far in (1 << 62, -(1 << 62)):
        assert message_at(log, far, log.end_position) is None


@pytest.mark.parametrize(
    "ext",
    [
        {"topic": "t"},
        {"topic": "t", "key": "k", "maxNum": "many"},
        {"offset": "99999999999999999999"},
    ],
)
def test_fields_that_are_no_good_are_refused_in_one_line(ext: dict[str, str]) -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    code = RequestCode.VIEW_MESSAGE_BY_ID if "offset" in ext else RequestCode.QUERY_MESSAGE
    (reply,) = leader.answer(Command(code, 1, ext=ext))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert reply.remark
    assert "\n" not in reply.remark


def test_offsets_are_found_by_time() -> None:
    group = BrokerGroup(1, config=CONFIG)
    leader = group.lead()
    for number in range(5):
        group.wall_ms = WALL_MS + number // 2 * 1000
        leader.answer(send("t", 0, b"%d" % number))
    # stored at +0, +0, +1000, +1000, +2000
    for after_ms, boundary, expected in (
        (-1, None, 0),
        (0, None, 0),
        (1, "LOWER", 2),
        (1000, "LOWER", 2),
        (2000, None, 4),
        (2001, None, 5),
        (-1, "UPPER", 0),
        (0, "UPPER", 1),
        (1999, "UPPER", 3),
        (9999, "UPPER", 4),
    ):
        (reply,) = leader.answer(offset_at("t", 0, WALL_MS + after_ms, boundary))
        assert (reply.code, reply.ext["offset"]) == (0, str(expected)), (after_ms, boundary)
    (reply,) = leader.answer(offset_at("t", 9, WALL_MS))
    assert reply.ext["offset"] == "0"
    (reply,) = leader.answer(offset_at("t", 0, WALL_MS, "MIDDLE"))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    (reply,) = leader.answer(earliest("t", 0))
    assert reply.ext["timestamp"] == str(WALL_MS)
    (reply,) = leader.answer(earliest("t", 9))
    assert reply.ext["timestamp"] == "-1"


def test_only_the_leader_tells_offsets() -> None:
    group = keyed_group(3)
    group.pass_time(300)
    for request in (offset_at("t", 0, WALL_MS), earliest("t", 0)):
        (reply,) = group.members["n1"].answer(request)
        assert (reply.code, reply.ext["leaderId"]) == (ResponseCode.SERVICE_NOT_AVAILABLE, "n0")


class _Nowhere:
    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        raise AssertionError("everything is in the tail")

    def read(self, position: int, size: int) -> bytes:
        raise AssertionError("everything is in the tail")


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(-2, 22))
def test_offsets_by_time_are_those_of_a_plain_search(steps_ms: list[int], wall_ms: int) -> None:
    times = sorted(steps_ms)
    builder = EntryBuilder(LogEnd(), 0, 1 << 20, HOST)
    for offset, store_ms in enumerate(times):
        builder.add(b"t", 0, offset, b"", store_ms=store_ms)
    log, queues = LogView(_Nowhere()), ConsumeQueues()
    for batch in builder.take():
        log.append(batch)
        for queue, offset, position, size, tags_code, _, _ in iter_dispatches(
            batch.data, batch.position
        ):
            queues.append(queue, offset, position, size, tags_code)
    lower = next((at for at, time in enumerate(times) if time >= wall_ms), len(times))
    assert offset_by_time(queues, log, (b"t", 0), wall_ms) == lower
    upper = max((at for at, time in enumerate(times) if time <= wall_ms), default=0)
    assert offset_by_time(queues, log, (b"t", 0), wall_ms, is_upper=True) == upper
