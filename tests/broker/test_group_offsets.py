"""Offsets that consumer groups commit: replicated, kept, and never going back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from broker_group import FILE_BYTES, HOST, BrokerGroup, Member, about, send
from group_requests import commit, committed, delete_topic, query
from hypothesis import given
from hypothesis import strategies as st

from shaketable.system.broker.broker_state import BrokerState, DamagedBrokerState
from shaketable.system.broker.consume_queue import Ranges
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.groups import offset_commits
from shaketable.system.broker.groups.group_offsets import OffsetTable
from shaketable.system.broker.groups.offset_commits import encode_bodies
from shaketable.system.broker.limits import BrokerConfig, DataFile, ExpiryConfig
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.raft.protocol import DiskFullError, PushResponse, Role
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import PullMessage

RESERVED_MS = 1000
EVENTS = b"RMQ_SYS_DLEDGER_EVENT"


def expiring(**limits: object) -> BrokerConfig:
    return BrokerConfig(
        data_file_bytes=FILE_BYTES,
        store_host=HOST,
        expiry=ExpiryConfig(reserved_ms=RESERVED_MS),
        **limits,  # type: ignore[arg-type]
    )


def acknowledged(member: Member, group: str, topic: str, queue: int, offset: int) -> int:
    (reply,) = member.answer(commit(group, topic, queue, offset))
    assert reply.code == 0, reply.remark
    return offset


def expire_all(member: Member) -> None:
    """Let all data files but the last go, with every entry about offsets in them."""
    for number in range(20):
        assert member.answer(send("filler", 0, b"%d" % number + bytes(500)))[0].code == 0
    last = None
    for index in range(member.log.first_index, member.log.end.index + 1):
        end = member.log.log_end_at(index)
        if end.position <= member.log.end.position // FILE_BYTES * FILE_BYTES:
            last = end
    assert last is not None
    group = member.group
    files = [DataFile(last, group.wall_ms - RESERVED_MS)]
    member.broker.disk_usage(0.1, files, group.now_ms, group.wall_ms)
    member.pump()
    assert member.log.start == last


def transfer_to(group: BrokerGroup, source: Member, target: str) -> Member:
    source.ask(about(RequestCode.TRANSFER_LEADERSHIP, target))
    source.pump()
    group.settle()
    return group.lead(target)


def after_troubles() -> list[int | None]:
    """Commit offset 9, and ask for it behind each thing that could lose it."""
    group = BrokerGroup(3, config=expiring())
    leader = group.lead()
    acknowledged(leader, "g", "t", 0, 5)
    group.pass_time(100)
    group.cut = {"n2"}
    acknowledged(leader, "g", "t", 0, 9)
    found = [committed(leader, "g", "t", 0)]
    expire_all(leader)
    group.cut = set()
    group.pass_time(3000)
    assert group.members["n2"].installed, "it was to get a snapshot"
    heir = transfer_to(group, leader, "n2")
    found.append(committed(heir, "g", "t", 0))  # behind a snapshot and a change of leader
    group.pass_time(100)
    assert heir.save_checkpoint()
    group.members["n1"].save_checkpoint()
    group.restart("n1")
    group.pass_time(500)
    found.append(committed(transfer_to(group, heir, "n1"), "g", "t", 0))
    for name in ("n0", "n1", "n2"):
        group.restart(name)
    group.pass_time(3000)
    (leads,) = [one for one in group.members.values() if one.core.role is Role.LEADER]
    found.append(committed(leads, "g", "t", 0))  # behind a loss of power everywhere
    return found


def test_an_acknowledged_commit_survives_leaders_snapshots_and_restarts() -> None:
    assert after_troubles() == [9, 9, 9, 9]


def _state_without_offsets(tables: BrokerTables, ranges: Ranges) -> BrokerState:
    return BrokerState(dict(ranges), tables.topics.state(), {})


def _restore_topics_alone(tables: BrokerTables, state: BrokerState) -> None:
    tables.topics.restore(state.topics)


def _apply_topics_alone(table: OffsetTable, body: bytes) -> None:
    del table, body


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (BrokerTables, "state", _state_without_offsets),
        (BrokerTables, "restore", _restore_topics_alone),
        (OffsetTable, "apply", _apply_topics_alone),
    ],
    ids=["not in snapshots", "not taken from snapshots", "not applied"],
)
def test_bugs_that_lose_commits_are_seen(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, bug)
    assert after_troubles() != [9, 9, 9, 9]


def cut_off_commit() -> tuple[int, int | None]:
    """Commit at a leader that is cut off; return the answer's code and what the heir knows."""
    group = BrokerGroup(3)
    leader = group.lead()
    acknowledged(leader, "g", "t", 0, 5)
    group.pass_time(100)
    group.cut = {"n0"}
    replies = leader.answer(commit("g", "t", 0, 9))
    heir = group.lead("n1")
    group.pass_time(3000)
    replies += leader.replies.pop(1, [])
    return replies[0].code, committed(heir, "g", "t", 0)


def test_a_commit_that_the_group_does_not_have_is_not_acknowledged() -> None:
    code, known = cut_off_commit()
    assert code == ResponseCode.SYSTEM_ERROR, "unknown: it may come back with the leader"
    assert known == 5


def test_a_commit_answered_too_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(events: EventLog, connection: int, asked: Command, now_ms: float) -> None:
        del now_ms
        events._outbox.answer(connection, asked)

    monkeypatch.setattr(EventLog, "answer_when_acknowledged", at_once)
    code, known = cut_off_commit()
    assert (code, known) == (0, 5), "acknowledged and gone"


def test_commits_of_one_turn_share_an_entry_and_are_each_answered() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    end = leader.log.end.index
    replies = leader.answer(*(commit("g", "t", number, 10, number) for number in range(8)))
    assert [(reply.opaque, reply.code) for reply in replies] == [(n, 0) for n in range(8)]
    assert leader.log.end.index == end + 1
    assert [committed(leader, "g", "t", number) for number in (0, 7, 8)] == [10, 10, None]
    leader.ask(commit("g", "t", 0, 11), connection=1)
    leader.ask(commit("h", "t", 0, 12), connection=2)
    leader.pump()
    assert leader.log.end.index == end + 2, "of two connections too"
    assert [leader.replies.pop(one)[0].code for one in (1, 2)] == [0, 0]


def test_many_commits_of_one_turn_take_as_many_entries_as_they_need() -> None:
    group = BrokerGroup(1)  # of data files of 4 KiB
    leader = group.lead()
    asked = [commit(f"group-{n:03d}" + "x" * 100, "t" * 100, n, n * n, n) for n in range(60)]
    end = leader.log.end.index
    assert [reply.code for reply in leader.answer(*asked)] == [0] * 60
    assert leader.log.end.index > end + 1
    for n in (0, 31, 59):
        assert committed(leader, f"group-{n:03d}" + "x" * 100, "t" * 100, n) == n * n


def test_the_last_commit_of_a_turn_wins_and_a_client_may_set_it_back() -> None:
    leader = BrokerGroup(1).lead()
    leader.answer(commit("g", "t", 0, 5), commit("g", "t", 0, 9))
    assert committed(leader, "g", "t", 0) == 9
    leader.answer(commit("g", "t", 0, 3))
    assert committed(leader, "g", "t", 0) == 3


def test_a_oneway_commit_is_kept_and_not_written_twice() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    assert leader.answer(commit("g", "t", 0, 7, oneway=True)) == []
    assert committed(leader, "g", "t", 0) == 7
    end = leader.log.end.index
    leader.answer(commit("g", "t", 0, 7, oneway=True))
    assert leader.log.end.index == end
    leader.is_slow_disk = True
    for offset in (8, 7):  # back while the first is on its way: not the same as what is applied
        leader.ask(commit("g", "t", 0, offset, oneway=True))
        leader.pump()
    leader.is_slow_disk = False
    leader.sync()
    assert committed(leader, "g", "t", 0) == 7
    assert leader.log.end.index == end + 2


def test_a_pull_commits_the_offset_that_it_carries() -> None:
    leader = BrokerGroup(1).lead()
    assert leader.answer(send("t", 0, b"one"))[0].code == 0
    fields = PullMessage("g", "t", 0, 0, sys_flag=1, commit_offset=1)
    asked = Command(RequestCode.PULL_MESSAGE, 1, ext=fields.to_ext())
    assert leader.answer(asked)[0].code == 0
    assert committed(leader, "g", "t", 0) == 1
    fields.sys_flag, fields.commit_offset = 0, 5
    leader.answer(Command(RequestCode.PULL_MESSAGE, 1, ext=fields.to_ext()))
    assert committed(leader, "g", "t", 0) == 1


def test_a_new_group_begins_at_the_begin_while_everything_is_there() -> None:
    group = BrokerGroup(1, config=expiring())
    leader = group.lead()
    leader.answer(send("filler", 0, b""))
    (reply,) = leader.answer(query("new", "filler", 0))
    assert (reply.code, reply.ext["offset"]) == (0, "0")
    (reply,) = leader.answer(query("new", "filler", 0, zero=False))
    assert reply.code == ResponseCode.QUERY_NOT_FOUND
    expire_all(leader)
    (reply,) = leader.answer(query("new", "filler", 0))
    assert reply.code == ResponseCode.QUERY_NOT_FOUND


def test_only_the_leader_takes_commits_and_answers_queries() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    acknowledged(leader, "g", "t", 0, 5)
    for asked in (commit("g", "t", 0, 9), query("g", "t", 0)):
        (reply,) = group.members["n1"].answer(asked)
        assert (reply.code, reply.ext["leaderId"]) == (ResponseCode.SERVICE_NOT_AVAILABLE, "n0")
    group.cut = {"n0"}
    group.lead("n1")
    replies = leader.answer(query("g", "t", 0))
    group.pass_time(3000)
    replies += leader.replies.pop(1, [])
    assert [reply.code for reply in replies] == [ResponseCode.SERVICE_NOT_AVAILABLE], "it is stale"


@pytest.mark.parametrize(
    "asked",
    [
        commit("", "t", 0, 1),
        commit("g@t", "t", 0, 1),
        commit("g", "t t", 0, 1),
        commit("g", "t", -1, 1),
        commit("g", "t", 1 << 20, 1),
        commit("g", "t", 0, -1),
        commit("g" * 256, "t", 0, 1),
        Command(RequestCode.UPDATE_CONSUMER_OFFSET, 1, ext={"consumerGroup": "g"}),
    ],
)
def test_a_commit_that_is_no_good_is_refused_and_nothing_is_written(asked: Command) -> None:
    leader = BrokerGroup(1).lead()
    end = leader.log.end.index
    (reply,) = leader.answer(asked)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert leader.log.end.index == end


def test_so_many_offsets_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commits, "KEYS_MAX", 3)
    monkeypatch.setattr(offset_commits, "OFFSETS_MAX", 5)
    leader = BrokerGroup(1).lead()
    codes = [leader.answer(commit(f"g{n}", "t", 0, 1))[0].code for n in range(4)]
    assert codes == [0, 0, 0, ResponseCode.NO_PERMISSION]
    codes = [leader.answer(commit("g0", "t", n, 1))[0].code for n in range(1, 4)]
    assert codes == [0, 0, ResponseCode.NO_PERMISSION]
    assert acknowledged(leader, "g0", "t", 2, 7) == committed(leader, "g0", "t", 2)
    assert leader.answer(commit("g0", "t", 9, 1, oneway=True)) == []
    assert committed(leader, "g0", "t", 9) is None


NAMES = st.text("abc@%_", min_size=1, max_size=120)
TURNS = st.dictionaries(
    NAMES, st.dictionaries(st.integers(0, 65_535), st.integers(0, 2**63 - 1), min_size=1)
)


@given(TURNS, st.integers(200, 400))
def test_bodies_fit_and_say_what_was_committed(turn: dict[str, dict[int, int]], most: int) -> None:
    table = OffsetTable()
    bodies = encode_bodies(turn, most)
    for body in bodies:
        assert 0 < len(body) <= most
        table.apply(body)
    assert table.state() == turn
    assert table.count == sum(map(len, turn.values()))


def test_commits_of_a_leader_that_is_one_no_more_are_refused() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.ask(commit("g", "t", 0, 9))
    higher = PushResponse(leader.core.term + 1, "n1", False, -1, 0)
    leader.broker.receive(higher, group.now_ms)
    leader.pump()
    assert [reply.code for reply in leader.replies.pop(1)] == [ResponseCode.SERVICE_NOT_AVAILABLE]


def test_offsets_go_with_their_topic() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.answer(send("t", 0, b"one"), send("u", 0, b"one"))
    acknowledged(leader, "g", "t", 0, 1)
    acknowledged(leader, "g", "u", 0, 1)
    assert leader.answer(delete_topic("t"))[0].code == 0
    group.pass_time(500)
    for member in group.members.values():
        assert member.broker._reput.tables.offsets.state() == {"u@g": {0: 1}}


@pytest.mark.parametrize("oneway", [False, True])
def test_an_offset_committed_just_before_its_topic_is_deleted_goes_with_it(oneway: bool) -> None:
    """Both requests are of one step, whose commits share entries."""
    group = BrokerGroup(3)
    leader = group.lead()
    leader.answer(send("t", 0, b"one"))
    leader.ask(commit("g", "t", 0, 1, oneway=oneway), commit("g", "u", 0, 2), connection=2)
    codes = [reply.code for reply in leader.answer(delete_topic("t"), commit("h", "t", 0, 3))]
    assert codes == [ResponseCode.SUCCESS] * 2
    assert len(leader.replies.pop(2)) == 2 - oneway
    group.pass_time(500)
    for member in group.members.values():
        offsets = member.broker._reput.tables.offsets.state()
        assert offsets == {"u@g": {0: 2}, "t@h": {0: 3}}, "what came after the deletion stays"


def test_a_commit_and_a_deletion_that_the_core_refuses_are_refused_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = BrokerGroup(1).lead()
    leader.answer(send("t", 0, b"one"))
    acknowledged(leader, "g", "t", 0, 1)

    def full(*_: object) -> None:
        raise DiskFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(type(leader.core), "append", full)
        replies = leader.answer(commit("g", "t", 0, 2), delete_topic("t"))
    assert [reply.code for reply in replies] == [ResponseCode.SYSTEM_BUSY] * 2
    assert committed(leader, "g", "t", 0) == 1


def pull_and_commit(group: str, topic: str, offset: int) -> Command:
    fields = PullMessage(group, topic, 0, 0, sys_flag=1, commit_offset=offset)
    return Command(RequestCode.PULL_MESSAGE, 1, ext=fields.to_ext())


def make_again(leader: Member, topic: str) -> None:
    """Delete a topic, and let a message make it again."""
    assert leader.answer(delete_topic(topic))[0].code == 0
    assert leader.answer(send(topic, 0, b"two"))[0].code == 0


def test_the_same_offset_is_committed_in_a_topic_that_was_made_again() -> None:
    leader = BrokerGroup(1).lead()
    leader.answer(send("t", 0, b"one"))
    acknowledged(leader, "g", "t", 0, 1)
    make_again(leader, "t")
    leader.answer(pull_and_commit("g", "t", 1))
    assert committed(leader, "g", "t", 0) == 1


def test_the_same_offset_is_committed_while_other_commits_are_always_on_their_way() -> None:
    leader = BrokerGroup(1).lead()
    leader.answer(send("t", 0, b"one"))
    leader.is_slow_disk = True
    for number, asked in enumerate((commit("g", "t", 0, 1), delete_topic("t"))):
        leader.ask(asked, connection=2)
        leader.pump()
        leader._write()  # it is durable, and applied with the next turn: that of another commit
        leader.ask(commit(f"other{number}", "u", 0, 1), connection=2)
        leader.pump()
    leader.ask(send("t", 0, b"two"), pull_and_commit("g", "t", 1), connection=2)
    leader.pump()
    leader.is_slow_disk = False
    leader.sync()
    assert committed(leader, "g", "t", 0) == 1


@pytest.mark.parametrize("is_applied", [True, False])
def test_the_same_offset_is_committed_while_the_deletion_is_on_its_way(is_applied: bool) -> None:
    leader = BrokerGroup(1).lead()
    leader.answer(send("t", 0, b"one"))
    leader.is_slow_disk = not is_applied
    leader.ask(commit("g", "t", 0, 1), connection=2)
    leader.pump()
    leader.is_slow_disk = True
    leader.ask(delete_topic("t"), send("t", 0, b"two"), pull_and_commit("g", "t", 1), connection=2)
    leader.pump()
    leader.ask(pull_and_commit("g", "t", 1), connection=2)  # this one is not written again
    leader.pump()
    leader.is_slow_disk = False
    leader.sync()
    assert committed(leader, "g", "t", 0) == 1
    assert leader.broker._groups.offsets_version == 2


def test_a_refused_append_forgets_no_commit_that_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = BrokerGroup(1).lead()
    acknowledged(leader, "g", "t", 0, 5)
    leader.is_slow_disk = True
    leader.ask(commit("g", "t", 0, 9, oneway=True), connection=2)
    leader.pump()

    def full(*_: object) -> None:
        raise DiskFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(type(leader.core), "append", full)
        leader.ask(commit("other", "t", 0, 1), connection=2)
        leader.pump()
    leader.ask(commit("g", "t", 0, 5, oneway=True), connection=2)
    leader.pump()
    leader.is_slow_disk = False
    leader.sync()
    assert committed(leader, "g", "t", 0) == 5


def test_an_entry_that_cannot_be_read_stops_the_broker() -> None:
    with pytest.raises(DamagedBrokerState):
        OffsetTable().apply(b"[[1")
