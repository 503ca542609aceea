"""Clocks of nodes that are programs of others: put wrong, measured by what these show, healed."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from time import monotonic_ns

import pytest
import trio
from fake_target import FakeTarget

from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.plugins import Address, Launch, NodeLayout
from shaketable.harness.faults import clock
from shaketable.harness.runtime import availability, rig
from shaketable.harness.runtime.ledger import Ledger
from shaketable.harness.runtime.processes import faketime
from shaketable.harness.runtime.processes.disks import Member
from shaketable.harness.runtime.processes.faketime import SHARED_MEMORY, FakedTime
from shaketable.harness.runtime.processes.nodes import NodeProcess
from shaketable.harness.runtime.processes.steered import SteeredCapabilities, SteeredNodes
from shaketable.harness.runtime.sites import Site

TELLS_TIME = """
import os, sys, time
while True:
    with open("told.new", "w") as file:
        file.write(repr({told}))
    os.replace("told.new", "told")
    time.sleep(0.01)
"""
FINE, COARSE = "time.time()", "int(time.time())"
HELD_S = 1.5  # clocks of which answers tell must be wrong by a second at least
PATIENCE_S = 60
NEAR_MS = 250
ANYWHERE = Address("127.0.0.1", 1)


class TellingTarget(FakeTarget):
    """Nodes that write down what time it is."""

    async def wall_clock(self, layout: NodeLayout, timeout_s: float) -> float:
        await trio.lowlevel.checkpoint()
        return float((layout.directory / "told").read_text())


class Clocks(SteeredCapabilities):
    """A world of nothing but clocks."""

    def __init__(self, steered: SteeredNodes) -> None:
        self._clocks = self._disk_faults = steered


@asynccontextmanager
async def telling(folder: Path, told: str, *, notices: bool = True) -> AsyncIterator[Clocks]:
    """One node that tells its time; it `notices` if it runs under its clock."""
    layout = NodeLayout("n0", folder, ANYWHERE, ANYWHERE, {})
    faked = FakedTime(folder)
    launch = Launch((sys.executable, "-c", TELLS_TIME.format(told=told)))
    process = NodeProcess(
        "n0", faked.launch(launch) if notices else launch, folder, folder / "log", monotonic_ns()
    )
    members = {"n0": Member(layout, process, faked)}
    ledger = Ledger(folder / "faults.jsonl", monotonic_ns)
    network = FakeNetwork()
    site = Site(network, {"n0": layout}, {})
    rig.note_in_ledger(ledger, site, members, ())
    process.start()
    pid = process.pid
    try:
        with trio.fail_after(PATIENCE_S):
            while not (folder / "told").exists():
                await trio.sleep(0.01)
            yield Clocks(SteeredNodes(TellingTarget(), members, None))
    finally:
        with trio.CancelScope(shield=True):
            await process.kill()
        ledger.close()
        rig.let_go(site, members)
    assert network.is_closed
    assert [path.name for path in SHARED_MEMORY.iterdir() if f"_{pid}" in path.name] == []


class FakeNetwork:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def plan_of(kind: str) -> dict:
    """The first plan of that kind that the fault draws for such nodes."""
    fault = clock.PLUGIN.configured({"clocks": "wall", "victims": ["one"], "nodes": ["n0"]})
    plans = (fault.plan(Random(7), ("n0",), turn) for turn in range(len(clock.WALL_KINDS)))
    plan = next(plan for plan in plans if plan["kind"] == kind)
    assert plan["change"]["which"] == "wall"
    return fault.aim(plan, ("n0",), None)


@pytest.mark.parametrize(
    ("kind", "told"), [("offset", FINE), ("drift", FINE), ("frozen", FINE), ("offset", COARSE)]
)
def test_a_clock_is_wrong_as_measured_and_right_again(tmp_path: Path, kind: str, told: str) -> None:
    async def scenario() -> None:
        async with telling(tmp_path, told) as world:
            plan = plan_of(kind)
            undo = await clock.PLUGIN.apply(plan, world)
            await trio.sleep(HELD_S)
            evidence = await clock.PLUGIN.probe(plan, undo, world)
            assert evidence.took_effect, evidence.what
            assert "rate" not in evidence.measures, "of a monotonic clock nothing is known"
            for _ in range(2):  # idempotent
                await clock.PLUGIN.undo(undo, world)
            with trio.fail_after(PATIENCE_S):
                while abs((await world.read_clock("n0")).offset_ms) > NEAR_MS:
                    await trio.sleep(0.01)

    trio.run(scenario)


@pytest.mark.parametrize("kind", clock.WALL_KINDS)
def test_a_program_that_does_not_notice_is_not_said_to_be_affected(
    tmp_path: Path, kind: str
) -> None:
    async def scenario() -> None:
        async with telling(tmp_path, COARSE, notices=False) as world:
            plan = plan_of(kind)
            undo = await clock.PLUGIN.apply(plan, world)
            await trio.sleep(HELD_S)
            evidence = await clock.PLUGIN.probe(plan, undo, world)
            assert not evidence.took_effect
            assert evidence.what.startswith("measured: n0 wall ")
            assert "does not notice" in evidence.what
            await clock.PLUGIN.undo(undo, world)

    trio.run(scenario)


def test_changes_add_up_and_what_is_left_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with telling(tmp_path, FINE) as world:
            hour = {"which": "wall", "offset_ms": 3_600_000.0}
            first, second = [await world.skew("n0", clock.ClockChange(**hour)) for _ in range(2)]
            await trio.sleep(0.1)
            assert (await world.read_clock("n0")).offset_ms == pytest.approx(7_200_000, abs=NEAR_MS)
            await world.unskew("n0", first)
            await trio.sleep(0.1)
            assert (await world.read_clock("n0")).offset_ms == pytest.approx(3_600_000, abs=NEAR_MS)
            assert world._clocks.give_up() == ["the clock of n0 was still wrong"]
            assert world._clocks.give_up() == []
            await world.unskew("n0", second)

    trio.run(scenario)


def test_foreign_clocks_are_offered_where_they_can_be_faked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for world in ("process", "netns"):
        assert availability.why_unsupported(world, Capability.CLOCK, TellingTarget(), {}) is None
        assert (
            availability.why_unsupported(world, Capability.DISK_FULL, TellingTarget(), {})
            is not None
        )
        assert availability.why_unsupported(world, Capability.CLOCK, FakeTarget(), {}) == (
            "nodes of fake take no orders about their clocks and disks"
        )
    assert availability.clocks_of(TellingTarget()) == {"clocks": "wall"}
    assert availability.clocks_of(FakeTarget()) == {}
    monkeypatch.setattr(faketime, "find_spec", lambda _: None)
    told = availability.why_unsupported("process", Capability.CLOCK, TellingTarget(), {})
    assert told is not None
    assert "libfaketime is not installed" in told
