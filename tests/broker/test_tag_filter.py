"""Subscriptions by tags, and the codes with which pulls end."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from broker_group import FILE_BYTES, HOST, BrokerGroup, send
from consumer_requests import pull_of, send_with

from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reading.pulls import (
    SLAVE_BROKER_ID,
    TAGS_MAX,
    SubscriptionError,
    tag_filter,
)
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import PullMessage
from shaketable.system.store.message import walk_messages

CONFIG = BrokerConfig(data_file_bytes=FILE_BYTES, store_host=HOST)


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything_is_wanted(expression: str | None) -> None:
    assert tag_filter(expression) is None
    assert tag_filter(expression, "TAG") is None


def test_codes_are_java_hash_codes() -> None:
    found = tag_filter("TagA ||  TagB||größer")
    assert found is not None
    assert found.codes == {2598919, 2598920, -1233337215}
    assert found.passes(2598919)
    assert not found.passes(0), "a message without tags"


def test_blank_tags_are_left_out() -> None:
    found = tag_filter("red || ")
    assert found is not None
    assert len(found.codes) == 1
    nothing = tag_filter(" ")
    assert nothing is not None
    assert not nothing.codes, "as in RocketMQ: it wants nothing"


@pytest.mark.parametrize(
    ("expression", "kind", "said"),
    [
        ("||", "TAG", "names no tag"),
        ("a > 1", "SQL92", "by SQL92 are not served"),
        ("||".join("a" * (TAGS_MAX + 1)), None, f"more than {TAGS_MAX}"),
    ],
)
def test_what_is_no_subscription_by_tags(expression: str, kind: str | None, said: str) -> None:
    with pytest.raises(SubscriptionError, match=said) as caught:
        tag_filter(expression, kind)
    assert "\n" not in str(caught.value)


def tagged_group(config: BrokerConfig = CONFIG) -> BrokerGroup:
    """Messages 0 to 9: red, blue, red, ..., and 10 without tags."""
    group = BrokerGroup(1, config=config)
    leader = group.lead()
    for number in range(10):
        tag = ("red", "blue")[number % 2]
        leader.answer(send_with("t", 0, b"%d" % number, {"TAGS": tag, "KEYS": "k"}))
    leader.answer(send("t", 0, b"10"))
    return group


def pulled(group: BrokerGroup, request: Command) -> tuple[int, int, list[bytes]]:
    (reply,) = group.members["n0"].answer(request)
    found = [message.body for message in walk_messages(reply.body)]
    return reply.code, int(reply.ext["nextBeginOffset"]), found


def test_only_wanted_messages_are_sent_and_the_others_passed_over() -> None:
    group = tagged_group()
    assert pulled(group, pull_of("t", 0, 0, tags="red")) == (
        0,
        11,
        [b"0", b"2", b"4", b"6", b"8"],
    )
    assert pulled(group, pull_of("t", 0, 0, tags="blue||red", count=3)) == (
        0,
        3,
        [b"0", b"1", b"2"],
    )
    assert pulled(group, pull_of("t", 0, 1, tags="red", count=2)) == (0, 6, [b"2", b"4"])
    assert len(pulled(group, pull_of("t", 0, 0, tags="*"))[2]) == 11
    assert len(pulled(group, pull_of("t", 0, 0))[2]) == 11


def test_messages_of_which_none_is_wanted_are_passed_over() -> None:
    group = tagged_group()
    retry = ResponseCode.PULL_RETRY_IMMEDIATELY
    assert pulled(group, pull_of("t", 0, 0, tags="green")) == (retry, 11, [])
    assert pulled(group, pull_of("t", 0, 11, tags="green"))[0] == ResponseCode.PULL_NOT_FOUND
    group = tagged_group(replace(CONFIG, filtered_units_max=4, pull_messages_max=3))
    assert pulled(group, pull_of("t", 0, 0, tags="green")) == (retry, 4, [])
    assert pulled(group, pull_of("t", 0, 0, tags="red")) == (0, 4, [b"0", b"2"])


def test_a_pull_ends_before_its_bytes_exceed_the_limit() -> None:
    group = tagged_group(replace(CONFIG, pull_bytes_max=300))
    code, next_offset, found = pulled(group, pull_of("t", 0, 0, tags="blue"))
    assert (code, next_offset, found) == (0, 5, [b"1", b"3"])
    fields = PullMessage("g", "t", 0, 0, max_msg_bytes=1)
    request = Command(RequestCode.PULL_MESSAGE, 1, ext=fields.to_ext())
    assert pulled(group, request) == (0, 1, [b"0"]), "at least one"


def test_the_filter_reads_units_from_the_files() -> None:
    group = tagged_group()
    member = group.members["n0"]
    assert member.save_checkpoint()
    group.restart("n0")
    group.lead()
    assert pulled(group, pull_of("t", 0, 3, tags="red")) == (0, 11, [b"4", b"6", b"8"])


def test_what_is_no_subscription_is_refused_in_one_line() -> None:
    group = tagged_group()
    (reply,) = group.members["n0"].answer(pull_of("t", 0, 0, tags="||"))
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert reply.remark == 'a subscription names no tag: write "TagA || TagB" or "*"'


def test_the_codes_outside_a_queue() -> None:
    group = tagged_group()
    moved, nothing = ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND
    for queue, offset, code, next_offset in (
        (0, 11, nothing, 11),
        (0, 12, moved, 11),
        (0, -1, moved, 0),
        (1, 0, nothing, 0),
        (1, 5, moved, 0),
    ):
        assert pulled(group, pull_of("t", queue, offset)) == (code, next_offset, [])


def slave_group(**limits: object) -> BrokerGroup:
    group = BrokerGroup(3, config=replace(CONFIG, **limits))  # type: ignore[arg-type]
    leader = group.lead()
    leader.answer(send("t", 0, b"x"), send("t", 0, b"y", 2))
    group.pass_time(200)
    return group


def test_a_follower_sends_consumers_to_the_leader() -> None:
    group = slave_group()
    (reply,) = group.members["n1"].answer(pull_of("t", 0, 1))
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert reply.ext["suggestWhichBrokerId"] == "0"
    assert reply.ext["nextBeginOffset"] == "1", "nothing is passed over"
    assert reply.ext["leaderId"] == "n0"


def test_a_refused_consumer_is_not_answered_so_fast_that_it_spins() -> None:
    group = slave_group()
    follower = group.members["n1"]
    follower.ask(pull_of("t", 0, 1, hold_ms=15_000))
    group.pass_time(900)
    assert not follower.replies
    group.pass_time(700)
    (reply,) = follower.replies.pop(1)
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY


def test_a_refused_consumer_that_waits_is_served_by_a_member_that_comes_to_lead() -> None:
    group = slave_group(refused_pull_hold_ms=15_000.0)
    follower = group.members["n1"]
    follower.ask(pull_of("t", 0, 1, hold_ms=15_000))
    group.cut = {"n0"}
    group.lead("n1")
    group.pass_time(300)
    (reply,) = follower.replies.pop(1)
    assert reply.code == 0
    assert [message.body for message in walk_messages(reply.body)] == [b"y"]


def test_a_follower_serves_what_is_committed_where_slaves_may_be_read() -> None:
    group = slave_group(slave_read_enable=True)
    leader, follower = group.members["n0"], group.members["n1"]
    assert follower.answer(pull_of("t", 0, 0))[0].code == 0
    group.cut = {"n1"}
    leader.answer(send("t", 0, b"z", 3))
    (reply,) = follower.answer(pull_of("t", 0, 2))
    assert reply.code == ResponseCode.PULL_NOT_FOUND, "it does not know that z is committed"
    follower.ask(pull_of("t", 0, 2, hold_ms=15_000))
    follower.pump()
    assert not follower.replies
    group.cut = set()
    group.pass_time(300)
    (reply,) = follower.replies.pop(1)
    assert [message.body for message in walk_messages(reply.body)] == [b"z"]


def test_followers_go_on_serving_while_there_is_no_leader() -> None:
    group = slave_group(slave_read_enable=True)
    group.cut = {"n0", "n2"}
    group.pass_time(3000)
    follower = group.members["n1"]
    assert follower.core.leader is None
    assert follower.answer(pull_of("t", 0, 0))[0].code == 0


def test_a_follower_moves_nobodys_offset() -> None:
    group = slave_group(slave_read_enable=True)
    for offset in (7, -1):
        (reply,) = group.members["n1"].answer(pull_of("t", 0, offset))
        assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert reply.ext["nextBeginOffset"] == str(offset)
        (reply,) = group.members["n0"].answer(pull_of("t", 0, offset))
        assert reply.code == ResponseCode.PULL_OFFSET_MOVED


def test_a_consumer_far_behind_is_sent_to_a_slave_where_slaves_may_be_read() -> None:
    for may_read, expected in ((True, SLAVE_BROKER_ID), (False, 0)):
        group = slave_group(slave_read_enable=may_read, consume_slowly_bytes=500)
        leader = group.members["n0"]
        (reply,) = leader.answer(pull_of("t", 0, 0))
        assert reply.ext["suggestWhichBrokerId"] == "0"
        leader.answer(send("t", 1, bytes(500), 3))
        (reply,) = leader.answer(pull_of("t", 0, 0))
        assert reply.ext["suggestWhichBrokerId"] == str(expected)


def subscribed(expression: str, version: int, kind: str = "TAG") -> Command:
    """A heartbeat of group g that says what it wants of topic t."""
    subscription = {
        "topic": "t",
        "subString": expression,
        "subVersion": version,
        "expressionType": kind,
    }
    consumer = {"groupName": "g", "subscriptionDataSet": [subscription]}
    body = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]}
    return Command(RequestCode.HEART_BEAT, 5, body=msgspec.json.encode(body))


def push_pull(version: int, kind: str = "TAG") -> Command:
    """A pull as push consumers send it: what they want, they said by heartbeats."""
    fields = PullMessage("g", "t", 0, 0, sub_version=version, expression_type=kind)
    return Command(RequestCode.PULL_MESSAGE, 7, ext=fields.to_ext())


def test_what_a_pull_does_not_say_heartbeats_said() -> None:
    group = tagged_group()
    leader = group.members["n0"]
    assert len(pulled(group, push_pull(1))[2]) == 11, "no heartbeat yet: the client looks itself"
    assert leader.answer(subscribed("blue", 2))[-1].code == 0
    assert pulled(group, push_pull(2))[2] == [b"1", b"3", b"5", b"7", b"9"]
    assert len(pulled(group, push_pull(3))[2]) == 11, "its newer heartbeat is still on its way"
    assert pulled(group, pull_of("t", 0, 0, tags="red"))[2] == [b"0", b"2", b"4", b"6", b"8"]
    leader.broker.connection_closed(1)
    assert len(pulled(group, push_pull(2))[2]) == 11


def test_subscriptions_that_are_not_by_tags_are_refused() -> None:
    group = tagged_group()
    leader = group.members["n0"]
    (reply,) = leader.answer(push_pull(1, "SQL92"))
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    leader.answer(subscribed("a > 1", 2, "SQL92"))
    (reply,) = leader.answer(push_pull(2))
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
