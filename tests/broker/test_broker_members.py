"""Leadership transfers and membership changes as operators ask for them."""

from __future__ import annotations

import pytest
from broker_group import (
    FILE_BYTES,
    HOST,
    BrokerGroup,
    Member,
    about,
    max_offset,
    metadata,
    pull,
    send,
)

from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.node.connections import wire
from shaketable.system.raft.membership import (
    MEMBERS_MAX,
    AddLearner,
    Membership,
    MembershipError,
    changed,
)
from shaketable.system.raft.protocol import LogEnd, RaftConfig, Role, Snapshot, SnapshotRequest
from shaketable.system.remoting.codes import RequestCode, ResponseCode, outcome_of
from shaketable.system.remoting.command import HEADER_BYTES_MAX, Command
from shaketable.system.store.group_events import decode_membership
from shaketable.system.store.message import walk_messages

ADD, REMOVE, TRANSFER = (
    RequestCode.ADD_MEMBER,
    RequestCode.REMOVE_MEMBER,
    RequestCode.TRANSFER_LEADERSHIP,
)


def membership_events(member: Member) -> list[Membership]:
    (reply,) = member.answer(pull("RMQ_SYS_DLEDGER_EVENT", 1, 0, committed=True))
    return [decode_membership(message.body) for message in walk_messages(reply.body)]


def test_a_transfer_is_answered_when_the_other_leads() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.ask(about(TRANSFER, "n2"))
    leader.pump()
    assert leader.replies == {}
    group.settle()
    (reply,) = leader.replies.pop(1)
    assert reply.code == 0
    assert group.members["n2"].core.role is Role.LEADER
    assert metadata(leader)["leaderId"] == "n2"


def test_sends_during_a_transfer_are_refused_definitely_and_leave_no_gap() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.answer(send("t", 0, b"a"))
    leader.ask(about(TRANSFER, "n1"))
    leader.ask(send("t", 0, b"b", 2), send("u", 0, b"c", 3), max_offset("t", 0))
    leader.ask(send("t", 0, b"d", 4))
    refused = [reply for reply in _replies_now(leader) if reply.opaque in (2, 3, 4)]
    assert [(reply.opaque, reply.code) for reply in refused] == [
        (2, ResponseCode.SERVICE_NOT_AVAILABLE),
        (3, ResponseCode.SERVICE_NOT_AVAILABLE),
        (4, ResponseCode.SERVICE_NOT_AVAILABLE),
    ]
    assert all("[506]" in (reply.remark or "") for reply in refused)
    group.settle()
    heir = group.lead("n1")
    (reply,) = heir.answer(send("t", 0, b"e"))
    assert reply.ext["queueOffset"] == "1"


def test_a_transfer_that_is_given_up_is_unknown_and_sends_go_on_where_they_were() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.answer(send("t", 0, b"a"))
    leader.ask(about(TRANSFER, "n1"))
    group.cut = {"n1"}
    leader.ask(send("t", 0, b"b", 2))
    assert [reply.opaque for reply in _replies_now(leader)] == [2]
    group.pass_time(1100)
    (reply,) = leader.replies.pop(1)
    assert (reply.code, outcome_of(reply.code)) == (ResponseCode.SYSTEM_ERROR, "info")
    assert "[418]" in (reply.remark or "")
    (reply,) = leader.answer(send("t", 0, b"b"))
    assert (reply.code, reply.ext["queueOffset"]) == (0, "1")


def test_a_transfer_is_not_done_because_the_leader_lost_its_place() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    group.cut = {"n0"}
    leader.ask(about(TRANSFER, "n1"))
    group.pass_time(700)
    assert leader.core.role is not Role.LEADER
    assert leader.replies == {}
    group.pass_time(2000)
    (reply,) = leader.replies.pop(1)
    assert reply.code == ResponseCode.SYSTEM_ERROR


def test_each_of_two_transfers_is_answered() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    group.cut = {"n1"}
    leader.ask(about(TRANSFER, "n1", opaque=1))
    group.pass_time(980)
    leader.broker.tick(group.now_ms + 80)
    assert leader.core.transferee is None
    leader.ask(about(TRANSFER, "n2", opaque=2))
    leader.pump()
    group.settle()
    replies = [(reply.opaque, reply.code) for reply in leader.replies.pop(1)]
    assert replies == [(1, ResponseCode.SYSTEM_ERROR), (2, 0)]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (about(TRANSFER, "n9"), "no other voter"),
        (about(REMOVE, "n9"), "no member"),
        (about(ADD, "n1", "127.0.0.1:1"), "member already"),
    ],
)
def test_what_cannot_be_done_is_refused_for_good(command: Command, why: str) -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    end = leader.core.log.end_index
    (reply,) = leader.answer(command)
    assert (reply.code, outcome_of(reply.code)) == (ResponseCode.NO_PERMISSION, "fail")
    assert why in (reply.remark or "")
    assert leader.core.log.end_index == end
    assert leader.answer(send("t", 0, b"a"))[0].code == 0


@pytest.mark.parametrize(
    "command",
    [
        about(ADD, "", "127.0.0.1:1"),
        about(ADD, "n 3", "127.0.0.1:1"),
        about(ADD, "n-3", "127.0.0.1:1"),
        about(ADD, "n3"),
        about(ADD, "n3", "127.0.0.1"),
        about(ADD, "n3", "127.0.0.1:99999"),
        about(ADD, "n3", ":80"),
        Command(REMOVE, 5),
    ],
)
def test_a_change_that_says_no_member_is_illegal(command: Command) -> None:
    leader = BrokerGroup(1).lead()
    (reply,) = leader.answer(command)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_follower_sends_operators_to_the_leader() -> None:
    group = BrokerGroup(3)
    group.lead()
    (reply,) = group.members["n1"].answer(about(REMOVE, "n2"))
    assert (reply.code, reply.ext["leaderId"]) == (ResponseCode.SERVICE_NOT_AVAILABLE, "n0")


def test_a_new_member_catches_up_votes_and_serves_reads() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    for number in range(20):
        leader.answer(send("t", 0, b"%d" % number))
    group.join("n3")
    (reply,) = leader.answer(about(ADD, "n3", "127.0.0.1:40914"))
    assert (reply.code, reply.ext["membershipIndex"]) == (0, "22")
    group.pass_time(500)
    said = metadata(leader)
    assert (said["voters"], said["learners"]) == ("n0;n1;n2;n3", "")
    assert said["peers"] == "n3-127.0.0.1:40914"
    joined = group.members["n3"]
    assert metadata(joined)["appliedIndex"] == said["committedIndex"]
    (got,) = joined.answer(pull("t", 0, 0, committed=True))
    assert [message.body for message in walk_messages(got.body)][:2] == [b"0", b"1"]
    assert [event.learners for event in membership_events(leader)] == [("n3",), ()]


def test_changes_are_numbered_behind_what_is_not_committed_yet() -> None:
    """Two changes and sends between them: each queue goes on without a gap."""
    group = BrokerGroup(3)
    leader = group.lead()
    leader.ask(send("t", 0, b"a"), about(REMOVE, "n2", opaque=6), send("t", 0, b"b", 2))
    leader.pump()
    group.settle()
    replies = {reply.opaque: reply for reply in leader.replies.pop(1)}
    assert {opaque: reply.code for opaque, reply in replies.items()} == {1: 0, 6: 0, 2: 0}
    assert [replies[1].ext["queueOffset"], replies[2].ext["queueOffset"]] == ["0", "1"]
    leader.answer(about(REMOVE, "n1"))
    assert [event.voters for event in membership_events(leader)] == [("n0", "n1"), ("n0",)]


def test_changes_are_numbered_behind_what_is_not_applied_yet() -> None:
    config = BrokerConfig(data_file_bytes=FILE_BYTES, store_host=HOST, key_items_max=1)
    group = BrokerGroup(3, config=config)
    leader = group.lead()
    leader.answer(send("t", 0, b"fills the bound of keys"))
    for name in ("n2", "n1"):
        assert leader.answer(about(REMOVE, name))[0].code == 0
    assert leader.broker.applied_index == leader.core.log.end_index - 2
    assert leader.save_checkpoint()
    leader.pump()
    assert [event.voters for event in membership_events(leader)] == [("n0", "n1"), ("n0",)]


def test_a_second_change_waits_for_the_first() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.ask(about(REMOVE, "n1", opaque=1), about(REMOVE, "n2", opaque=2))
    replies = _replies_now(leader)
    assert [(reply.opaque, reply.code) for reply in replies] == [(2, ResponseCode.NO_PERMISSION)]
    group.settle()
    assert [(reply.opaque, reply.code) for reply in leader.replies.pop(1)] == [(1, 0)]


def test_a_leader_that_is_removed_answers_and_steps_down() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    (reply,) = leader.answer(about(REMOVE, "n0"))
    assert reply.code == 0
    assert leader.core.role is not Role.LEADER
    heir = group.lead("n1")
    assert heir.core.membership.voters == ("n1", "n2")
    (reply,) = heir.answer(send("t", 0, b"a"))
    assert reply.code == 0


def test_a_wiped_member_is_replaced_under_a_new_id() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    for number in range(5):
        leader.answer(send("t", 0, b"%d" % number))
    del group.members["n2"]
    group.join("n3")
    assert leader.answer(about(ADD, "n3", "127.0.0.1:4"))[0].code == 0
    group.pass_time(500)
    assert leader.core.membership.voters == ("n0", "n1", "n2", "n3")
    assert leader.answer(about(REMOVE, "n2"))[0].code == 0
    group.cut = {"n0"}
    heir = group.lead("n1")
    assert heir.core.membership.voters == ("n0", "n1", "n3")
    assert heir.answer(send("t", 0, b"new"))[0].ext["queueOffset"] == "5"


def test_a_member_never_serves_more_than_it_knows_to_be_committed() -> None:
    group = BrokerGroup(3, raft=RaftConfig())
    leader = group.lead()
    leader.answer(send("t", 0, b"a"))
    group.pass_time(100)
    follower = group.members["n1"]
    assert follower.answer(pull("t", 0, 0, committed=True))[0].ext["maxOffset"] == "1"
    group.cut = {"n1", "n2"}
    leader.ask(send("t", 0, b"b"))
    leader.pump()
    for member in (leader, follower):
        (got,) = member.answer(pull("t", 0, 0, committed=True))
        assert [message.body for message in walk_messages(got.body)] == [b"a"]
        assert got.ext["maxOffset"] == "1"


def _replies_now(member: Member) -> list[Command]:
    """What a member answers before anything is delivered."""
    member.pump()
    return member.replies.pop(1, [])


@pytest.mark.parametrize(
    ("member", "address"),
    [
        ("a/b", "h:1"),
        ("n@1", "h:1"),
        ("n-1", "h:1"),
        ("", "h:1"),
        ("n" * 65, "h:1"),
        ("n9", "h"),
        ("n9", ":1"),
        ("n9", "h:0"),
        ("n9", "h:65536"),
        ("n9", "h:" + "9" * 5000),
        ("n9", "no..name:1"),
        ("n9", "x" * 70 + ":1"),
        ("n9", "h" * 254 + ":1"),
    ],
)
def test_a_member_that_could_never_come_is_refused(member: str, address: str) -> None:
    """All members would try that address for ever, and take no message of that name."""
    leader = BrokerGroup(3).lead()
    (reply,) = leader.answer(about(ADD, member, address))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert outcome_of(reply.code) == "fail"
    assert metadata(leader)["learners"] == ""


def test_a_group_takes_no_more_members_than_it_could_name() -> None:
    names = tuple(f"n{number:063}" for number in range(MEMBERS_MAX))
    addresses = tuple((name, ".".join(["h" * 62] * 4) + ":65535") for name in names)
    most = Membership(names[:1], names[1:], addresses)
    with pytest.raises(MembershipError, match="64 members already"):
        changed(most, AddLearner("n9", "h:1"))
    assert "n9" in changed(most.without(names[1]), AddLearner("n9", "h:1")).learners
    snapshot = Snapshot(LogEnd(), most, 1, b"")
    assert len(wire.encode(SnapshotRequest(1, "n0", snapshot, 0), "g")) < HEADER_BYTES_MAX


def test_a_membership_that_fits_no_entry_is_refused() -> None:
    """The data files of these tests are small; the leader goes on."""
    leader = BrokerGroup(1).lead()
    host = ".".join(["h" * 62] * 4)
    codes = []
    while not codes or codes[-1] == 0:
        (reply,) = leader.answer(about(ADD, f"n{len(codes) + 1}", f"{host}:65535"))
        codes.append(reply.code)
    assert codes[-1] == ResponseCode.NO_PERMISSION
    assert len(metadata(leader)["learners"].split(";")) == len(codes) - 1
    assert leader.answer(send("t", 0, b"a"))[0].code == 0
    (reply,) = leader.answer(about(REMOVE, "n1"))
    assert reply.code == 0
