"""At a limit so many are taken, the next is refused, and who leaves makes room again."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from broker_group import FILE_BYTES, HOST, BrokerGroup, Member, send
from consumer_requests import back
from group_requests import consumer_list, create_topic, heartbeat, unregister

from shaketable.system.broker.groups.consumer_groups import QueueLocks
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.raft.membership import (
    MEMBERS_MAX,
    AddLearner,
    Membership,
    MembershipError,
    Remove,
    changed,
)
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import PullMessage
from shaketable.system.store.message import walk_messages

USUAL = BrokerConfig(data_file_bytes=FILE_BYTES, store_host=HOST)


def leader_of(**limits: int) -> Member:
    return BrokerGroup(1, config=replace(USUAL, **limits)).lead()


def answer(leader: Member, asked: Command) -> Command:
    """Return the answer alone: others are told of changes in their group as well."""
    (reply,) = (each for each in leader.answer(asked) if each.flag & 1)
    return reply


def code(leader: Member, asked: Command) -> int:
    return answer(leader, asked).code


def clients(leader: Member) -> list[str]:
    ids: list[str] = msgspec.json.decode(answer(leader, consumer_list("g")).body)["consumerIdList"]
    return ids


def test_a_group_has_room_for_so_many_clients_and_again_for_one_when_one_left() -> None:
    leader = leader_of(group_members_max=2)
    assert [code(leader, heartbeat(each, "g")) for each in ("a", "b", "a")] == [0, 0, 0]
    assert code(leader, heartbeat("c", "g")) == ResponseCode.SYSTEM_BUSY
    assert clients(leader) == ["a", "b"]
    assert code(leader, unregister("a", "g")) == 0
    assert code(leader, heartbeat("c", "g")) == 0
    assert clients(leader) == ["b", "c"]


def test_there_are_so_many_groups() -> None:
    leader = leader_of(groups_max=1)
    assert code(leader, heartbeat("a", "g")) == 0
    assert code(leader, heartbeat("b", "h")) == ResponseCode.SYSTEM_BUSY
    assert code(leader, unregister("a", "g")) == 0
    assert code(leader, heartbeat("b", "h")) == 0


def test_groups_of_one_heartbeat_count_together() -> None:
    leader = leader_of(groups_max=2)
    assert code(leader, heartbeat("a", "g", "h", "i")) == ResponseCode.SYSTEM_BUSY
    assert code(leader, consumer_list("g")) == ResponseCode.SYSTEM_ERROR, "all or none"
    assert code(leader, heartbeat("a", "g", "g", "h")) == 0
    assert code(leader, heartbeat("b", "g", "i")) == ResponseCode.SYSTEM_BUSY
    assert code(leader, heartbeat("b", "h", "g")) == 0
    assert clients(leader) == ["a", "b"]


def test_a_group_consumes_without_a_retry_topic_and_is_told_that_it_has_none() -> None:
    leader = leader_of(topics_max=2)
    assert code(leader, create_topic("t")) == 0
    assert code(leader, send("t", 0, b"a")) == 0
    assert answer(leader, heartbeat("a", "g")).remark is None
    reply = answer(leader, heartbeat("a", "g", "h", "i"))
    assert reply.code == 0, "a refusal would be that of a client that is not registered"
    assert reply.remark == (
        "registered, but %RETRY%h and 1 more cannot be created for messages sent back: "
        "there are 2 topics already: use one of them"
    )
    ids = msgspec.json.decode(answer(leader, consumer_list("h")).body)["consumerIdList"]
    assert ids == ["a"]
    pull = Command(RequestCode.PULL_MESSAGE, 1, ext=PullMessage("h", "t", 0, 0).to_ext())
    (message,) = walk_messages(answer(leader, pull).body)
    sent_back = answer(leader, back(message.physical_offset, "h"))
    assert sent_back.code == ResponseCode.NO_PERMISSION
    assert "there are 2 topics already" in (sent_back.remark or "")


def test_there_are_so_many_topics_and_those_may_still_be_changed_and_written() -> None:
    leader = leader_of(topics_max=2)
    assert [code(leader, create_topic(each)) for each in ("t", "u", "t")] == [0, 0, 0]
    assert code(leader, create_topic("v")) == ResponseCode.NO_PERMISSION
    assert code(leader, send("v", 0, b"a")) == ResponseCode.NO_PERMISSION
    assert code(leader, send("u", 0, b"a")) == 0


def test_there_are_so_many_locks_until_one_is_given_back_or_its_lease_is_over() -> None:
    locks = QueueLocks(lease_ms=1_000.0, locks_max=2)
    one, two, three = (("t", "b", number) for number in range(3))
    assert locks.lock("g", "a", [one, two, three], 0.0) == [one, two]
    assert locks.lock("g", "a", [one, three], 500.0) == [one]
    locks.unlock("g", "a", [one])
    assert locks.lock("g", "b", [three], 600.0) == [three]
    assert locks.lock("g", "b", [one], 900.0) == []
    assert locks.lock("g", "b", [one], 1_100.0) == [one], "the lease of the second is over"


def test_a_group_of_brokers_has_so_many_members() -> None:
    membership = Membership(("n0",))
    for number in range(1, MEMBERS_MAX):
        membership = changed(membership, AddLearner(f"n{number}", f"h:{number}"))
    one_more = AddLearner("more", "h:1")
    with pytest.raises(MembershipError, match=f"{MEMBERS_MAX} members"):
        changed(membership, one_more)
    membership = changed(membership, Remove("n1"))
    assert len(changed(membership, one_more).members) == MEMBERS_MAX
