"""An answer of a member that does not lead proves nothing of a request that must be refused.

Nor does a broker that lost its disk meanwhile. The brokers are on a table; a wiped one is replaced
by another at the same address, as the operator of a master-slave target does it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from master_slave_brokers import MasterSlaveBroker

from shaketable.harness.targets import refusals
from shaketable.system.client import Producer, PullConsumer, RefusedError
from shaketable.system.client.group import metadata_from
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.name_server_requests import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    encode_cluster_info,
    encode_route,
)
from shaketable.system.remoting.requests import MetadataResponse

LEADER, OTHER, NAMES = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
BROKER = BrokerData("shaketable", "b", {0: LEADER})


def request(label: str) -> refusals.InvalidRequest:
    every = (*refusals.INVALID_REQUESTS, *refusals.BEYOND_LIMITS)
    return next(each for each in every if each.label.startswith(label))


TOPICS_MAX = 2
READ, WRITE = request("read a topic that may only"), request("send to a topic that may only")
MORE_TOPICS = request("make more topics")


def asker(status: str, answered_by: str, role: str = "leader") -> Any:
    async def create_topic(*_: object, **__: object) -> None:
        return None

    async def pull(*_: object) -> Any:
        return SimpleNamespace(status=status, messages=())

    async def metadata(_: str) -> Any:
        return SimpleNamespace(role=role)

    return SimpleNamespace(
        producer=SimpleNamespace(create_topic=create_topic),
        consumer=SimpleNamespace(pull=pull, last_address=answered_by),
        admin=SimpleNamespace(client=SimpleNamespace(members=("leader",), metadata=metadata)),
        topic="t",
        broker="b",
        leader=LEADER,
    )


def test_a_leader_that_serves_the_pull_did_what_it_must_refuse() -> None:
    code = trio.run(refusals.code_of, READ, asker("NO_NEW_MSG", LEADER))
    assert code == refusals.TOOK_EFFECT


@pytest.mark.parametrize(
    ("status", "answered_by", "role"),
    [
        ("NO_MATCHED_MSG", LEADER, "leader"),
        ("NO_NEW_MSG", OTHER, "leader"),
        ("NO_NEW_MSG", LEADER, "follower"),
    ],
)
def test_who_does_not_lead_proves_nothing(status: str, answered_by: str, role: str) -> None:
    with pytest.raises(RefusedError):
        trio.run(refusals.code_of, READ, asker(status, answered_by, role))


class Table:
    """A broker, its name server, and the connections to both: `channels` of every client.

    `wiped` replaces the broker once a request of that code was answered.
    """

    def __init__(
        self,
        wiped: Callable[[], MasterSlaveBroker] | None = None,
        broker: Callable[[], MasterSlaveBroker] = MasterSlaveBroker,
    ) -> None:
        self.broker = broker()
        self.wiped = wiped
        self.wiped_after = RequestCode.UPDATE_AND_CREATE_TOPIC

    async def call(self, address: str, command: Command, timeout_s: float) -> Command:
        del timeout_s
        await trio.lowlevel.checkpoint()
        if address == NAMES:
            queues = QueueData("b", 4, 4, 6)
            body = encode_route(TopicRoute((BROKER,), (queues,)), is_standard=True)
            if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                info = ClusterInfo({"b": BROKER}, {"shaketable": ("b",)})
                body = encode_cluster_info(info, is_standard=True)
            return Command(ResponseCode.SUCCESS, body=body)
        (answer,) = self.broker.ask(command)
        if self.wiped is not None and command.code == self.wiped_after:
            self.broker, self.wiped = self.wiped(), None
        return answer

    async def metadata(self, _: str) -> Any:
        answer = await self.call(LEADER, Command(RequestCode.DLEDGER_METADATA), 1.0)
        return metadata_from(MetadataResponse.from_ext(answer.ext))

    def close(self) -> None:
        """Nothing is open."""

    def asker(self) -> Any:
        producer, consumer = Producer(NAMES), PullConsumer(NAMES, group="g")
        for client in (producer, consumer):
            client._channels = client._names._channels = self  # type: ignore[assignment]
        return SimpleNamespace(
            producer=producer,
            consumer=consumer,
            admin=SimpleNamespace(
                client=SimpleNamespace(members=("leader",), metadata=self.metadata)
            ),
            topic="t",
            broker="b",
            leader=LEADER,
            topics_max=TOPICS_MAX,
        )


def code_from(table: Table, asked: refusals.InvalidRequest) -> int:
    async def ask() -> int:
        return await refusals.code_of(asked, table.asker())

    return trio.run(ask, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("asked", [READ, WRITE], ids=["read", "write"])
def test_a_master_refuses_both(asked: refusals.InvalidRequest) -> None:
    assert code_from(Table(), asked) == ResponseCode.NO_PERMISSION


def test_a_slave_at_the_masters_address_proves_nothing() -> None:
    with pytest.raises(RefusedError, match="does not lead"):
        code_from(Table(lambda: MasterSlaveBroker("SLAVE")), READ)


def test_a_master_that_lost_the_topic_does_not_make_it_anew_for_a_send() -> None:
    with pytest.raises(RefusedError) as caught:
        code_from(Table(MasterSlaveBroker), WRITE)
    assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST


def limited() -> MasterSlaveBroker:
    return MasterSlaveBroker(topics_max=TOPICS_MAX)


def test_a_topic_beyond_the_limit_is_refused_or_was_made() -> None:
    assert code_from(Table(broker=limited), MORE_TOPICS) == ResponseCode.NO_PERMISSION
    assert code_from(Table(), MORE_TOPICS) == refusals.TOOK_EFFECT


def test_a_master_that_lost_topics_had_room_for_more() -> None:
    with pytest.raises(RefusedError, match="has lost 1 of the topics"):
        code_from(Table(limited, limited), MORE_TOPICS)
