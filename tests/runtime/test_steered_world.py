"""Clocks and disks of real nodes: what is ordered happens, is measured there, and is healed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from shaketable.harness.contracts.capabilities import ClockChange, Damage, DiskFaultSpec
from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import UNTOUCHED, Address, NodeLayout
from shaketable.harness.network.proxy import ProxyNetwork
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.processes import ports
from shaketable.harness.runtime.processes.disks import Member
from shaketable.harness.runtime.processes.nodes import NodeProcess
from shaketable.harness.runtime.world import ProcessWorld
from shaketable.harness.targets.dledger import DLedgerTarget

pytestmark = pytest.mark.e2e

PATIENCE_S = 60
NODES = ("n0", "n1", "n2")
OPTIONS = {
    "seed": "7",
    "disk": "volatile",
    "data_file_bytes": 1 << 16,
    "index_file_bytes": 1 << 13,
    "spares": True,
    "steering": True,
}


@asynccontextmanager
async def group(folder: Path) -> AsyncIterator[tuple[ProcessWorld, dict[str, Address]]]:
    """Three members of a real group that take orders, with clients' addresses."""
    target, start_ns = DLedgerTarget(), time.monotonic_ns()
    numbers = ports.find_free(2 * len(NODES))
    addresses = [Address(ports.HOST, number) for number in numbers]
    clients = dict(zip(NODES, addresses[: len(NODES)], strict=True))
    peers = dict(zip(NODES, addresses[len(NODES) :], strict=True))
    network = ProxyNetwork(peers)
    members = {}
    for node in NODES:
        (folder / node).mkdir()
        reach = {peer: network.address(node, peer) for peer in NODES if peer != node}
        layout = NodeLayout(node, folder / node, clients[node], peers[node], reach, OPTIONS)
        log = folder / node / "node.log"
        process = NodeProcess(node, target.prepare(layout), layout.directory, log, start_ns)
        members[node] = Member(layout, process)
    lines = Lines(folder / "status.jsonl")
    world = ProcessWorld(target, members, network, lines, SilentObserver(), start_ns)
    try:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(network.run)
                await nursery.start(world.run)
                world.start_all()
                await until_ready(world)
                yield world, clients
                assert world.exits == [], "an end that a fault caused is no node's own"
                nursery.cancel_scope.cancel()
    finally:
        lines.close()
        network.close()


async def until_ready(world: ProcessWorld) -> str:
    """Wait until all agree on a leader; return it."""
    since = trio.current_time()
    while not world.group_status.is_ready(since):
        await trio.sleep(0.02)
    leader = await world.leader()
    assert leader is not None
    return leader


def stored(folder: Path) -> int:
    """Return how many entries of n1 are on its disk: those that it only received die with it."""
    return sum(batch.num_rows for batch in DLedgerTarget().read_log(folder, "n1"))


async def until(is_so: Callable[[], object]) -> None:
    while not is_so():
        await trio.sleep(0.01)


@asynccontextmanager
async def appends(clients: dict[str, Address]) -> AsyncIterator[list[int]]:
    """Appends under way all the time; yields the offsets of those that were acknowledged."""
    done: list[int] = []

    async def append(number: int) -> None:
        client = DLedgerTarget().client(clients, 1.0)
        try:
            while True:
                try:
                    done.append(await client.append(f"steered/{number}", len(done)))
                except (DefiniteError, IndefiniteError):
                    await trio.sleep(0.02)
        finally:
            await client.aclose()

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(append, number)
        yield done
        nursery.cancel_scope.cancel()


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main)


def test_clocks_are_changed_measured_and_right_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as (world, _):
            before = await world.read_clock("n0")
            assert abs(before.offset_ms) < 20
            assert abs(before.rate - 1) < 0.05
            slow = await world.skew("n0", ClockChange(rate=0.25))
            wrong = await world.skew("n0", ClockChange(offset_ms=-90_000, which="wall"))
            found = await world.read_clock("n0")
            assert abs(found.rate - 0.25) < 0.05
            assert -93_000 < found.offset_ms < -89_000
            assert abs((await world.read_clock("n1")).offset_ms) < 20, "nobody else's"
            await world.unskew("n0", wrong)
            await world.unskew("n0", slow)
            await world.unskew("n0", slow)
            healed = await world.read_clock("n0")
            assert abs(healed.offset_ms) < 20
            assert abs(healed.rate - 1) < 0.05
            frozen = await world.skew(await until_ready(world), ClockChange(rate=0.0))
            assert frozen
            # Nobody hears of the leader any more: its heartbeats are timers of its clock.
            led = world.group_status.leading()
            await until(lambda: world.group_status.leading()[1] > led[1])

    run(main)


def test_disks_fail_fill_up_wait_and_lose_power(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as (world, clients), appends(clients) as done:
            await until(lambda: len(done) > 50)
            slow = await world.inject_disk_fault("n0", DiskFaultSpec(op="sync", delay_ms=30))
            stalled = await world.inject_disk_fault("n1", DiskFaultSpec(op="write", stall=True))
            await until(lambda: world.disk_fault_effects(slow)["slowed"] > 2)
            await until(lambda: world.disk_fault_effects(stalled)["slowed"])
            for disk_fault in (slow, stalled, stalled):
                await world.heal_disk(disk_fault)
            assert world.disk_fault_effects(slow)["waited_ms"] >= 60
            assert not world.disk_fault_effects(stalled)["ended"]

            leader = await until_ready(world)
            full = await world.inject_disk_fault(leader, DiskFaultSpec(op="write", error="ENOSPC"))
            await until(lambda: world.disk_fault_effects(full)["errors"])
            await world.heal_disk(full)

            leader = await until_ready(world)
            incarnation = world.incarnation(leader)
            failing = await world.inject_disk_fault(
                leader, DiskFaultSpec(op="sync", error="EIO", nth=3)
            )
            await until(lambda: world.disk_fault_effects(failing)["ended"])
            await world.heal_disk(failing)
            assert world.disk_fault_effects(failing)["errors"] == 1
            assert world.incarnation(leader) == incarnation + 1
            await until_ready(world)

            lost = await world.lose_power(["n2"], "sync:1")
            assert lost["lost_bytes"]["n2"] > 0, "what was to be synced was not yet"
            gone = await world.lose_power(NODES)
            assert not any(world.is_running(node) for node in NODES)
            assert gone["incarnations"]["n2"] == UNTOUCHED
            for node, each in {**gone["incarnations"], **lost["incarnations"]}.items():
                await world.restart(node, each)
            await until_ready(world)
            count = len(done)
            await until(lambda: len(done) > count + 20)
            assert world.effects("n0")["sync"] > 20

    run(main)


def test_a_damaged_node_refuses_its_log_and_comes_back_from_its_group(tmp_path: Path) -> None:
    async def main() -> None:
        async with group(tmp_path) as (world, clients), appends(clients) as done:
            await until(lambda: len(done) > 200)
            await world.kill("n0")
            changed = await world.damage("n0", Damage(how="flip", bytes_=1, seed="7"))
            assert changed["bytes"] == 1
            found = await world.start_damaged("n0", 1)
            assert "damaged" in found["refused"]
            await world.revive("n0", found["incarnation"])
            assert world.is_running("n0")
            await world.revive("n0", found["incarnation"])

            await world.kill("n1")
            copy = await world.copy_store("n1")
            copied = stored(tmp_path / "n1")
            await world.restart("n1", 1)
            await until(lambda: stored(tmp_path / "n1") > copied + 50)
            await world.kill("n1")
            back = await world.damage("n1", Damage(how="rollback", copy=copy))
            assert back["entries"] > 0
            await world.restart("n1", 2)
            await until_ready(world)

    run(main)
