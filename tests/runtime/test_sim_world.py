"""The simulated world keeps the contract of World: exact, idempotent, by incarnation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from shaketable.harness.contracts.capabilities import ClockChange, DiskFaultSpec
from shaketable.harness.contracts.plugins import UNTOUCHED
from shaketable.harness.runtime.group_status import wait_until
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.simulated.world import SimulatedWorld
from shaketable.harness.targets.dledger import DLedgerTarget
from shaketable.harness.targets.simulated_group import BrokerGroup

NODES = ("n0", "n1", "n2")
OPTIONS = {
    "seed": "7",
    "mutant": None,
    "disk": "volatile",
    "ack": "fsync",
    "leases_ms": 0,
    "data_file_bytes": 1 << 20,
    "index_file_bytes": 1 << 18,
}
PATIENCE_S = 20.0
Scenario = Callable[[SimulatedWorld, BrokerGroup], Awaitable[None]]


def play(tmp_path: Path, scenario: Scenario) -> None:
    group = BrokerGroup(DLedgerTarget(), NODES, OPTIONS)
    lines = Lines(tmp_path / "status.jsonl")

    async def main() -> None:
        world = SimulatedWorld(NODES, group, lines, SilentObserver())
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                await nursery.start(world.run)
                world.start_all()
                await ready(world)
                await scenario(world, group)
                nursery.cancel_scope.cancel()

    group.run(main)
    lines.close()
    assert group.broken == []


async def ready(world: SimulatedWorld) -> None:
    since = trio.current_time()
    is_ready = world.group_status.is_ready
    assert await wait_until(lambda: is_ready(since), PATIENCE_S), world.group_status.why_not_ready()


def test_kill_and_restart_by_incarnation(tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld, group: BrokerGroup) -> None:
        assert await world.kill("n0") == {"incarnation": 1}
        assert await world.kill("n0") == {"incarnation": UNTOUCHED}
        assert await world.pause("n0") == {"incarnation": UNTOUCHED}
        assert not world.is_alive("n0", 1)
        await world.restart("n0", UNTOUCHED)
        await world.restart("n0", 2)
        assert not world.is_running("n0")
        await world.restart("n0", 1)
        await world.restart("n0", 1)
        assert world.is_alive("n0", 2)
        await ready(world)
        assert world.exits == []

    play(tmp_path, scenario)


def test_pause_is_not_ended_by_another(tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld, group: BrokerGroup) -> None:
        assert await world.pause("n1") == {"incarnation": 1}
        assert await world.pause("n1") == {"incarnation": UNTOUCHED}
        await world.resume("n1", UNTOUCHED)
        assert world.is_paused("n1")
        assert await world.kill("n1") == {"incarnation": 1}
        await world.restart("n1", 1)
        await world.resume("n1", 1)
        assert world.is_alive("n1", 2)
        assert not world.is_paused("n1")
        await ready(world)

    play(tmp_path, scenario)


@pytest.mark.parametrize("how", ["deliver", "reset"])
def test_a_cut_deposes_the_leader_and_is_mended_once(tmp_path: Path, how: str) -> None:
    async def scenario(world: SimulatedWorld, group: BrokerGroup) -> None:
        leader = await world.leader()
        assert leader is not None
        others = [node for node in NODES if node != leader]
        links = [link for node in others for link in ((node, leader), (leader, node))]
        cut, same = await world.cut(links), await world.cut(links)

        def another_leads() -> bool:
            return world.group_status.leading()[0] not in (None, leader)

        assert await wait_until(another_leads, PATIENCE_S)
        held = world.held(cut)
        assert held["bytes"] > 0
        await world.heal(cut, how)
        await world.heal(cut, how)
        assert world.held(cut) == held, "what it held stays known"
        assert world.held(same)["bytes"] > 0, "cuts are counted"
        await world.heal(same, how)
        await ready(world)
        assert world.restore() == ()

    play(tmp_path, scenario)


def test_leadership_is_transferred_in_virtual_time(tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld, group: BrokerGroup) -> None:
        leader = await world.leader()
        to = next(node for node in NODES if node != leader)
        answer = await world.transfer(to)
        assert answer["from"] == leader
        assert answer["took_ms"] > 0
        assert await wait_until(lambda: world.group_status.leading()[0] == to, PATIENCE_S)

    play(tmp_path, scenario)


def test_restore_finds_what_was_left_and_stopped_nodes_leave_their_files(tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld, group: BrokerGroup) -> None:
        cut = await world.cut([("n0", "n1")])
        await world.pause("n2")
        await world.kill("n1")
        assert world.restore() == (
            f"{cut} was not healed",
            "node n2 was still paused",
            "node n1 was down: started again",
        )
        await ready(world)
        await world.stop_all()
        assert not any(map(world.is_running, NODES))
        assert world.exits == []
        group.save("n0", tmp_path / "n0")

    play(tmp_path, scenario)
    assert list((tmp_path / "n0" / "store" / "dledger-n0" / "data").iterdir())


def test_restore_finds_clocks_and_disks_that_nobody_healed(tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld, group: BrokerGroup) -> None:
        await world.skew("n0", ClockChange(which="wall", offset_ms=60_000.0))
        await world.skew("n1", ClockChange(which="monotonic", offset_ms=50.0, strobe_ms=100.0))
        disk_fault = await world.inject_disk_fault("n2", DiskFaultSpec(op="write", error="ENOSPC"))
        assert world.restore() == (
            "the clock of n0 was still wrong",
            "the clock of n1 was still wrong",
            f"{disk_fault} of n2 was still in force",
        )
        assert world.restore() == ()
        assert abs((await world.read_clock("n0")).offset_ms) < 1
        before = world.disk_fault_effects(disk_fault)
        await world.heal_disk(disk_fault)
        assert world.disk_fault_effects(disk_fault) == before
        await ready(world)

    play(tmp_path, scenario)


@pytest.mark.parametrize("is_struck", [True, False])
def test_a_disk_that_fails_answers_for_those_alone_whose_calls_failed(
    tmp_path: Path, is_struck: bool
) -> None:
    """A node's own crash while its disk would fail, but was not asked, is its own."""

    async def scenario(world: SimulatedWorld, group: BrokerGroup) -> None:
        disk_fault = await world.inject_disk_fault(
            "n1", DiskFaultSpec(op="sync", error="EIO", nth=1 if is_struck else 9_999)
        )
        if not is_struck:
            group._world.process_ended(group._host("n1"), AssertionError("an entry changed"))
        assert await wait_until(lambda: not world.is_running("n1"), PATIENCE_S)
        await trio.sleep(1.0)  # whoever tells of ends has looked
        assert world.disk_fault_effects(disk_fault)["ended"] == is_struck
        assert [one.node for one in world.exits] == ([] if is_struck else ["n1"])
        await world.heal_disk(disk_fault)
        assert world.is_running("n1") == is_struck

    play(tmp_path, scenario)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_errors_of_an_incarnation_that_was_ended_excuse_no_later_one(
    tmp_path: Path, how: str
) -> None:
    async def scenario(world: SimulatedWorld, group: BrokerGroup) -> None:
        disk_fault = await world.inject_disk_fault(
            "n1", DiskFaultSpec(op="sync", error="EIO", nth=9_999)
        )
        ((_, order),) = group.machines._known["n1"]
        order.errors = 1  # the call failed, and the node is ended before it takes its leave
        await (world.kill("n1") if how == "kill" else world.stop("n1"))
        await world.restart("n1", 1)
        await ready(world)
        group._world.process_ended(group._host("n1"), AssertionError("an entry changed"))
        await trio.sleep(1.0)
        assert not world.disk_fault_effects(disk_fault)["ended"]
        assert [one.node for one in world.exits] == ["n1"]

    play(tmp_path, scenario)


def test_a_node_that_lost_its_disk_is_started_by_what_replaces_it_alone(tmp_path: Path) -> None:
    """A power loss may kill it in the same moment, and starts later what it struck."""

    async def scenario(world: SimulatedWorld, group: BrokerGroup) -> None:
        wiped = await world.wipe("n2")
        await world.restart("n2", wiped["incarnation"])
        assert not group.is_running("n2"), "it has forgotten its votes"
        await world.replace("n2", wiped["incarnation"])
        await ready(world)
        killed = await world.kill("n2")
        await world.restart("n2", killed["incarnation"])
        assert group.is_running("n2")

    play(tmp_path, scenario)


def test_no_member_goes_while_a_disk_is_awaited_and_no_disk_while_a_member_may_be_out(
    tmp_path: Path,
) -> None:
    """Two of three that are left are no quorum where one of these lost its disk."""

    async def scenario(world: SimulatedWorld, group: BrokerGroup) -> None:
        wiped = await world.wipe("n2")
        refused = await world.remove_member("n0")
        assert (refused["members"], refused["error"]) == ([], "n2 is not back yet")
        await world.replace("n2", wiped["incarnation"])
        await ready(world)
        assert (await world.remove_member("n0"))["error"] is None
        assert world.why_not_wiped("n1") == "n0 may be out of the group"
        kept = await world.wipe("n1")
        assert (kept["incarnation"], kept["files"]) == (UNTOUCHED, 0)
        assert (await world.add_member("n0"))["error"] is None
        await ready(world)
        assert world.why_not_wiped("n1") is None

    play(tmp_path, scenario)
