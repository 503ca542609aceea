"""Appends that name the offset they are to get: exact behind whatever is under way."""

from __future__ import annotations

import pytest
from broker_group import HOST, BrokerGroup, Member, max_offset, send

from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.mutants import load
from shaketable.system.raft.protocol import RaftConfig
from shaketable.system.remoting.codes import RequestCode, ResponseCode, outcome_of
from shaketable.system.remoting.command import ONEWAY_FLAG, Command
from shaketable.system.remoting.requests import ExpectedOffset, SendMessageV2

MOVED = ResponseCode.QUEUE_END_MOVED


def append_at(
    offset: int, body: bytes = b"x", *, opaque: int = 1, flag: int = 0, **fields: object
) -> Command:
    sent = SendMessageV2("g", **{"topic": "t", "queue_id": 0, **fields})  # type: ignore[arg-type]
    ext = sent.to_ext() | ExpectedOffset(offset).to_ext()
    return Command(RequestCode.APPEND_AT, opaque, flag, ext=ext, body=body)


def codes(member: Member, *commands: Command) -> list[int]:
    return [reply.code for reply in member.answer(*commands)]


def test_it_is_stored_at_the_offset_that_it_names_or_not_at_all() -> None:
    leader = BrokerGroup(3).lead()
    (first,) = leader.answer(append_at(0))
    assert (first.code, first.ext["queueOffset"]) == (0, "0")
    for wrong in (0, 2, -1, 2**60):
        (refused,) = leader.answer(append_at(wrong))
        assert refused.code == MOVED
        assert outcome_of(refused.code) == "fail"
        assert refused.remark == "t/0 does not end at the expected offset"
        assert refused.ext["queueOffset"] == "1", "the offset that the next message gets"
    assert codes(leader, append_at(1)) == [0]
    (end,) = leader.answer(max_offset("t", 0))
    assert end.ext["offset"] == "2"


def test_of_two_in_one_piece_that_name_one_offset_one_is_stored() -> None:
    leader = BrokerGroup(3).lead()
    one, other = append_at(0, opaque=1), append_at(0, opaque=2)
    assert sorted(codes(leader, one, other)) == [0, MOVED]
    assert sorted(codes(leader, append_at(1), append_at(2), append_at(2))) == [0, 0, MOVED]


def test_it_counts_what_nobody_acknowledged_yet() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    group.cut = {"n1", "n2"}
    leader.ask(send("t", 0, b"under way"), append_at(0, opaque=2), append_at(1, opaque=3))
    leader.ask(append_at(1, opaque=4), connection=2)
    leader.pump()
    assert [(r.opaque, r.code) for r in leader.replies.pop(1)] == [(2, MOVED)]
    assert [(r.opaque, r.code) for r in leader.replies.pop(2)] == [(4, MOVED)]
    group.cut = set()
    group.pass_time(1000)
    assert [(r.opaque, r.code) for r in leader.replies.pop(1)] == [(1, 0), (3, 0)]


def test_what_the_core_refuses_is_in_nobodys_way() -> None:
    config = BrokerConfig(data_file_bytes=1 << 20, store_host=HOST)
    group = BrokerGroup(3, config=config, raft=RaftConfig(uncommitted_bytes_max=2000))
    leader = group.lead()
    group.cut = {"n1", "n2"}
    leader.ask(send("t", 0, bytes(2500)))
    leader.pump()
    leader.ask(append_at(1, opaque=2), append_at(2, opaque=3))
    leader.pump()
    busy = ResponseCode.SYSTEM_BUSY
    assert [(r.opaque, r.code) for r in leader.replies.pop(1)] == [(2, busy), (3, MOVED)]
    group.cut = set()
    group.pass_time(1000)
    leader.replies.clear()
    assert codes(leader, append_at(2), append_at(1), append_at(2)) == [MOVED, 0, 0]


def test_only_a_leader_takes_it() -> None:
    group = BrokerGroup(3)
    group.lead("n0").answer(append_at(0))
    assert codes(group.members["n1"], append_at(1)) == [ResponseCode.SERVICE_NOT_AVAILABLE]


def test_a_new_leader_goes_by_the_whole_log() -> None:
    group = BrokerGroup(3)
    group.lead("n0").answer(append_at(0), append_at(1))
    group.cut = {"n0"}
    for _ in range(100):
        group.pass_time(100)
        leaders = [m for m in group.members.values() if m.name != "n0" and m.broker.is_ready]
        if leaders:
            break
    assert codes(leaders[0], append_at(1), append_at(2)) == [MOVED, 0]


@pytest.mark.parametrize(
    "fields",
    [{"topic": "%RETRY%g"}, {"properties": "DELAY\x013\x02"}, {"batch": True}, {"topic": ""}],
)
def test_what_would_go_elsewhere_is_illegal(fields: dict[str, object]) -> None:
    leader = BrokerGroup(3).lead()
    assert codes(leader, append_at(0, **fields)) == [ResponseCode.MESSAGE_ILLEGAL]


def test_without_an_expected_offset_it_is_illegal() -> None:
    leader = BrokerGroup(3).lead()
    command = append_at(0)
    del command.ext["expectedOffset"]
    assert codes(leader, command) == [ResponseCode.MESSAGE_ILLEGAL]


def test_one_way_is_stored_on_the_same_condition_and_not_answered() -> None:
    leader = BrokerGroup(3).lead()
    assert codes(leader, append_at(0, flag=ONEWAY_FLAG), append_at(0, flag=ONEWAY_FLAG)) == []
    assert codes(leader, append_at(1)) == [0]


def test_pending_appends_are_bounded_for_it_too() -> None:
    config = BrokerConfig(data_file_bytes=4096, store_host=HOST, pending_sends_max=1)
    group = BrokerGroup(3, config=config)
    leader = group.lead()
    group.cut = {"n1", "n2"}
    leader.ask(append_at(0, opaque=1), append_at(1, opaque=2))
    leader.pump()
    assert [(r.opaque, r.code) for r in leader.replies.pop(1)] == [(2, ResponseCode.SYSTEM_BUSY)]


def test_the_planted_bug_stores_both() -> None:
    group = BrokerGroup(3)
    member = group.members["n0"]
    member.broker = load("condition-on-committed").broker(member.core, group.config)
    leader = group.lead()
    assert codes(leader, append_at(0, opaque=1), append_at(0, opaque=2)) == [0, 0]
