"""The nemesis on virtual time: faults happen when planned, and are undone whatever happens."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from memory_world import MemoryWorld

from harness.faults import kill, partition, pause
from harness.plugins import Evidence
from harness.runtime.ledger import Ledger, open_faults
from harness.runtime.nemesis import APPLY_TIMEOUT_S, LEADER_WAIT_S, UNDO_ATTEMPTS_MAX, Nemesis
from harness.runtime.observer import SilentObserver
from harness.schedule import Planned

NODES = ("n0", "n1", "n2")


@dataclass
class Stage:
    path: object
    world: MemoryWorld = field(default_factory=lambda: MemoryWorld(NODES, "n0"))
    events: list = field(default_factory=list)
    faults: dict = field(
        default_factory=lambda: {
            "kill": kill.PLUGIN, "pause": pause.PLUGIN, "partition": partition.PLUGIN,
        }
    )  # fmt: skip
    notes: list = field(default_factory=list)
    now_ns: object = field(default=lambda: 0)

    def nemesis(self) -> Nemesis:
        stage = self

        class Notes(SilentObserver):
            def note(self, line):
                stage.notes.append(line)

        def record(f, value):
            self.events.append((round(trio.current_time() - self.began, 6), f, value))

        self.began = trio.current_time()
        self.ledger = Ledger(self.path, lambda: 0)
        return Nemesis(self.faults, self.world, self.ledger, record, Notes(), self.now_ns)

    def run(self, planned, until=None):
        async def main():
            nemesis = self.nemesis()
            with trio.move_on_after(until if until is not None else 1e9):
                await nemesis.run(planned)
            self.ended = trio.current_time() - self.began
            self.ledger.close()
            return nemesis.tally

        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    def told(self):
        return [(at, f, value["fault"], value["phase"]) for at, f, value in self.events]


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path / "faults.jsonl")


def planned(number, fault, start_s, duration_s, **plan):
    order = list(NODES)
    leader = {"variant": "leader", "order": order}
    isolate = {"shape": "isolate-leader", "order": order, "mend": "reset"}
    faults = {"kill": leader, "pause": leader, "partition": isolate}
    drawn = {**faults.get(fault, {}), **plan}
    return Planned(number=number, fault=fault, plan=drawn, start_s=start_s, duration_s=duration_s)


def test_faults_begin_and_end_on_time_and_are_recorded_twice(stage):
    tally = stage.run([planned(0, "kill", 1, 2), planned(1, "partition", 2, 5)])
    assert stage.told() == [
        (1, "kill", 0, "start"),
        (2, "partition", 1, "start"),
        (3, "kill", 0, "stop"),
        (7, "partition", 1, "stop"),
    ]
    assert (tally.applied, tally.bit, tally.failed, tally.stuck) == (2, 2, 0, 0)
    assert stage.world.is_whole
    assert stage.world.mended == {"cut-0": "reset"}
    stop = stage.events[2][2]
    assert stop["bit"] is True
    assert stop["description"] == "kill leader n0"
    assert "process of n0 gone" in stop["evidence"]
    assert open_faults(stage.path) == ()


@pytest.mark.parametrize("until", [0.5, 1.0, 2.5, 6.9])
def test_a_cancelled_run_undoes_what_is_in_force(stage, until):
    stage.run([planned(0, "pause", 1, 2), planned(1, "partition", 2, 5)], until)
    assert stage.world.is_whole
    assert stage.ended == pytest.approx(until)
    told = stage.told()
    assert [t for t in told if t[3] == "start"] == [
        t for t in told if t[3] == "start" and t[0] <= until
    ]
    assert len(told) % 2 == 0, "a start without its stop"
    assert open_faults(stage.path) == ()


def test_the_ledger_knows_of_a_fault_before_it_is_applied(stage):
    seen = []

    class Looks(kill.Kill):
        async def apply(self, plan, world):
            seen.append(open_faults(stage.path))
            return await super().apply(plan, world)

    stage.faults["kill"] = Looks()
    stage.run([planned(4, "kill", 1, 1)])
    ((known,),) = seen
    assert (known.fault, known.name, known.undo) == (4, "kill", None)
    assert known.plan["victims"] == ["n0"]


def test_a_fault_that_fails_to_apply_is_recorded_and_has_not_bitten(stage):
    class Broken(kill.Kill):
        async def apply(self, plan, world):
            raise OSError("no permission")

    class Hangs(pause.Pause):
        async def apply(self, plan, world):
            await super().apply(plan, world)
            await trio.sleep_forever()

    stage.faults.update(kill=Broken(), pause=Hangs())
    tally = stage.run(
        [planned(0, "kill", 1, 2), planned(1, "pause", 2, 2), planned(2, "partition", 3, 1)]
    )
    assert (tally.applied, tally.bit, tally.failed) == (1, 1, 2)
    stops = {value["fault"]: value for _, _, value in stage.events if value["phase"] == "stop"}
    assert stops[0]["bit"] is stops[1]["bit"] is False
    assert "OSError: no permission" in stops[0]["evidence"]
    assert f"not applied within {APPLY_TIMEOUT_S:g} s" in stops[1]["evidence"]
    assert len(stage.notes) == 2
    assert [fault.fault for fault in open_faults(stage.path)] == []


def test_undo_is_tried_again_and_a_stuck_one_stays_in_the_ledger(stage):
    tries = []

    class Jams(kill.Kill):
        async def undo(self, undo, world):
            tries.append(trio.current_time())
            if len(tries) <= stage.jams:
                raise RuntimeError("jammed")
            await super().undo(undo, world)

    stage.faults["kill"] = Jams()
    stage.jams = UNDO_ATTEMPTS_MAX - 1
    assert stage.run([planned(0, "kill", 1, 2)]).stuck == 0
    assert len(tries) == UNDO_ATTEMPTS_MAX
    assert stage.world.is_whole
    tries.clear()
    stage.jams = UNDO_ATTEMPTS_MAX
    assert stage.run([planned(1, "kill", 1, 2)]).stuck == 1
    assert "could not be undone: RuntimeError: jammed" in stage.events[-1][2]["evidence"]
    assert [fault.fault for fault in open_faults(stage.path)] == [1]


def test_a_probe_that_fails_means_not_bitten(stage):
    class Unsure(kill.Kill):
        async def probe(self, plan, undo, world):
            raise ValueError("who knows")

    class NeverBites(pause.Pause):
        async def probe(self, plan, undo, world):
            return Evidence(False, "nothing held")

    stage.faults.update(kill=Unsure(), pause=NeverBites())
    assert stage.run([planned(0, "kill", 1, 1), planned(1, "pause", 3, 1)]).bit == 0
    assert stage.world.is_whole
    assert stage.events[1][2]["evidence"] == "probe failed: ValueError: who knows"


def test_it_waits_a_little_for_a_leader_and_then_takes_the_first_drawn(stage):
    async def elect(world):
        await trio.sleep(1.5)
        world.leads = "n2"

    stage.world.leads = None
    stage.run([planned(0, "kill", 1, 4, order=["n1", "n0", "n2"])])
    (start, _, value) = stage.events[0]
    assert start == pytest.approx(1 + LEADER_WAIT_S)
    assert value["plan"]["victims"] == ["n1"]
    assert value["description"] == "kill n1"
    assert stage.events[1][0] == pytest.approx(5), "a late fault still ends on time"

    async def main():
        nemesis = stage.nemesis()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(elect, stage.world)
            await nemesis.run([planned(1, "kill", 1, 4)])

    stage.world.leads = None
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert stage.events[2][2]["description"] == "kill leader n2"


def test_events_say_when_a_fault_began_to_be_applied(stage):
    class Slow(kill.Kill):
        async def apply(self, plan, world):
            await trio.sleep(0.25)
            return await super().apply(plan, world)

    stage.faults["kill"] = Slow()
    stage.now_ns = lambda: round((trio.current_time() - stage.began) * 1e9)
    stage.run([planned(0, "kill", 1, 1)])
    assert [(at, value["began_ns"]) for at, _, value in stage.events] == [
        (1.25, 1_000_000_000),
        (2.0, 1_000_000_000),
    ]
