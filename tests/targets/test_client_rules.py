"""Clients in a worker process are checked by the rules of their calls, as simulated ones are."""

from __future__ import annotations

from random import Random

import pytest
import trio

from shaketable.harness import discovery
from shaketable.harness.contracts.abilities import Broken, ChecksClients
from shaketable.system.client import BrokerGroupClient, ClientParts, RefusedError
from shaketable.system.client.connection import Connection
from shaketable.system.mutants import load
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import Command


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
