"""On a real group each fault of processes takes effect and heals; one without effect says so."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import trio
from process_group import NODES, process_group, ready

from shaketable.harness import discovery
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.runtime.world import ProcessWorld
from shaketable.harness.targets.dledger import DLedgerTarget

pytestmark = pytest.mark.e2e

OPTIONS = {"data_file_bytes": 1 << 20, "index_file_bytes": 1 << 18, "disk": "volatile"}
ROOMY_BYTES = 1 << 34


async def strike(
    world: ProcessWorld, name: str, plan: Json, hold_s: float = 0.7, *, patience_s: float = 0.0
) -> tuple[bool, str, Json]:
    """Apply a fault, let it hold, probe and undo it; the group must serve again.

    On a busy machine it may take a while until a node misses what is taken: `patience_s`.
    """
    fault = discovery.get("faults", name)
    drawn = {"variant": "one", "order": list(NODES), **plan}
    aimed = fault.aim(drawn, NODES, await world.leader())
    undo = json.loads(json.dumps(await fault.apply(aimed, world)))
    with trio.move_on_after(hold_s):
        if hasattr(fault, "act"):
            await fault.act(aimed, undo, world, json.dumps)
        else:
            await trio.sleep_forever()
    evidence = await fault.probe(aimed, undo, world)
    with trio.move_on_after(patience_s):
        while not evidence.took_effect:
            await trio.sleep(0.1)
            evidence = await fault.probe(aimed, undo, world)
    await fault.undo(undo, world)
    await ready(world)
    await fault.undo(undo, world)
    return evidence.took_effect, evidence.what, evidence.measures


def limits(world: ProcessWorld, members, node: str) -> list[tuple[int, int]]:
    pid = members[node].process.pid
    return [resource.prlimit(pid, which) for which in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)]


def test_each_takes_effect_and_heals_and_one_without_effect_has_no_effect(tmp_path: Path) -> None:
    async def main() -> None:
        async with process_group(tmp_path, DLedgerTarget(), OPTIONS) as (world, members):
            before = limits(world, members, "n0")
            await starved(world, members)
            await untouched(world, members)
            assert limits(world, members, "n0") == before
            await moved(world)
            await restarted(world)
            assert world.exits == [], "what a fault ended did not end by itself"
            assert world.restore() == ()

    trio.run(main)


async def starved(world: ProcessWorld, members) -> None:
    """Processor time, memory and descriptors."""
    share = {"cpu_share": 0.2, "slice_ms": 50.0}
    took_effect, what, measures = await strike(world, "cpu", {"resources": share}, patience_s=20)
    assert took_effect, what
    assert measures["stopped_ms"] > 0.5 * 0.8 * measures["wall_ms"]
    assert members["n0"].process.incarnation == 1
    assert not members["n0"].process.is_paused

    none = {"memory_spare_bytes": 0, "callers": 400}
    took_effect, what, measures = await strike(
        world, "memory", {"resources": none}, 1.5, patience_s=20
    )
    assert took_effect, what
    assert measures["refused"] > 0
    assert measures["ended"] == members["n0"].process.incarnation - 1

    none = {"descriptors_spare": 0, "callers": 4}
    took_effect, what, measures = await strike(
        world, "descriptors", {"resources": none}, patience_s=20
    )
    assert took_effect, what
    assert measures["unaccepted"] + measures["refused"] > 0


async def untouched(world: ProcessWorld, members) -> None:
    """The same where nobody misses what is taken, or nobody is there to miss it."""
    for name, taken in (
        ("memory", {"memory_spare_bytes": ROOMY_BYTES}),
        ("descriptors", {"descriptors_spare": 400, "callers": 4}),
    ):
        took_effect, what, _ = await strike(world, name, {"resources": taken}, 0.3)
        assert not took_effect, what
    dead = await world.kill("n0")
    for name, plan in (
        ("cpu", {"resources": {"cpu_share": 0.2}}),
        ("crash-loop", {"lives_s": [0.1]}),
    ):
        took_effect, what, _ = await strike(world, name, plan, 0.3)
        assert not took_effect, what
    await world.restart("n0", dead["incarnation"])
    await ready(world)
    paused = await world.pause("n0")
    took_effect, what, _ = await strike_only(world, "cpu", {"cpu_share": 0.2}, 0.3)
    assert not took_effect, what
    assert world.is_paused("n0"), "no fault ends another's pause"
    await world.resume("n0", paused["incarnation"])
    await ready(world)


async def strike_only(world: ProcessWorld, name: str, taken: Json, hold_s: float):
    """As `strike`, of a node that serves nobody."""
    fault = discovery.get("faults", name)
    plan = {"variant": "one", "order": list(NODES), "resources": taken, "victims": ["n0"]}
    undo = await fault.apply(plan, world)
    await trio.sleep(hold_s)
    evidence = await fault.probe(plan, undo, world)
    await fault.undo(undo, world)
    return evidence.took_effect, evidence.what, evidence.measures


async def moved(world: ProcessWorld) -> None:
    """Members: the leader goes, and comes back."""
    led = await world.leader()
    fault = discovery.get("faults", "members")
    plan = fault.aim({"variant": "leader", "order": list(NODES)}, NODES, led)
    undo = await fault.apply(plan, world)
    evidence = await fault.probe(plan, undo, world)
    assert evidence.took_effect, evidence.what
    assert led not in undo["members"]
    again = await fault.probe(plan, await fault.apply(plan, world), world)
    assert (again.took_effect, again.what) == (
        False,
        f"{led} was not taken out: {led} is no member",
    )
    await fault.undo(undo, world)
    members = (await world.add_member(led or ""))["members"]
    assert tuple(members) == NODES
    await ready(world)


async def restarted(world: ProcessWorld) -> None:
    """All nodes one after the other, and one again and again."""
    took_effect, what, measures = await strike(
        world, "rolling-restart", {"leader_last": True}, hold_s=20.0
    )
    assert took_effect, what
    assert measures == {"restarted": 3, "ready": 3}
    took_effect, what, measures = await strike(world, "crash-loop", {"lives_s": [0.1, 0.3]}, 0.9)
    assert took_effect, what
    assert measures["crashes"] >= 2
