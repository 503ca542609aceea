"""The public client against a group of real brokers on a table, over real sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

import pytest
import trio
import trio.testing
from broker_group import BrokerGroup
from broker_servers import BrokerServers, serving

from shaketable.system.client import (
    AdminClient,
    AdminTimeoutError,
    BatchMessage,
    BrokerGroupClient,
    OutcomeUnknownError,
    RefusedError,
)
from shaketable.system.client.group import Metadata
from shaketable.system.raft.protocol import Role
from shaketable.system.remoting.command import FRAME_BYTES_MAX

Scenario = Callable[[BrokerServers, BrokerGroupClient, trio.Nursery], Awaitable[None]]


def run(scenario: Scenario, size: int = 3, timeout_s: float = 20.0) -> None:
    async def main() -> None:
        group = BrokerGroup(size)
        group.lead()
        async with serving(group) as (servers, nursery):
            client = BrokerGroupClient(servers.addresses, timeout_s=timeout_s, rng=Random(1))
            try:
                await scenario(servers, client, nursery)
            finally:
                client.close()

    trio.run(main)


def test_what_is_sent_is_pulled_at_the_leader_and_at_every_member() -> None:
    async def scenario(servers: BrokerServers, client: BrokerGroupClient, _: trio.Nursery) -> None:
        await client.send("t", 2, b"one", properties="KEYS\x01k\x02")
        batch = await client.send_batch("t", 2, [b"two", BatchMessage(b"three", b"A\x01b\x02")])
        assert (batch.queue_id, batch.first_offset, len(batch.message_ids)) == (2, 1, 2)
        got = await client.pull("t", 2, 0)
        assert [(m.body, m.properties) for m in got.messages] == [
            (b"one", b"KEYS\x01k\x02"),
            (b"two", b""),
            (b"three", b"A\x01b\x02"),
        ]
        assert (await client.max_offset("t", 2), await client.min_offset("t", 2)) == (3, 0)
        for member in client.members:
            while (here := await client.pull_from(member, "t", 2, 0)).max_offset < 3:
                await trio.sleep(0.01)
            assert here.messages == got.messages

    run(scenario)


def test_a_refusal_that_would_be_repeated_is_not_asked_for_again() -> None:
    async def scenario(servers: BrokerServers, client: BrokerGroupClient, _: trio.Nursery) -> None:
        await client.send("t", 0, b"finds the leader")
        before = servers.asked["n0 310"]
        with pytest.raises(RefusedError, match="reserved"):
            await client.send("RMQ_SYS_X", 0, b"")
        assert servers.asked["n0 310"] == before + 1
        with pytest.raises(RefusedError, match="no client address of n9"):
            await client.pull_from("n9", "t", 0, 0)

    run(scenario)


def test_the_leadership_goes_where_it_is_sent() -> None:
    async def scenario(servers: BrokerServers, client: BrokerGroupClient, _: trio.Nursery) -> None:
        admin = AdminClient(client)
        assert (await admin.membership()).member == "n0"
        await admin.transfer_leadership("n2")
        assert servers.group.members["n2"].core.role is Role.LEADER
        await client.send("t", 0, b"a")
        assert client.answered_by == "n2"
        said = await admin.membership()
        assert (said.member, said.leader, said.voters) == ("n2", "n2", ("n0", "n1", "n2"))
        with pytest.raises(RefusedError, match="no other voter"):
            await admin.transfer_leadership("n7")

    run(scenario)


def test_a_member_is_replaced_by_one_that_has_caught_up() -> None:
    async def scenario(
        servers: BrokerServers, client: BrokerGroupClient, nursery: trio.Nursery
    ) -> None:
        admin = AdminClient(client)
        for number in range(20):
            await client.send("t", 0, b"%d" % number)
        servers.group.join("n3")
        await servers.listen("n3", nursery)
        await admin.replace_member("n1", "n3", "127.0.0.1:40914", servers.addresses["n3"])
        assert client.members == ("n0", "n2", "n3")
        said = await admin.membership()
        assert (said.voters, said.learners) == (("n0", "n2", "n3"), ())
        assert said.addresses == (("n3", "127.0.0.1:40914"),)
        here = await client.metadata("n3")
        while here.applied_index < said.committed_index:
            here = await client.metadata("n3")
        assert (await client.pull_from("n3", "t", 0, 0)).max_offset == 20
        await admin.transfer_leadership("n3")
        assert (await client.send("t", 0, b"at the new one")).queue_offset == 20

    run(scenario)


def test_a_member_that_never_comes_stays_a_learner_and_may_be_removed() -> None:
    async def scenario(servers: BrokerServers, client: BrokerGroupClient, _: trio.Nursery) -> None:
        admin = AdminClient(client)
        await admin.add_member("n3", "127.0.0.1:1", ("127.0.0.1", 1))
        with pytest.raises(AdminTimeoutError, match=r"n3 did not become a voter.*learners.*n3"):
            await admin.wait_until_voter("n3", timeout_s=0.3)
        await client.send("t", 0, b"learners count for nothing")
        await admin.remove_member("n3")
        assert "n3" not in client.members
        assert (await admin.membership()).learners == ()

    run(scenario)


def test_an_election_is_waited_for() -> None:
    async def scenario(servers: BrokerServers, client: BrokerGroupClient, _: trio.Nursery) -> None:
        admin = AdminClient(client)
        servers.group.cut = {"n0", "n1", "n2"}
        while servers.group.members["n0"].core.role is Role.LEADER:
            await trio.sleep(0.01)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_heal_after, servers, 0.2)
            assert (await admin.membership()).role == "leader"

    run(scenario)


async def _heal_after(servers: BrokerServers, pause_s: float) -> None:
    await trio.sleep(pause_s)
    servers.group.cut = set()


def test_a_group_without_a_leader_says_so() -> None:
    async def scenario(servers: BrokerServers, client: BrokerGroupClient, _: trio.Nursery) -> None:
        admin = AdminClient(client)
        servers.group.cut = {"n0", "n1", "n2"}
        while servers.group.members["n0"].core.role is Role.LEADER:
            await trio.sleep(0.01)
        with pytest.raises(
            RefusedError, match="no member reports that it leads; answers: n0, n1, n2"
        ):
            await admin.membership()

    run(scenario, timeout_s=3.0)


def test_a_member_that_is_down_does_not_hide_the_leader() -> None:
    async def scenario(servers: BrokerServers, client: BrokerGroupClient, _: trio.Nursery) -> None:
        servers.down = {"n2"}
        assert (await AdminClient(client).membership()).member == "n0"
        await client.send("t", 0, b"a")
        assert client.answered_by == "n0"

    run(scenario)


def test_a_request_without_time_left_is_certainly_not_sent() -> None:
    """A starved caller may find its deadline past before it could send."""

    async def scenario(servers: BrokerServers, client: BrokerGroupClient, _: trio.Nursery) -> None:
        client._timeout_s = 0.0
        with pytest.raises(RefusedError, match="cannot be reached"):
            await client.send("t", 0, b"there is not even a connection")
        client._timeout_s = 20.0
        assert (await client.send("t", 0, b"a")).queue_offset == 0
        client._timeout_s = 0.0
        with pytest.raises(RefusedError, match="no time was left"):
            await client.send("t", 0, b"there is one, to the leader")
        client._timeout_s = 20.0
        assert await client.max_offset("t", 0) == 1

    run(scenario)


def test_a_refusal_is_not_traded_for_an_unknown_outcome_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With too little time left to hear an answer, what is certain stays certain."""
    attempts = []

    async def answer(connection: object, request: object, timeout_s: float) -> None:
        attempts.append(timeout_s)
        if len(attempts) == 1:
            await trio.sleep(1.7)
            raise RefusedError(2, "[415] the disk is full")
        await trio.sleep(timeout_s)
        raise OutcomeUnknownError("no answer in time")

    async def connected(client: BrokerGroupClient, member: str, timeout_s: float) -> object:
        return object()

    monkeypatch.setattr("shaketable.system.client.group._call", answer)
    monkeypatch.setattr(BrokerGroupClient, "_connection", connected)

    async def send() -> None:
        client = BrokerGroupClient({"n0": ("127.0.0.1", 1)}, timeout_s=2.0, rng=Random(1))
        with pytest.raises(RefusedError, match="disk is full"):
            await client.send("t", 0, b"a")

    trio.run(send, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(attempts) == 1


def test_a_voter_is_one_for_good_before_the_next_change_is_asked_for() -> None:
    """The entry that promotes counts at once where it is appended, and may be lost still."""

    async def main() -> None:
        promoting = replace(
            Metadata("n0", "leader", 1, "n0", committed_index=9, end_index=10),
            voters=("n0", "n1", "n3"),
            membership_index=10,
        )
        answers = [promoting, promoting, replace(promoting, committed_index=10)]
        admin = AdminClient(BrokerGroupClient({"n0": ("127.0.0.1", 1)}, rng=Random(1)))

        async def membership() -> Metadata:
            return answers.pop(0)

        admin.membership = membership  # type: ignore[method-assign]
        await admin.wait_until_voter("n3", timeout_s=20.0)
        assert answers == []

    trio.run(main)


def test_a_request_that_does_not_fit_the_wire_is_certainly_not_sent() -> None:
    async def scenario(servers: BrokerServers, client: BrokerGroupClient, _: trio.Nursery) -> None:
        with pytest.raises(RefusedError, match="not sent: frame of"):
            await client.send("t", 0, bytes(FRAME_BYTES_MAX))
        with pytest.raises(RefusedError, match=r"not sent: .* does not fit the wire"):
            await client.send("\ud800", 0, b"no text")
        assert not servers.asked
        assert (await client.send("t", 0, b"a")).queue_offset == 0

    run(scenario)


def test_requests_at_once_leave_no_connection_behind() -> None:
    async def scenario(
        servers: BrokerServers, client: BrokerGroupClient, nursery: trio.Nursery
    ) -> None:
        async with trio.open_nursery() as asking:
            for _ in range(5):
                for member in client.members:
                    asking.start_soon(client.metadata, member)
        client.close()
        while servers.connected:
            await trio.sleep(0.01)

    run(scenario)
