"""At a limit so many are taken, the next is refused, and who leaves makes room again."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from broker_group import FILE_BYTES, HOST, BrokerGroup, Member, send
from group_requests import consumer_list, create_topic, heartbeat, unregister

from shaketable.system.broker.groups.consumer_groups import QueueLocks
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.membership_log import MEMBERS_MAX, AddLearner, Remove, changed
from shaketable.system.raft.protocol import MembershipError
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import Command

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
