"""Brokers without a group in the simulated world: each invariant catches a bug planted for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest
import trio

from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.targets import master_slave_brokers, simulated_group
from shaketable.harness.targets.async_replication import PLUGIN as ASYNC
from shaketable.harness.targets.multi_master import PLUGIN as MASTERS
from shaketable.harness.targets.simulated_group import BrokerGroup
from shaketable.harness.targets.sync_double_write import PLUGIN as SYNC
from shaketable.system.broker.broker import Broker
from shaketable.system.invariants.violated import Violated
from shaketable.system.master_slave.core import BrokerRole, MasterSlaveConfig, MasterSlaveCore
from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.node.master_slave.parts import MasterSlaveParts
from shaketable.system.raft.protocol import Append, Batch, LogEnd
from shaketable.system.sim.rules.master_slave_invariants import (
    MasterSlaveInvariants,
    MasterSlaveShadow,
)
from shaketable.system.store.plain_commit_log import PlainBatch, PlainCommitLog, plain_end

NODES = ("n0", "n1")
OPTIONS = {
    "seed": "7",
    "mutant": None,
    "disk": "volatile",
    "ack": "fsync",
    "leases_ms": 0,
    "data_file_bytes": 1 << 20,
    "index_file_bytes": 1 << 18,
}
QUEUES = 4
READY_S = 4.0
"""By then the slave has registered, heard of its master, and copies."""

Course = Callable[[BrokerGroup, master_slave_brokers.MasterSlaveClient], Awaitable[None]]


def play(
    monkeypatch: pytest.MonkeyPatch,
    target: master_slave_brokers.MasterSlaveTarget,
    course: Course,
    made_of: Mutant = HEALTHY,
) -> list[str]:
    """Run two brokers, made of other parts, through a course; return what broke."""
    monkeypatch.setattr(simulated_group, "planted_bug", lambda _: made_of)
    group = target.simulated_group(NODES, OPTIONS, ("ns0",))
    assert isinstance(group, BrokerGroup)

    async def main() -> None:
        group.run_as_client()
        client = group.client(group.addresses, 1.0)
        assert isinstance(client, master_slave_brokers.MasterSlaveClient)
        client.use("t", QUEUES)
        await trio.sleep(READY_S)
        await course(group, client)
        await client.aclose()

    group.run(main)
    return [broken.invariant for broken in group.broken]


def master_slave(**parts: type) -> Mutant:
    """Brokers without a group, of other parts."""
    return Mutant("planted", master_slave=MasterSlaveParts(**parts))  # type: ignore[arg-type]


async def send(
    _: BrokerGroup, client: master_slave_brokers.MasterSlaveClient, count: int = 20
) -> None:
    for value in range(count):
        await tried(client, value)


async def tried(client: master_slave_brokers.MasterSlaveClient, value: int) -> None:
    with suppress(DefiniteError, IndefiniteError):
        await client.send(f"t/{value % QUEUES}", value)


async def send_and_kill(group: BrokerGroup, client: master_slave_brokers.MasterSlaveClient) -> None:
    await send(group, client)
    for node in NODES:
        group.kill(node)
        group.start(node)
    await trio.sleep(1)
    await send(group, client)


async def send_at_once(group: BrokerGroup, client: master_slave_brokers.MasterSlaveClient) -> None:
    """The master's disk is paused while many send."""
    await send(group, client)
    group.machines.stall("n0", group.now_ns() / 1e6 + 8000)
    async with trio.open_nursery() as nursery:
        for value in range(40):
            nursery.start_soon(tried, client, value)
    await trio.sleep(8)


@pytest.mark.parametrize("target", [MASTERS, ASYNC, SYNC], ids=lambda target: target.name)
def test_sound_brokers_break_nothing(
    target: master_slave_brokers.MasterSlaveTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def course(group: BrokerGroup, client: master_slave_brokers.MasterSlaveClient) -> None:
        await send_and_kill(group, client)
        group.lose_power("n1")
        group.start("n1")
        await send_at_once(group, client)
        assert await client.max_offset("t/0") > 0

    assert play(monkeypatch, target, course) == []


def test_a_client_that_knew_the_topic_makes_it_again_on_a_master_without_its_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Consumers keep a route for long: what they know may be of before the disk was lost."""
    sent = []

    async def course(group: BrokerGroup, client: master_slave_brokers.MasterSlaveClient) -> None:
        for value in range(QUEUES):
            await client.poll(f"t/{value}", await client.send(f"t/{value}", value))
        group.kill("n1")
        group.lose_disk("n1")
        await tried(client, 1)  # producers ask anew where the topic is, and n1 is not there
        group.start("n1")
        await trio.sleep(1)
        since_s = trio.current_time()
        while not sent and trio.current_time() < since_s + 5:
            with suppress(DefiniteError, IndefiniteError):
                sent.append(await client.send("t/1", 101))

    assert play(monkeypatch, MASTERS, course) == []
    assert sent == [0]


def test_consumers_of_a_campaign_soon_have_the_queues_of_a_master_that_came_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited_s = []

    async def course(group: BrokerGroup, client: master_slave_brokers.MasterSlaveClient) -> None:
        await send(group, client, QUEUES)
        group.kill("n1")
        await trio.sleep(3)
        await client.start_handling(is_ordered=False)  # it hears of n0 alone
        await trio.sleep(3)
        group.start("n1")
        since_s = trio.current_time()
        keys: set[str] = set()
        while "t/1" not in keys and trio.current_time() < since_s + 40:
            await tried(client, 1)  # a new group begins at the end
            if (delivery := client.next_delivery()) is not None:
                keys.add(delivery.key)
                await client.handle(delivery)
            await trio.sleep(0.1)
        waited_s.append(trio.current_time() - since_s)
        await client.stop_handling(is_tidy=True)

    assert play(monkeypatch, MASTERS, course) == []
    assert waited_s[0] < 8, "and not after the 30 s that RocketMQ's consumers keep a route"


def test_a_slave_that_damages_what_it_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Damages(MasterSlaveCore):
        def copy(self, batch: Batch, now_ms: float) -> None:
            data = bytearray(batch.data)
            data[-1] ^= 1
            super().copy(
                PlainBatch(batch.first_index, batch.count, batch.term, batch.position, data),
                now_ms,
            )

    assert "slave-copies-master" in play(monkeypatch, ASYNC, send, master_slave(core=Damages))


def test_a_master_that_sends_what_it_has_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    class SendsEarly(MasterSlaveCore):
        @property
        def written_position(self) -> int:
            return self.log.end_position

    assert "slave-behind-master" in play(
        monkeypatch, ASYNC, send_at_once, master_slave(core=SendsEarly)
    )


def test_a_slave_that_reports_what_it_has_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    class ReportsEarly(MasterSlaveCore):
        @property
        def reported_position(self) -> int:
            return self.log.end_position

    async def course(group: BrokerGroup, client: master_slave_brokers.MasterSlaveClient) -> None:
        group.machines.set_lateness("n1", 50.0)
        await send(group, client)

    assert "acknowledged-is-copied" in play(
        monkeypatch, SYNC, course, master_slave(core=ReportsEarly)
    )
    assert play(monkeypatch, SYNC, course) == []


def test_a_master_that_answers_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    class AnswersEarly(MasterSlaveCore):
        def synced(self, write_seq: int, now_ms: float | None = None) -> None:
            super().synced(write_seq, now_ms)
            self.flushed(self.ledger.commit_index)

    assert "acknowledged-is-flushed" in play(
        monkeypatch, ASYNC, send, master_slave(core=AnswersEarly)
    )


def test_a_log_that_forgets_its_last_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgets(PlainCommitLog):
        def _recover(self, starts: list[int]) -> LogEnd:  # type: ignore[override]
            end = super()._recover(starts)
            last = self.read_entries_before(end)
            return plain_end(last)

        def read_entries_before(self, end: LogEnd) -> int:
            """Where the last message begins."""
            self.end, at = end, self._start.position
            while at < end.position:
                size = int.from_bytes(self.read(at, 4), "big")
                if at + size >= end.position:
                    break
                at += size
            return at

    assert "log-survives" in play(
        monkeypatch, MASTERS, send_and_kill, master_slave(commit_log=Forgets)
    )


def test_a_broker_that_never_gives_up_an_append(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waits(Broker):
        def tick(self, now_ms: float) -> None:
            self.core.tick(now_ms)

    assert "appends-are-answered" in play(
        monkeypatch, MASTERS, send_at_once, Mutant("planted", broker=Waits)
    )


def test_a_broker_that_lets_more_wait_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    class LetsAllIn(Broker):
        def __init__(self, *args: object, **parts: object) -> None:
            super().__init__(*args, **parts)  # type: ignore[arg-type]
            self._config = replace(self._config, pending_sends_max=2)

    assert "queues-are-bounded" in play(
        monkeypatch, MASTERS, send_at_once, Mutant("planted", broker=LetsAllIn)
    )


def test_a_log_goes_on_where_it_ended() -> None:
    invariants = MasterSlaveInvariants()
    shadow = MasterSlaveShadow("n0", "broker-0", MasterSlaveConfig())
    invariants.ordered(shadow, [Append(_bytes_at(0)), Append(_bytes_at(10))])
    with pytest.raises(Violated, match="log-contiguous: bytes 30 come after 20"):
        invariants.ordered(shadow, [Append(_bytes_at(30))])


def _bytes_at(position: int) -> Batch:
    return PlainBatch(position, 10, 0, position, bytes(10))


def test_what_a_slave_has_beyond_its_master_is_no_copy() -> None:
    invariants = MasterSlaveInvariants()
    master = MasterSlaveShadow("n0", "broker-0", MasterSlaveConfig(role=BrokerRole.SYNC_MASTER))
    slave = MasterSlaveShadow("n1", "broker-0", MasterSlaveConfig(role=BrokerRole.SLAVE))
    invariants.shadows = {"n0": master, "n1": slave}
    master.end, slave.end, slave.written = 60, 100, 100
    invariants._masters["broker-0"], invariants._copied["broker-0"] = master, 100
    invariants._mark_diverged(master)
    invariants.flushed(slave, 100)
    assert invariants._copied["broker-0"] == 60
    slave.end = slave.written = 60
    invariants.flushed(slave, 60)
    slave.end = slave.written = 80
    invariants.flushed(slave, 80)
    assert invariants._copied["broker-0"] == 80
