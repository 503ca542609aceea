"""Real members that check their own steps: a planted bug ends one, and a healthy group goes on."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from shaketable.system.client.connection import Connection, OutcomeUnknownError, RefusedError
from shaketable.system.client.group import commit_offset, committed_offset
from shaketable.system.node.process import EXIT_INVARIANT
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.name_server_requests import (
    DataVersion,
    RegisterBrokerHeader,
    TopicConfig,
    encode_register_body,
)
from tests.support.name_servers import ASK_TIMEOUT_S, HOST, NameServers
from tests.support.node_group import NodeGroup, Writer, until

pytestmark = pytest.mark.e2e

READERS = 8
TRANSFERS_MAX = 20


@pytest.fixture
def group_with(tmp_path: Path) -> Iterator[Callable[[str], NodeGroup]]:
    """Make a group of three that check their steps, with a planted bug or ""."""
    made: list[NodeGroup] = []

    def make(bug: str) -> NodeGroup:
        made.append(
            NodeGroup(tmp_path, "n0", "n1", "n2", shaketableInvariants="true", shaketableMutant=bug)
        )
        made[-1].start("n0", "n1", "n2")
        return made[-1]

    try:
        yield make
    finally:
        for group in made:
            for process in group.processes.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
            group.close()


async def a_transfer_to_who_is_silent(group: NodeGroup) -> None:
    """Ask the leader to hand over to a member that does not run."""
    await Writer(group.client()).send_some("t", 5)
    leader = await group.leader()
    target = next(name for name in group.processes if name != leader)
    process = group.processes[target]
    for _ in range(TRANSFERS_MAX):
        process.send_signal(signal.SIGSTOP)
        try:
            await group.admin(leader).transfer_leadership(target)
        except OutcomeUnknownError:
            break
        except RefusedError:  # on a busy machine it may count as silent already
            process.send_signal(signal.SIGCONT)
            await trio.sleep(0.5)
    await trio.sleep(1.0)
    process.send_signal(signal.SIGCONT)


async def many_reads(group: NodeGroup) -> None:
    """Read side by side, so that reads come while others are confirmed."""
    await Writer(group.client()).send_some("t", 5)
    leader = await group.leader()

    async def read() -> None:
        client = group.client(leader)
        for _ in range(100):
            try:
                await client.max_offset("t", 0)
            except (OutcomeUnknownError, RefusedError):
                return

    async with trio.open_nursery() as nursery:
        for _ in range(READERS):
            nursery.start_soon(read)


async def an_offset_is_asked_for(group: NodeGroup) -> None:
    """Commit a consumer group's offset, and ask for it."""
    await Writer(group.client()).send_some("t", 5)
    with suppress(OutcomeUnknownError):
        await commit_offset(group.client(), "g", "t", 0, 3)
        assert await committed_offset(group.client(), "g", "t", 0) == 3


@pytest.mark.parametrize(
    ("bug", "story", "said"),
    [
        ("transfer-never-given-up", a_transfer_to_who_is_silent, "transfers-are-given-up: "),
        ("read-joins-open-round", many_reads, "reads-wait-for-an-echo: it served a read"),
        ("offsets-unconfirmed", an_offset_is_asked_for, "answers-come-from-leaders: "),
    ],
    ids=["transfer", "read", "offset"],
)
def test_a_planted_bug_ends_the_member_that_has_it(
    group_with: Callable[[str], NodeGroup],
    bug: str,
    story: Callable[[NodeGroup], object],
    said: str,
) -> None:
    group = group_with(bug)

    async def ends() -> str:
        await story(group)  # type: ignore[misc]

        async def ended() -> str | None:
            codes = {name: process.poll() for name, process in group.processes.items()}
            return next((name for name, code in codes.items() if code is not None), None)

        return await until(ended, "a member ends")

    name = group.tell(ends)
    assert group.processes[name].wait(10) == EXIT_INVARIANT
    assert said in group.log(name).splitlines()[-1]


@pytest.mark.parametrize(
    "story",
    [a_transfer_to_who_is_silent, many_reads, an_offset_is_asked_for],
    ids=["transfer", "read", "offset"],
)
def test_a_healthy_group_goes_on(
    group_with: Callable[[str], NodeGroup], story: Callable[[NodeGroup], object]
) -> None:
    group = group_with("")

    async def goes_on() -> None:
        await story(group)  # type: ignore[misc]
        writer = Writer(group.client())
        await writer.send_some("t", 5)

    group.tell(goes_on)
    assert {process.poll() for process in group.processes.values()} == {None}


async def _register(port: int, broker_id: int, address: str, state: int) -> Connection:
    """Register a broker at a name server by a connection of its own."""
    connection = await Connection.open(HOST, port, ASK_TIMEOUT_S)
    topics = [TopicConfig("t"), TopicConfig("u")]  # a single one would be taken for a change
    header = RegisterBrokerHeader("b", address, "c", broker_id)
    body = encode_register_body(topics, DataVersion(state_version=state))
    request = Command(RequestCode.REGISTER_BROKER, ext=header.to_ext(), body=body)
    with suppress(OutcomeUnknownError):
        await connection.call(request, ASK_TIMEOUT_S)
    return connection


async def a_broker_goes(port: int) -> None:
    """Register a leader and a follower; the leader's connection breaks."""
    leader = await _register(port, 0, "h:1", 1)
    await _register(port, 1, "h:2", 1)
    leader.close()


async def an_old_leader_comes_late(port: int) -> None:
    """Register a leader of term 2, and then one of term 1."""
    await _register(port, 0, "h:1", 2)
    await _register(port, 0, "h:2", 1)


@pytest.mark.parametrize(
    ("bug", "story", "said"),
    [
        ("dead-broker-kept", a_broker_goes, "has gone, and is in the routes as b"),
        ("older-state-accepted", an_old_leader_comes_late, "older-state-is-refused: h:2 takes id"),
    ],
    ids=["gone", "late"],
)
@pytest.mark.parametrize("is_planted", [True, False], ids=["planted", "healthy"])
def test_a_name_server_ends_at_the_first_wrong_route(
    tmp_path: Path,
    bug: str,
    story: Callable[[int], Awaitable[None]],
    said: str,
    is_planted: bool,
) -> None:
    options = ("--mutant", bug) if is_planted else ()
    servers = NameServers(tmp_path, 1, "--check-invariants", *options)
    [port] = servers.ports

    async def listens() -> bool | None:
        with suppress(OutcomeUnknownError):
            await servers.route(port, "t")
            return True
        return None

    async def ends() -> None:
        await until(listens, "the name server listens")
        await story(port)
        if not is_planted:
            assert await servers.route(port, "t") is not None
            servers.stop()

    try:
        servers.start()
        trio.run(ends)
        code = servers.processes[port].wait(10)
        log = (tmp_path / f"name-server-{port}.log").read_text()
    finally:
        servers.close()
    assert code == (EXIT_INVARIANT if is_planted else 0), log
    assert (said in log.splitlines()[-1]) == is_planted, log
