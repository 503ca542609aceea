"""Heartbeats and consumer groups: who consumes, who is told, and who is forgotten."""

from __future__ import annotations

import msgspec
import pytest
from broker_group import BrokerGroup, Member
from group_requests import consumer_list, heartbeat, unregister

from shaketable.system.broker.groups import consumer_groups
from shaketable.system.broker.groups.consumer_groups import (
    Client,
    ConsumerGroups,
    Consumption,
    Subscription,
)
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import ONEWAY_FLAG, Command

A, B, C = 11, 12, 13
NOTICE = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


def beat(member: Member, connection: int, client_id: str, *groups: str, **more: object) -> int:
    """Send a heartbeat; return the code of its answer, and leave notices where they are."""
    member.ask(heartbeat(client_id, *groups, **more), connection=connection)  # type: ignore[arg-type]
    member.pump()
    member.group.settle()
    replies = member.replies[connection]
    (reply,) = [reply for reply in replies if reply.is_response]
    replies.remove(reply)
    return reply.code


def notices(member: Member, connection: int) -> list[str]:
    """Return of which groups a connection was told since the last call."""
    told = []
    for notice in member.replies.pop(connection, []):
        assert (notice.code, notice.flag) == (NOTICE, ONEWAY_FLAG)
        told.append(notice.ext["consumerGroup"])
    return told


def members_of(member: Member, group: str) -> list[str]:
    (reply,) = member.answer(consumer_list(group))
    if reply.code:
        assert reply.code == ResponseCode.SYSTEM_ERROR
        return []
    found: list[str] = msgspec.json.decode(reply.body)["consumerIdList"]
    return found


def test_a_group_has_the_clients_that_sent_heartbeats() -> None:
    leader = BrokerGroup(1).lead()
    assert members_of(leader, "g") == []
    assert beat(leader, A, "a", "g", "h") == 0
    assert beat(leader, B, "b", "g") == 0
    assert members_of(leader, "g") == ["a", "b"]
    assert members_of(leader, "h") == ["a"]


def test_the_cpp_clients_heartbeat_is_understood() -> None:
    """As its version 0.4.4 wrote it: enums by number, the version as a string."""
    body = (
        b'{"clientID":"1-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"g","messageModel":1,"subscriptionDataSet":[{"subString":"*",'
        b'"subVersion":"1795313589273","topic":"t"}]}]}\n'
    )
    leader = BrokerGroup(1).lead()
    replies = leader.answer(Command(RequestCode.HEART_BEAT, body=body))
    (reply,) = [each for each in replies if each.is_response]
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    group = leader.broker._groups.heartbeats.groups.get("g")
    assert group is not None
    assert group.consumption.message_model == "CLUSTERING"
    assert group.consumption.consume_type == "CONSUME_PASSIVELY"
    assert group.subscriptions["t"].version == 1_795_313_589_273


def test_everybody_is_told_of_a_change_and_of_nothing_else() -> None:
    leader = BrokerGroup(1).lead()
    beat(leader, A, "a", "g")
    assert notices(leader, A) == ["g"]
    beat(leader, B, "b", "g")
    assert (notices(leader, A), notices(leader, B)) == (["g"], ["g"])
    beat(leader, A, "a", "g")
    assert (notices(leader, A), notices(leader, B)) == ([], []), "nothing is new"
    beat(leader, A, "a", "g", topics=("t", "u"))
    assert (notices(leader, A), notices(leader, B)) == (["g"], ["g"]), "another subscription"
    beat(leader, C, "c", "h")
    assert (notices(leader, A), notices(leader, B), notices(leader, C)) == ([], [], ["h"])


def test_a_client_that_leaves_or_whose_connection_closes_is_gone_and_the_others_are_told() -> None:
    leader = BrokerGroup(1).lead()
    for connection, client_id in ((A, "a"), (B, "b"), (C, "c")):
        beat(leader, connection, client_id, "g")
    for connection in (A, B, C):
        notices(leader, connection)
    leader.ask(unregister("b", "g"), connection=B)
    leader.pump()
    assert leader.replies.pop(B)[0].code == 0
    assert members_of(leader, "g") == ["a", "c"]
    assert (notices(leader, A), notices(leader, B), notices(leader, C)) == (["g"], [], ["g"])
    leader.broker.connection_closed(C)
    leader.pump()
    assert members_of(leader, "g") == ["a"]
    assert (notices(leader, A), notices(leader, C)) == (["g"], [])
    leader.broker.connection_closed(A)
    assert members_of(leader, "g") == []


def test_a_silent_client_is_forgotten_in_time_and_one_that_beats_is_not() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    beat(leader, A, "a", "g")
    beat(leader, B, "b", "g")
    for _ in range(4):
        group.pass_time(30_000)
        beat(leader, A, "a", "g")
    assert members_of(leader, "g") == ["a", "b"]
    notices(leader, A)
    group.pass_time(15_000)
    assert members_of(leader, "g") == ["a"]
    assert notices(leader, A) == ["g"]


def test_a_client_that_comes_again_on_another_connection_is_that_one() -> None:
    leader = BrokerGroup(1).lead()
    beat(leader, A, "a", "g")
    beat(leader, B, "a", "g")
    assert members_of(leader, "g") == ["a"]
    assert notices(leader, B) == ["g"]
    leader.broker.connection_closed(A)
    assert members_of(leader, "g") == ["a"], "the old connection stands for nobody"
    leader.broker.connection_closed(B)
    assert members_of(leader, "g") == []


def test_a_group_of_consumers_gets_its_retry_topic_from_the_leader() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    follower = group.members["n1"]
    assert beat(follower, A, "a", "g") == 0
    assert members_of(follower, "g") == ["a"], "every member keeps its own"
    end = leader.log.end.index
    beat(leader, A, "a", "g")
    assert leader.log.end.index == end + 1
    beat(leader, B, "b", "g")
    assert leader.log.end.index == end + 1
    group.pass_time(500)
    for member in group.members.values():
        names = [topic.topic_name for topic in member.broker.topic_table[1]]
        assert "%RETRY%g" in names


def test_a_producer_is_answered_and_tells_nobody() -> None:
    leader = BrokerGroup(1).lead()
    body = {"clientID": "p", "producerDataSet": [{"groupName": "pg"}], "consumerDataSet": []}
    asked = Command(RequestCode.HEART_BEAT, 1, body=msgspec.json.encode(body))
    (reply,) = leader.answer(asked)
    assert reply.code == 0
    leader.ask(Command(RequestCode.UNREGISTER_CLIENT, 2, ext={"clientID": "p"}))
    leader.pump()
    assert leader.replies.pop(1)[0].code == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"clientID": ""}',
        b'{"clientID": "a", "consumerDataSet": [{}]}',
        b'{"clientID": "a", "consumerDataSet": [{"groupName": "no good"}]}',
        b'{"clientID": "a", "consumerDataSet": [{"groupName": "g", "messageModel": "X"}]}',
        b'{"clientID": "' + b"a" * 2000 + b'"}',
        b'{"clientID": "a", "consumerDataSet": ['
        + b'{"groupName":"g"},' * 1000
        + b'{"groupName":"g"}]}',
        b"[" * 100_000,
    ],
)
def test_a_heartbeat_that_is_no_good_is_refused_and_changes_nothing(body: bytes) -> None:
    leader = BrokerGroup(1).lead()
    (reply,) = leader.answer(Command(RequestCode.HEART_BEAT, 1, body=body))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "\n" not in (reply.remark or "\n")
    assert members_of(leader, "g") == []


def test_so_many_groups_and_clients_are_kept_and_no_more() -> None:
    groups = ConsumerGroups(groups_max=1, members_max=1)
    client = Client("a", A, 0.0)
    assert groups.first_full(["g"], "a") is None
    assert groups.register("g", client, Consumption(), {}) == [A]
    assert groups.first_full(["g", "g"], "a") is None
    assert groups.first_full(["g"], "b") == "g"
    assert groups.first_full(["g", "h"], "a") == "h"
    assert groups.unregister("g", "a") == []
    assert groups.first_full(["h"], "b") is None
    assert groups.first_full(["h", "g"], "b") == "g", "there is room for one of them"


def test_a_full_broker_refuses_a_heartbeat_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        consumer_groups.ConsumerGroups, "first_full", lambda _, names, __: names[-1]
    )
    leader = BrokerGroup(1).lead()
    assert beat(leader, A, "a", "g", "full") == ResponseCode.SYSTEM_BUSY
    assert members_of(leader, "g") == []


def test_an_older_subscription_does_not_replace_a_newer_one() -> None:
    groups = ConsumerGroups()
    for client, version in (("a", 2), ("b", 1)):
        subscription = Subscription("t", f"tag{version}", version=version)
        groups.register("g", Client(client, A, 0.0), Consumption(), {"t": subscription})
    group = groups.get("g")
    assert group is not None
    assert group.subscriptions["t"].expression == "tag2"
