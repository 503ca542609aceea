"""Consumers at real nodes: held pulls, delayed messages, retries, slaves that serve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from consumer_requests import back, pull_of, send_with, view
from node_group import NodeGroup, until

from shaketable.system.client.connection import Connection
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.store.message import Message, walk_messages

TIMEOUT_S = 30.0
HOLD_MS = 20_000
HELD_FOR_S = 0.5


@pytest.fixture
def group(tmp_path: Path) -> Iterator[NodeGroup]:
    group = NodeGroup(
        tmp_path, "n0", "n1", "n2", slaveReadEnable="true", messageDelayLevel="300s 1s"
    )
    group.start("n0", "n1", "n2")
    yield group
    group.close()


async def connect(group: NodeGroup, name: str) -> Connection:
    return await Connection.open(*group.client_address(name), TIMEOUT_S)


async def messages_of(connection: Connection, request: Command) -> list[Message]:
    """Pull as a consumer does that is told to ask again, until messages come."""
    while True:
        reply = await connection.call(request, TIMEOUT_S)
        if reply.code == 0:
            return list(walk_messages(reply.body))
        assert reply.code in (
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
        ), reply


def test_held_pulls_are_answered_by_what_comes(group: NodeGroup) -> None:
    async def story() -> None:
        client = group.client()
        await client.send("t", 0, b"first")
        leader = client.answered_by
        assert leader is not None
        connection = await connect(group, leader)
        found: list[Message] = []

        async def wait_for(topic: str, offset: int) -> None:
            found[:] = await messages_of(connection, pull_of(topic, 0, offset, hold_ms=HOLD_MS))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for, "t", 1)
            await trio.sleep(HELD_FOR_S)
            assert not found, "it is held"
            await client.send("t", 0, b"second")
        assert [message.body for message in found] == [b"second"]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for, "t", 2)
            reply = await connection.call(send_with("t", 0, b"later", {"DELAY": "2"}), TIMEOUT_S)
            assert reply.code == 0
            await trio.sleep(HELD_FOR_S)
            assert not found[1:], "it is delayed"
        assert [message.body for message in found] == [b"later"]

        sent_back = found[0]
        reply = await connection.call(back(sent_back.physical_offset, "g", 2), TIMEOUT_S)
        assert reply.code == 0
        await wait_for("%RETRY%g", 0)
        assert [(message.body, message.reconsume_times) for message in found] == [(b"later", 1)]
        connection.close()

    group.tell(story)


def test_slaves_serve_while_nobody_leads(group: NodeGroup) -> None:
    async def story() -> None:
        client = group.client()
        sent = await client.send("t", 0, b"first")
        leader = client.answered_by
        follower, other = [name for name in ("n0", "n1", "n2") if name != leader]
        await group.caught_up(follower)
        connection = await connect(group, follower)
        assert [m.body for m in await messages_of(connection, pull_of("t", 0, 0))] == [b"first"]
        group.kill(str(leader), other)

        async def is_leaderless() -> bool | None:
            return True if not (await client.metadata(follower)).leader else None

        await until(is_leaderless, "the follower to notice")
        assert [m.body for m in await messages_of(connection, pull_of("t", 0, 0))] == [b"first"]
        reply = await connection.call(view(int(sent.message_id[16:], 16)), TIMEOUT_S)
        assert [message.body for message in walk_messages(reply.body)] == [b"first"]
        connection.close()

    group.tell(story)
