"""Faults of clocks and disks: they say that they bit only where that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from memory_world import MemoryWorld

from shaketable.harness import discovery
from shaketable.harness.contracts.capabilities import (
    Capability,
    ClockChange,
    ClockReading,
    Damage,
    DiskFaultSpec,
)
from shaketable.harness.contracts.errors import HarnessError, IndefiniteError
from shaketable.harness.contracts.plugins import UNTOUCHED, Evidence, Json
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.faults import clock
from shaketable.harness.faults.disk import POWER
from shaketable.harness.runtime import availability
from shaketable.harness.targets.dledger import DLedgerTarget
from shaketable.harness.targets.multi_master import PLUGIN as MULTI_MASTER

NODES = ("n0", "n1", "n2", "n3", "n4")
RIGHT = ClockReading(offset_ms=0.0, monotonic_offset_ms=0.0, rate=1.0)
DISK_FAULTS = ("disk-errors", "disk-full", "disk-slow", "disk-stall")


class SteeredWorld(MemoryWorld):
    """Nodes whose clocks and disks do as they are told, unless they are `deaf`."""

    def __init__(self, nodes: Sequence[str], leads: str | None = None, *, deaf: bool = False):
        super().__init__(nodes, leads)
        self.deaf = deaf
        self.silent: set[str] = set()
        self.changes: dict[str, dict[int, ClockChange]] = {node: {} for node in nodes}
        self.disk_faults: dict[str, tuple[str, DiskFaultSpec]] = {}
        self.healed: list[str] = []
        self.fails_at: str | None = None
        self.refuses: str | None = "the log is damaged"
        self.is_mute = False
        self.damages: list[Damage] = []
        self.revived: list[str] = []
        self.lost = 0 if deaf else 100
        self.lost_entries: int | None = None
        self.has_log = True
        self.reads = 0

    async def skew(self, node: str, change: ClockChange) -> Json:
        if node == self.fails_at:
            raise HarnessError("no")
        number = len(self.log)
        self.log.append(f"skew {node}")
        self.changes[node][number] = change
        return {"number": number}

    async def unskew(self, node: str, undo: Json) -> None:
        self.changes[node].pop(undo["number"], None)

    async def read_clock(self, node: str) -> ClockReading:
        await trio.lowlevel.checkpoint()
        if node in self.silent:
            raise IndefiniteError("silent")
        self.reads += 1
        if self.deaf or not self.changes[node]:
            return RIGHT
        (change,) = self.changes[node].values()
        is_on = not change.strobe_ms or self.reads % 2
        offset_ms = change.offset_ms if is_on else 0.0
        return ClockReading(
            offset_ms=offset_ms if change.which != "monotonic" else 0.0,
            monotonic_offset_ms=offset_ms if change.which != "wall" else 0.0,
            rate=change.rate if change.which != "wall" else 1.0,
        )

    async def inject_disk_fault(self, node: str, disk_fault: DiskFaultSpec) -> str:
        if node == self.fails_at:
            raise HarnessError("no")
        name = f"disk-fault-{len(self.disk_faults)}"
        self.disk_faults[name] = node, disk_fault
        return name

    async def heal_disk(self, disk_fault: str) -> None:
        self.healed.append(disk_fault)

    def disk_fault_effects(self, disk_fault: str) -> Json:
        much = 0 if self.deaf else 3
        done = self.disk_faults[disk_fault][1]
        waits = bool(done.delay_ms or done.stall)
        return {
            "calls": much,
            "errors": 0 if waits else much,
            "slowed": much if waits else 0,
            "waited_ms": 10.0 * much,
            "ended": done.error == "EIO" and not self.deaf,
        }

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        struck = {node: (await self.kill(node))["incarnation"] for node in nodes}
        lost = {"incarnations": struck, "lost_bytes": dict.fromkeys(nodes, self.lost)}
        if self.lost_entries is not None:
            lost["lost_entries"] = dict.fromkeys(nodes, self.lost_entries)
        return lost

    async def damage(self, node: str, damage: Damage) -> Json:
        assert node in self.dead
        if self.fails_at == node:
            raise HarnessError("no")
        self.damages.append(damage)
        much = 0 if self.deaf else 5
        found = {"file": "000", "at": 7, "bytes": much, "entries": much * self.has_log}
        return {**found, "has_log": self.has_log}

    async def copy_store(self, node: str) -> str:
        assert node in self.dead
        return "copy-1"

    async def start_damaged(self, node: str, incarnation: int) -> Json:
        await self.restart(node, incarnation)
        if self.refuses is not None and self.damages:
            self.dead.add(node)
        serves = self.refuses is None and not self.is_mute
        return {
            "incarnation": self.incarnations[node],
            "refused": self.refuses,
            "serves": serves,
        }

    async def revive(self, node: str, incarnation: int) -> None:
        self.revived.append(node)


def perform(
    name: str, world: SteeredWorld, turn: int = 0, **plan: Any
) -> tuple[Json, Evidence, Json]:
    """Plan, aim, apply, probe and undo one fault; return plan, evidence and undo."""

    async def main() -> tuple[Json, Evidence, Json]:
        fault = discovery.get("faults", name)
        drawn = fault.plan(rng_for("7", name, turn), world.nodes, turn)
        aimed = fault.aim({**drawn, **plan}, world.nodes, world.leads)
        undo = await fault.apply(aimed, world)
        evidence = await fault.probe(aimed, undo, world)
        await fault.undo(undo, world)
        await fault.undo(undo, world)
        return aimed, evidence, undo

    return trio.run(main)


# ---- clocks --------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", range(8))
def test_a_clock_that_is_measured_wrong_bit_and_is_healed(turn: int) -> None:
    world = SteeredWorld(NODES, "n2")
    plan, evidence, _ = perform("clock", world, turn)
    assert evidence.took_effect, evidence.what
    assert plan["kind"] == clock.KINDS[turn % 4]
    assert not any(world.changes.values())


@pytest.mark.parametrize("turn", range(8))
def test_a_clock_that_stays_right_did_not_bite(turn: int) -> None:
    _, evidence, _ = perform("clock", SteeredWorld(NODES, "n2", deaf=True), turn)
    assert not evidence.took_effect, evidence.what


def test_a_node_that_shows_no_clock_did_not_bite() -> None:
    world = SteeredWorld(NODES, "n2")
    world.silent = {"n2"}
    _, evidence, _ = perform("clock", world)
    assert not evidence.took_effect
    assert "n2 shows no clock" in evidence.what


@pytest.mark.parametrize(
    ("change", "reading", "is_so"),
    [
        (ClockChange(rate=0.8), ClockReading(offset_ms=0, monotonic_offset_ms=0, rate=0.81), True),
        (ClockChange(rate=0.8), ClockReading(offset_ms=0, monotonic_offset_ms=0, rate=0.9), False),
        (ClockChange(rate=0.0), ClockReading(offset_ms=0, monotonic_offset_ms=0, rate=0.5), False),
        (
            ClockChange(offset_ms=400, which="wall"),
            ClockReading(offset_ms=200, monotonic_offset_ms=0, rate=1),
            False,
        ),
        (
            ClockChange(offset_ms=600, which="monotonic"),
            ClockReading(offset_ms=600, monotonic_offset_ms=0, rate=1),
            False,
        ),
    ],
)
def test_half_a_change_is_not_what_was_asked(
    change: ClockChange, reading: ClockReading, is_so: bool
) -> None:
    assert clock.is_as_asked(change, None, [reading], 1.0) is is_so


def test_what_a_clock_was_wrong_by_before_does_not_count() -> None:
    change = ClockChange(offset_ms=600, which="monotonic")
    reading = ClockReading(offset_ms=0, monotonic_offset_ms=600, rate=1)
    before = {"offset_ms": 0.0, "monotonic_offset_ms": 600.0}
    assert not clock.is_as_asked(change, before, [reading], 1.0)


@pytest.mark.parametrize(
    ("rate", "held_s", "before_ms", "now_ms", "is_so"),
    [
        (0.5, 4.0, 0.0, -2_000.0, True),
        (0.5, 4.0, 900.0, -1_100.0, True),  # by what was wrong before
        (0.5, 4.0, 0.0, 2_000.0, False),  # the wrong way
        (0.5, 4.0, 0.0, -600.0, False),
        (5.0, 2.0, 0.0, 8_100.0, True),
        (0.0, 2.0, -10.0, -69.0, False),  # what an answer that was late shows
        (0.0, 0.5, 0.0, -500.0, False),  # held too short to be told from that
    ],
)
def test_a_foreign_clock_must_have_gone_wrong_by_what_its_rate_makes_of_the_time(
    rate: float, held_s: float, before_ms: float, now_ms: float, is_so: bool
) -> None:
    drift = ClockChange(rate=rate, which="wall")
    before = {"offset_ms": before_ms, "monotonic_offset_ms": 0.0}
    found = [ClockReading(offset_ms=now_ms, is_wall_only=True)]
    assert clock.is_as_asked(drift, before, found, held_s) is is_so


# ---- disks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DISK_FAULTS)
@pytest.mark.parametrize("turn", range(3))
def test_a_disk_that_was_harmed_bit_and_is_healed(name: str, turn: int) -> None:
    world = SteeredWorld(NODES, "n2")
    plan, evidence, undo = perform(name, world, turn)
    assert evidence.took_effect, evidence.what
    assert set(undo["disk_faults"]) == set(plan["victims"])
    assert set(world.healed) == set(undo["disk_faults"].values())
    if name == "disk-errors":
        assert "ended of it" in evidence.what
        if plan["disk_fault"]["op"] == "read":
            assert f"kill {plan['victims'][0]}" in world.log, "reads are those of a start"


@pytest.mark.parametrize("name", DISK_FAULTS)
def test_a_disk_that_felt_nothing_did_not_bite(name: str) -> None:
    _, evidence, _ = perform(name, SteeredWorld(NODES, "n2", deaf=True))
    assert not evidence.took_effect, evidence.what


@pytest.mark.parametrize("name", ["clock", *DISK_FAULTS])
def test_what_cannot_be_done_to_all_is_undone_for_the_others(name: str) -> None:
    world = SteeredWorld(NODES, "n2")
    world.fails_at = "n1"
    with pytest.raises(HarnessError):
        perform(name, world, variant="minority", order=["n0", "n1", "n2", "n3", "n4"])
    assert not any(world.changes.values())
    assert set(world.healed) == set(world.disk_faults)


def test_power_bites_where_unsynced_bytes_vanished() -> None:
    world = SteeredWorld(NODES, "n2")
    _, evidence, undo = perform("power", world, variant="all")
    assert evidence.took_effect
    assert evidence.measures == {"killed": 5, "lost_bytes": 500}
    assert set(undo["incarnations"].values()) == {1}
    assert world.dead == set()


def test_a_power_loss_that_lost_nothing_did_not_bite() -> None:
    _, evidence, _ = perform("power", SteeredWorld(NODES, "n2", deaf=True), variant="all")
    assert not evidence.took_effect
    assert evidence.measures["killed"] == 5


@pytest.mark.parametrize(("lost_bytes", "entries"), [(0, 0), (7, 0), (0, 2)])
def test_power_takes_names_of_files_too_where_they_are_known(lost_bytes: int, entries: int) -> None:
    world = SteeredWorld(NODES, "n2")
    world.lost, world.lost_entries = lost_bytes, entries
    _, evidence, _ = perform("power", world, variant="leader")
    assert evidence.took_effect is bool(lost_bytes or entries)
    assert evidence.measures == {"killed": 1, "lost_bytes": lost_bytes, "lost_entries": entries}
    assert ("directory entries lost: n2 2" in evidence.what) is bool(entries)


def test_a_damaged_node_is_whole_again() -> None:
    world = SteeredWorld(NODES, "n2")
    plan, evidence, _ = perform("damage", world)
    assert evidence.took_effect
    assert "refused" in evidence.what
    assert set(world.revived) == set(plan["victims"])
    world = SteeredWorld(NODES, "n2")
    world.refuses = None
    _, evidence, _ = perform("damage", world)
    assert "SERVES" in evidence.what
    assert (evidence.measures["refused"], evidence.measures["serves"]) == (0, 1)
    world = SteeredWorld(NODES, "n2")
    world.refuses, world.is_mute = None, True
    _, evidence, _ = perform("damage", world)
    assert "did not answer in time" in evidence.what
    assert (evidence.measures["refused"], evidence.measures["serves"]) == (0, 0)


def test_damage_spares_a_group_that_is_not_whole_and_goes_back_if_it_fails() -> None:
    world = SteeredWorld(NODES, "n2")
    world.dead.add("n4")
    _, evidence, undo = perform("damage", world)
    assert (evidence.took_effect, undo["incarnation"]) == (False, UNTOUCHED)
    assert world.log == []
    world = SteeredWorld(NODES, "n2")
    world.fails_at = "n2"
    with pytest.raises(HarnessError):
        perform("damage", world)
    assert world.dead == set()


@pytest.mark.parametrize("name", ["damage", "rollback"])
def test_files_that_did_not_change_did_not_bite(name: str) -> None:
    _, evidence, _ = perform(name, SteeredWorld(NODES, "n2", deaf=True), age_s=0.0)
    assert not evidence.took_effect


def test_a_node_is_rolled_back_to_its_copy() -> None:
    world = SteeredWorld(NODES, "n2")
    world.refuses = None
    _, evidence, _ = perform("rollback", world, age_s=0.0)
    assert evidence.took_effect
    assert evidence.measures == {"entries": 5}
    assert [damage.copy for damage in world.damages] == ["copy-1"]
    assert world.dead == set()


def test_a_rollback_without_a_log_is_seen_in_the_files() -> None:
    world = SteeredWorld(NODES, "n2")
    world.refuses, world.has_log = None, False
    _, evidence, _ = perform("rollback", world, age_s=0.0)
    assert evidence.took_effect
    assert evidence.measures == {"changed_bytes": 5}
    assert evidence.what == "n2 got older files back: 5 bytes in files that were others"


class BrokenWorld(SteeredWorld):
    """One thing fails there, or a node ends by itself just when it serves again."""

    def __init__(self, what: str) -> None:
        super().__init__(NODES, "n2")
        self.what = what

    async def copy_store(self, node: str) -> str:
        self._fail("copy_store")
        return await super().copy_store(node)

    async def start_damaged(self, node: str, incarnation: int) -> Json:
        self._fail("tempt")
        found = await super().start_damaged(node, incarnation)
        if self.what == "crash":
            self.dead.add(node)
        return found

    async def revive(self, node: str, incarnation: int) -> None:
        await self.restart(node, incarnation)

    async def damage(self, node: str, damage: Damage) -> Json:
        self._fail("damage")
        return await super().damage(node, damage)

    def _fail(self, what: str) -> None:
        if self.what == what:
            self.what = ""
            raise HarnessError("no")


@pytest.mark.parametrize("name", ["damage", "rollback"])
@pytest.mark.parametrize("what", ["copy_store", "tempt", "damage"])
def test_whatever_fails_leaves_nobody_down(name: str, what: str) -> None:
    world = BrokenWorld(what)
    world.refuses = None
    if (name, what) != ("damage", "copy_store"):
        with pytest.raises(HarnessError):
            perform(name, world, age_s=0.0)
    assert world.dead == set()


def test_one_that_ended_before_its_copy_was_put_back_runs_again() -> None:
    world = BrokenWorld("crash")
    _, evidence, _ = perform("rollback", world, age_s=0.0)
    assert (evidence.took_effect, evidence.what) == (
        False,
        "n2 ended by itself before its copy was put back",
    )
    assert world.dead == set()


# ---- what worlds offer ---------------------------------------------------------------------


def test_worlds_say_why_they_cannot() -> None:
    ours, disk = DLedgerTarget(), {"disk": "volatile"}
    for world in ("process", "sim"):
        for word in (
            Capability.CLOCK,
            Capability.DISK_ERRORS,
            Capability.DISK_FULL,
            Capability.DISK_SLOW,
            Capability.POWER,
        ):
            assert availability.why_unsupported(world, word, ours, disk) is None
    said = availability.why_unsupported("process", Capability.POWER, ours, {"disk": "real"})
    assert said is not None
    assert "page cache" in said
    # A simulated machine loses its page cache, whatever the disk.
    assert availability.why_unsupported("sim", Capability.POWER, ours, {"disk": "real"}) is None
    assert availability.why_unsupported("process", Capability.DISK_FULL, MULTI_MASTER, disk) is None
    assert "keep what they have written at a kill" in str(
        availability.why_unsupported("process", Capability.POWER, MULTI_MASTER, disk)
    )
    nats = discovery.get("targets", "nats")
    assert "take no orders" in str(
        availability.why_unsupported("process", Capability.CLOCK, nats, disk)
    )
    assert "do not edit" in str(availability.why_unsupported("sim", Capability.DAMAGE, ours, disk))
    assert "Raft's model" in str(
        availability.why_unsupported("sim", Capability.ROLLBACK, ours, disk)
    )


def test_what_nobody_stands_is_promised_by_nobody() -> None:
    promised = DLedgerTarget.promises.durable_under
    assert {"clock", "power", "damage", *DISK_FAULTS} <= promised
    assert "rollback" not in promised


@pytest.mark.parametrize(("world", "moment"), [("process", " at sync 3"), ("hosts", "")])
def test_a_moment_is_only_told_where_it_can_be_seen(world: str, moment: str) -> None:
    fault = POWER.configured({"victims": [], "world": world})
    plan = {"variant": "one", "victims": ["n1"], "on": "sync:3"}
    assert fault.describe(plan) == f"power loss of n1{moment}"
