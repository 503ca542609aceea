"""A group that is upgraded from a plain commit log keeps its messages and its offsets."""

from __future__ import annotations

import struct

from broker_group import FILE_BYTES, BrokerGroup, Member, about, max_offset, min_offset, pull, send

from shaketable.system.broker.limits import DataFile
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.store.message import Message, encode_message, walk_messages

FIRST_FILE = 3 * FILE_BYTES
"""Files in front of it have expired, and with them the first messages of queue 0."""
PLAIN_BLANK = struct.Struct(">iI")


def plain_log(*, sys_flags: dict[int, int] | None = None) -> dict[int, bytes]:
    """Two files of messages: queue 0 goes on at offset 7, queue 1 begins."""
    found: dict[int, bytes] = {}
    position = FIRST_FILE
    offsets = {0: 7, 1: 0}
    for number in range(12):
        queue = number % 2
        sys_flag = (sys_flags or {}).get(number, 0)
        message = Message(
            b"old",
            queue,
            offsets[queue],
            position,
            b"native %02d" % number + bytes(400),
            b"TAGS\x01x\x02",
            sys_flag=sys_flag,
            store_ms=1_600_000_000_000,
        )
        size = len(encode_message(message))
        end = (position // FILE_BYTES + 1) * FILE_BYTES
        if position + size + PLAIN_BLANK.size > end:
            found[position] = PLAIN_BLANK.pack(end - position, 0xCBD43194)
            position = end
        fields = {name: getattr(message, name) for name in message.__slots__}
        found[position] = encode_message(Message(**{**fields, "physical_offset": position}))
        position += size
        if sys_flag == 0:
            offsets[queue] += 1
    return found


def bodies(member: Member, queue: int, offset: int, *, committed: bool = False) -> list[bytes]:
    (reply,) = member.answer(pull("old", queue, offset, committed=committed))
    return [message.body.rstrip(b"\0") for message in walk_messages(reply.body)]


def test_old_messages_stay_readable_and_new_ones_go_on_behind_them() -> None:
    group = BrokerGroup(3, plain_log=plain_log())
    assert group.members["n0"].broker.take_checkpoint() is None, "not before all are dispatched"
    leader = group.lead()
    (_, units) = leader.broker.queues.units_since_checkpoint()[b"old", 1]
    assert int.from_bytes(units[12:20], "big") == ord("x"), "the hash of the tag"
    assert leader.log.start.position == FIRST_FILE + 2 * FILE_BYTES
    replies = leader.answer(min_offset("old", 0), max_offset("old", 0), max_offset("old", 1))
    assert [reply.ext["offset"] for reply in replies] == ["7", "13", "6"]
    assert bodies(leader, 0, 7)[:2] == [b"native 00", b"native 02"]
    assert bodies(leader, 1, 5) == [b"native 11"]
    (reply,) = leader.answer(send("old", 0, b"new"))
    assert (reply.code, reply.ext["queueOffset"]) == (0, "13")
    group.pass_time(100)
    for member in group.members.values():
        assert bodies(member, 0, 12, committed=True) == [b"native 10", b"new"]
    assert leader.answer(pull("old", 0, 6))[0].code == ResponseCode.PULL_OFFSET_MOVED


def test_an_upgraded_broker_goes_on_from_its_checkpoint() -> None:
    group = BrokerGroup(1, plain_log=plain_log())
    group.lead()
    for _ in range(2):
        leader = group.members["n0"]
        leader.answer(send("old", 1, b"new"))
        assert leader.save_checkpoint()
        again = group.restart("n0")
        assert not again.broker._reput.is_plain_pending
        assert again.core.ledger.snapshot == leader.core.ledger.snapshot
        group.lead()
    assert bodies(again, 1, 4) == [b"native 09", b"native 11", b"new", b"new"]


def test_a_member_without_the_old_files_goes_on_behind_them() -> None:
    group = BrokerGroup(3, plain_log=plain_log())
    leader = group.lead()
    leader.answer(send("old", 0, b"new"))
    joined = group.join("n3")
    assert leader.answer(about(RequestCode.ADD_MEMBER, "n3", "127.0.0.1:4"))[0].code == 0
    group.pass_time(3000)
    assert [snapshot.end for snapshot in joined.installed] == [leader.log.start]
    assert joined.broker.queues.ranges()[b"old", 0] == (13, 14)
    assert bodies(joined, 0, 13, committed=True) == [b"new"]
    again = group.restart("n3")
    group.pass_time(500)
    assert again.broker.queues.ranges()[b"old", 0] == (13, 14)


def test_halves_of_old_transactions_have_no_place_in_a_queue() -> None:
    group = BrokerGroup(1, plain_log=plain_log(sys_flags={2: 4, 5: 12}))
    leader = group.lead()
    assert leader.broker.queues.ranges()[b"old", 0] == (7, 12)
    assert leader.broker.queues.ranges()[b"old", 1] == (0, 5)


def test_once_entries_go_the_plain_messages_are_gone_too() -> None:
    group = BrokerGroup(1, plain_log=plain_log())
    leader = group.lead()
    for _ in range(12):
        leader.answer(send("old", 0, bytes(500)))
    end = leader.log.log_end_at(7)
    leader.broker.disk_usage(0.1, [DataFile(end, 0)], group.now_ms, group.wall_ms)
    leader.pump()
    assert leader.log.start == end
    assert leader.broker.queues.ranges()[b"old", 1] == (6, 6)
    assert leader.answer(min_offset("old", 0))[0].ext["offset"] == "19"
    again = group.restart("n0")
    group.lead()
    assert again.answer(send("old", 1, b"new"))[0].ext["queueOffset"] == "6"
