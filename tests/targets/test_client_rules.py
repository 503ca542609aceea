"""Clients in a worker process are checked by the rules of their calls, as simulated ones are."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
import trio

from shaketable.harness import discovery
from shaketable.harness.contracts.abilities import Broken, ChecksClients
from shaketable.system.client import BrokerGroupClient, ClientParts, RefusedError
from shaketable.system.client.connection import Connection, OutcomeUnknownError
from shaketable.system.invariants.violated import Violated
from shaketable.system.mutants import load
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.sim.rules.call_invariants import CallRules


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that refuses each request for good."""

    async def call(_: Connection, command: Command, timeout_s: float) -> Command:
        await trio.lowlevel.checkpoint()
        return Command(ResponseCode.NO_PERMISSION, remark="no")

    monkeypatch.setattr(Connection, "call", call)


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize("target", ["dledger", "async-replication"])
@pytest.mark.parametrize(
    ("bug", "broken"),
    [("refusals-tried-again", ["refusals-are-final"]), (None, [])],
    ids=["planted", "healthy"],
)
def test_a_refusal_that_is_tried_again_is_told(
    target: str, bug: str | None, broken: list[str]
) -> None:
    rules = discovery.get("targets", target)
    assert isinstance(rules, ChecksClients)
    told: list[Broken] = []
    parts = load(bug).client if bug else ClientParts()
    before = vars(BrokerGroupClient)["send"]

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener:
            address = listener.socket.getsockname()[:2]
            client = parts.group_client({"n0": address}, rng=Random(1))
            for _ in range(2):
                with pytest.raises(RefusedError):
                    await client.send("t", 0, b"")
            client.close()

    with rules.checked_clients(told.append, lambda: 7):
        trio.run(main)
    assert [each.invariant for each in told] == broken
    assert all(each.promise and each.at_ns == 7 for each in told)
    assert vars(BrokerGroupClient)["send"] is before, "the classes are as they were"


@pytest.mark.parametrize("bug", ["stays-with-the-silent", None])
def test_who_cannot_be_reached_was_tried(bug: str | None) -> None:
    """One member is paused and the others are down: asked again is who did not answer."""
    rules = discovery.get("targets", "dledger")
    assert isinstance(rules, ChecksClients)
    told: list[Broken] = []
    parts = load(bug).client if bug else ClientParts()

    async def main() -> None:
        (paused,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        (down,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        addresses = [each.socket.getsockname()[:2] for each in (paused, down, down)]
        await down.aclose()
        async with paused:
            members = dict(zip(("a", "b", "c"), addresses, strict=True))
            client = parts.group_client(members, timeout_s=0.3, rng=Random(1))
            for number in range(6):
                with suppress(OutcomeUnknownError, RefusedError):
                    await client.send("t", 0, b"%d" % number)
            client.close()

    with rules.checked_clients(told.append, lambda: 7):
        trio.run(main)
    assert {each.invariant for each in told} == ({"others-are-asked"} if bug else set())


def test_what_was_done_may_be_asked_for_again_at_once() -> None:
    """A counter sends the same message each time that it adds one."""
    told: list[Violated] = []
    rules = CallRules(told.append)
    command = Command(RequestCode.SEND_MESSAGE_V2, body=b"1")

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        host, port = listener.socket.getsockname()
        connection = await Connection.open(host, port, 5.0)
        for code, broken in ((ResponseCode.SUCCESS, 0), (ResponseCode.SYSTEM_BUSY, 1)):
            for opaque in range(50):
                rules.asking(connection, command)
                rules.answered(connection, Command(code, opaque))
            assert [each.invariant for each in told] == ["clients-pause"] * broken
        connection.close()
        await listener.aclose()

    trio.run(main)
