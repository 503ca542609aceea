"""Faults that operators know, and of resources, against a world in memory: exact, and honest."""

from __future__ import annotations

import json
from random import Random

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from memory_world import MemoryWorld

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.capabilities import Resources
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import UNTOUCHED, Json
from shaketable.harness.runtime import availability

NODES = ("n0", "n1", "n2")
NAMES = ("cpu", "memory", "descriptors", "members", "rolling-restart", "crash-loop")
DID = {
    "cpu": {"wall_ms": 1000.0, "stopped_ms": 790.0, "stops": 20, "cpu_ms": 100.0},
    "memory": {"limit_bytes": 1 << 28, "refused": 3},
    "descriptors": {"limit": 40, "open": 40, "unaccepted": 4, "refused": 0},
}


class OperatedWorld(MemoryWorld):
    """Also has the words of operators and of resources. `did` is what was measured of a node."""

    def __init__(self, nodes=NODES, leads="n0") -> None:
        super().__init__(nodes, leads)
        self.members = set(nodes)
        self.took: dict[str, str] = {}
        self.did: Json = {}
        self.obeys = True

    async def stop(self, node: str) -> Json:
        return await self.kill(node) if self.obeys else {"incarnation": UNTOUCHED}

    def incarnation(self, node: str) -> int:
        return self.incarnations[node]

    async def until_ready(self, timeout_s: float) -> bool:
        await trio.sleep(0.5)
        return not self.dead

    async def remove_member(self, node: str) -> Json:
        if not self.obeys:
            return {"took_ms": None, "members": [], "error": "not the leader"}
        self.members.discard(node)
        return {"took_ms": 5.0, "members": sorted(self.members), "error": None}

    async def add_member(self, node: str) -> Json:
        self.members.add(node)
        return {"took_ms": 5.0, "members": sorted(self.members), "error": None}

    async def limit_resources(self, node: str, resources: Resources) -> str:
        if node in self.dead:
            return ""
        name = f"taken-{len(self.log)}"
        self.log.append(name)
        self.took[name] = node
        return name

    async def lift_limits(self, limits: str) -> None:
        self.took.pop(limits, None)

    def limit_effects(self, limits: str) -> Json:
        return {"node": self.took[limits], "ended": None, "cpu_share_before": 0.5, **self.did}

    @property
    def is_whole(self) -> bool:
        return super().is_whole and not self.took and self.members == set(self.nodes)


def play(name: str, world: OperatedWorld, *, seed: int = 1, turn: int = 1, hold_s: float = 3.0):
    """Apply, act, probe and undo; return the evidence, and what the ledger was told."""
    fault, noted = discovery.get("faults", name), []

    async def scenario():
        plan = fault.plan(Random(seed), world.nodes, turn)
        assert plan == json.loads(json.dumps(plan)) == fault.plan(Random(seed), world.nodes, turn)
        aimed = fault.aim(plan, world.nodes, await world.leader())
        assert fault.describe(plan)
        assert fault.describe(aimed)
        undo = await fault.apply(aimed, world)
        with trio.move_on_after(hold_s):
            if hasattr(fault, "act"):
                await fault.act(aimed, undo, world, lambda grown: noted.append(json.dumps(grown)))
            else:
                await trio.sleep_forever()
        evidence = await fault.probe(aimed, undo, world)
        for _ in range(2):
            await fault.undo(json.loads(json.dumps(undo)), world)
            assert world.is_whole
        return evidence

    return trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0)), noted


@given(
    name=st.sampled_from(NAMES), seed=st.integers(), turn=st.integers(0, 3), size=st.integers(3, 7)
)
def test_each_bites_and_undoes_itself(name, seed, turn, size):
    world = OperatedWorld([f"n{number}" for number in range(size)])
    world.did = DID.get(name, {})
    evidence, _ = play(name, world, seed=seed, turn=turn)
    assert evidence.took_effect, evidence.what


@pytest.mark.parametrize(
    ("name", "did"),
    [
        ("cpu", {**DID["cpu"], "stopped_ms": 200.0}),
        ("cpu", {"wall_ms": 1000.0}),
        ("memory", {"limit_bytes": 1 << 28, "refused": 0}),
        ("descriptors", {"limit": 40, "open": 40, "unaccepted": 0, "refused": 0}),
        ("descriptors", {"limit": 40, "open": 38, "unaccepted": 4, "refused": 0}),
    ],
)
def test_what_nobody_misses_has_no_effect(name, did):
    world = OperatedWorld()
    world.did = did
    evidence, _ = play(name, world)
    assert not evidence.took_effect, evidence.what
    assert evidence.measures["ended"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_nothing_can_be_done_to_a_group_that_does_not_run_or_obey(name):
    world = OperatedWorld()
    world.did, world.obeys, world.dead = DID.get(name, {}), False, set(NODES)
    fault = discovery.get("faults", name)
    plan = fault.aim(fault.plan(Random(1), NODES, 1), NODES, "n0")

    async def scenario():
        undo = await fault.apply(plan, world)
        with trio.move_on_after(1):
            if hasattr(fault, "act"):
                await fault.act(plan, undo, world, lambda _: None)
        evidence = await fault.probe(plan, undo, world)
        await fault.undo(undo, world)
        return evidence

    evidence = trio.run(scenario, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not evidence.took_effect, evidence.what
    assert world.dead == set(NODES), "who was dead before is another's to start"


def test_one_that_ended_of_it_is_told_by_its_last_words():
    world = OperatedWorld()
    world.did = {**DID["memory"], "ended": "MemoryError"}
    evidence, _ = play("memory", world)
    assert "was refused memory beyond 256 MiB: ended of it (MemoryError)" in evidence.what


def test_a_rolling_restart_takes_one_after_the_other_and_notes_each_first():
    world = OperatedWorld()
    evidence, noted = play("rolling-restart", world, hold_s=10)
    assert evidence.measures == {"restarted": 3, "ready": 3}
    done = [line.split() for line in world.log]
    assert [what for what, _ in done] == ["kill", "restart"] * 3
    assert len({node for _, node in done}) == 3
    assert [len(json.loads(line)["incarnations"]) for line in noted] == [1, 2, 3]


def test_a_rolling_restart_cut_short_leaves_nobody_down():
    world = OperatedWorld()
    evidence, _ = play("rolling-restart", world, hold_s=0.7)
    assert evidence.took_effect
    assert evidence.measures == {"restarted": 2, "ready": 1}


def test_one_crash_is_no_loop():
    world = OperatedWorld()
    evidence, _ = play("crash-loop", world, hold_s=0.01)
    assert (evidence.took_effect, evidence.what) == (False, "1 processes ended: no loop")


@pytest.mark.parametrize(
    ("world", "missing"), [("process", set()), ("sim", {"memory", "descriptors"})]
)
def test_worlds_say_what_they_lack(world, missing):
    campaign = Campaign(faults=NAMES, world=world)
    choice = availability.choose(campaign)
    assert set(choice.unavailable) == missing
    for why in choice.unavailable.values():
        assert why == "world sim cannot do it: a simulated process has none of its own"


def test_one_that_stands_still_of_it_is_affected_too():
    world = OperatedWorld()
    world.did = {"limit_bytes": 1 << 28, "refused": 0, "silent": True}
    evidence, _ = play("memory", world)
    assert evidence.took_effect
    assert "was refused memory beyond 256 MiB: it runs, and answers nothing" in evidence.what


@pytest.mark.parametrize(("broken", "told"), [(("n1",), "n1 stays"), (("n0", "n2"), None)])
def test_all_that_could_not_be_given_back_is_told(broken, told):
    class Stuck(OperatedWorld):
        async def lift_limits(self, limits: str) -> None:
            node = self.took[limits]
            if node in broken:
                raise OSError(f"{node} stays")
            await super().lift_limits(limits)

    world = Stuck()
    undo = {"taken": {node: f"taken-{node}" for node in NODES}}
    world.took = {taken: node for node, taken in undo["taken"].items()}
    with pytest.raises((OSError, HarnessError)) as raised:
        trio.run(discovery.get("faults", "cpu").undo, undo, world)
    assert tuple(world.took.values()) == broken
    if told is not None:
        assert str(raised.value) == told
    else:
        assert sorted(str(raised.value).split("; ")) == ["n0: n0 stays", "n2: n2 stays"]
