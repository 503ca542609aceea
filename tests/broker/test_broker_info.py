"""What a broker tells operators and slaves about itself."""

from __future__ import annotations

import pytest
from broker_group import HOST, BrokerGroup, Member, send
from group_requests import commit, heartbeat

from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.fastjson import loads


def asked(member: Member, code: RequestCode) -> Command:
    (reply,) = member.answer(Command(code, 1))
    return reply


def table_of(member: Member) -> dict[str, str]:
    table: dict[str, str] = loads(asked(member, RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    return table


def test_the_runtime_table_has_what_rocketmqs_cluster_list_reads() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    table = table_of(leader)
    assert all(isinstance(value, str) for value in table.values())
    for name in ("putTps", "getTransferredTps", "getTransferedTps"):  # 4.x misspells it
        assert len(table[name].split(" ")) == 3
    for name in (
        "sendThreadPoolQueueSize",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueSize",
        "pullThreadPoolQueueHeadWaitTimeMills",
        "pageCacheLockTimeMills",
        "commitLogMaxOffset",
    ):
        assert int(table[name]) >= 0
    assert (table["brokerVersionDesc"], table["brokerActive"]) == ("V4_9_8", "true")


def test_puts_a_second_are_those_of_the_time_before() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    group.pass_time(10_000)
    for _ in range(20):
        leader.answer(*(send("t", 0, b"", opaque) for opaque in range(10)))
        group.pass_time(1000)
    last, minute, _ = (float(rate) for rate in table_of(leader)["putTps"].split(" "))
    assert 8 <= last <= 12
    assert 5 <= minute <= 12  # idle ones among them
    group.pass_time(30_000)
    last, minute, _ = (float(rate) for rate in table_of(leader)["putTps"].split(" "))
    assert last == 0
    assert minute > 0


def test_offsets_are_told_with_numbers_for_keys_on_every_member() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    leader.answer(commit("g", "t", 0, 5), commit("g", "t", 3, 7), commit("h", "t", 1, 1))
    group.pass_time(500)
    for member in group.members.values():
        body = bytes(asked(member, RequestCode.GET_ALL_CONSUMER_OFFSET).body)
        assert b'"t@g":{0:5,3:7}' in body
        said = loads(body)
        assert said["offsetTable"] == {"t@g": {"0": 5, "3": 7}, "t@h": {"1": 1}}
        assert said["dataVersion"]["counter"] == 1


def test_known_groups_are_those_with_offsets_and_those_with_clients() -> None:
    leader = BrokerGroup(1).lead()
    leader.answer(commit("g", "t", 0, 5))
    leader.answer(heartbeat("a", "h"))
    said = loads(asked(leader, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert set(said["subscriptionGroupTable"]) == {"g", "h"}
    config = said["subscriptionGroupTable"]["g"]
    assert (config["groupName"], config["retryMaxTimes"], config["consumeEnable"]) == (
        "g",
        16,
        True,
    )


def test_the_configuration_is_shown_and_cannot_be_changed() -> None:
    config = BrokerConfig(
        data_file_bytes=4096, store_host=HOST, properties={"listenPort": "1", "brokerName": "b"}
    )
    leader = BrokerGroup(1, config=config).lead()
    assert asked(leader, RequestCode.GET_BROKER_CONFIG).body == b"brokerName=b\nlistenPort=1\n"
    refused = asked(leader, RequestCode.UPDATE_BROKER_CONFIG)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "broker.conf" in (refused.remark or "")


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_BROKER_CONFIG,
    ],
)
def test_a_follower_tells_them_too(code: RequestCode) -> None:
    group = BrokerGroup(3)
    group.lead()
    assert asked(group.members["n2"], code).code == 0
