"""Leadership transfer: it bit only if the node that was asked for came to lead after another."""

from __future__ import annotations

import json
from random import Random

import pytest
import trio
import trio.testing
from fake_target import FakeTarget
from hypothesis import given
from hypothesis import strategies as st
from memory_world import MemoryWorld

from shaketable.harness.contracts.plugins import Evidence, Json
from shaketable.harness.faults.process import TRANSFER

NODES = ("n0", "n1", "n2")


def done_to(world: MemoryWorld, **plan: object) -> tuple[Json, Evidence]:
    async def main() -> tuple[Json, Evidence]:
        aimed = {**TRANSFER.aim(TRANSFER.plan(Random(1), NODES, 0), NODES, world.leads), **plan}
        undo = json.loads(json.dumps(await TRANSFER.apply(aimed, world)))
        evidence = await TRANSFER.probe(aimed, undo, world)
        before = list(world.log)
        await TRANSFER.undo(undo, world)
        await TRANSFER.undo(undo, world)
        assert world.log == before, "whoever leads, the group is whole"
        return aimed, evidence

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@given(seed=st.integers(), turn=st.integers(0, 9), leader=st.sampled_from((None, *NODES)))
def test_it_aims_at_a_node_that_does_not_lead(seed: int, turn: int, leader: str | None) -> None:
    plan = TRANSFER.plan(Random(seed), NODES, turn)
    assert plan == TRANSFER.plan(Random(seed), NODES, turn)
    aimed = TRANSFER.aim(plan, NODES, leader)
    assert aimed["to"] in NODES
    assert aimed["to"] != leader
    assert aimed["leader"] == leader


def test_a_transfer_bites_and_says_from_whom_to_whom_in_how_long() -> None:
    world = MemoryWorld(NODES, "n1")
    aimed, evidence = done_to(world)
    assert evidence.took_effect
    assert evidence.what == f"leadership went from n1 to {aimed['to']} in 1 ms"
    assert evidence.measures == {"took_ms": 1.0}
    assert world.leads == aimed["to"]
    assert TRANSFER.describe(aimed) == f"transfer leadership from n1 to {aimed['to']}"


@pytest.mark.parametrize(
    ("leads", "prepared", "what"),
    [
        (None, {}, "there was no leader that could be asked"),
        ("n0", {"to": "n0", "order": ["n0"]}, "n0 led already"),
        (
            "n0",
            {"to": "n1", "order": ["n0", "n1"], "dead": {"n1"}},
            "n1 did not come to lead after n0: n1 cannot be",
        ),
        ("n0", {"to": "n1", "paused": {"n1"}}, "n1 did not come to lead after n0"),
    ],
)
def test_one_that_changed_nothing_has_no_effect(leads, prepared, what) -> None:
    world = MemoryWorld(NODES, leads)
    world.dead = set(prepared.pop("dead", ()))
    world.paused = set(prepared.pop("paused", ()))
    _, evidence = done_to(world, **prepared)
    assert not evidence.took_effect
    assert evidence.what.startswith(what)


@pytest.mark.parametrize("change", [{"to": "n0"}, {"to": "n1", "dead": {"n1"}}])
def test_where_the_one_to_take_over_leads_or_is_down_another_one_is_named(change) -> None:
    world = MemoryWorld(NODES, "n0")
    world.dead = set(change.pop("dead", ()))
    _, evidence = done_to(world, **change)
    assert evidence.took_effect
    assert world.leads not in {"n0", *world.dead}


def test_planted_bug_a_world_that_changes_nothing_has_no_effect() -> None:
    class Deaf(MemoryWorld):
        async def transfer(self, to: str) -> Json:
            return {"from": self.leads, "took_ms": None, "error": None}

    assert not done_to(Deaf(NODES, "n0"))[1].took_effect


def test_it_is_not_available_where_nobody_can_be_asked_or_take_over() -> None:
    class Rigid:
        name = "rigid"

    assert TRANSFER.unavailable(FakeTarget(), NODES) is None
    why = TRANSFER.unavailable(Rigid(), NODES)  # type: ignore[arg-type]
    assert why == "the target rigid cannot be asked to transfer its leadership"
    assert TRANSFER.unavailable(FakeTarget(), ("n0",)) == (
        "a group of 1 has no other member to take the leadership"
    )
