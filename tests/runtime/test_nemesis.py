"""The nemesis on virtual time: faults happen when planned, and are undone whatever happens."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing
from memory_world import MemoryWorld
from nemesis_stage import NODES, Stage, planned

from shaketable.harness.contracts.plugins import Evidence
from shaketable.harness.faults import process
from shaketable.harness.runtime.ledger import open_faults
from shaketable.harness.runtime.nemesis import (
    APPLY_TIMEOUT_S,
    LEADER_WAIT_S,
    UNDO_ATTEMPTS_MAX,
    Budget,
)


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path / "faults.jsonl")


def test_faults_begin_and_end_on_time_and_are_recorded_twice(stage):
    tally = stage.run([planned(0, "kill", 1, 2), planned(1, "partition", 2, 5)])
    assert stage.told() == [
        (1, "kill", 0, "start"),
        (2, "partition", 1, "start"),
        (3, "kill", 0, "stop"),
        (7, "partition", 1, "stop"),
    ]
    assert (tally.applied, tally.took_effect, tally.failed, tally.stuck) == (2, 2, 0, 0)
    assert stage.world.is_whole
    assert stage.world.healed == {"cut-0": "reset"}
    stop = stage.events[2][2]
    assert stop["took_effect"] is True
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

    class Looks(process.Kill):
        async def apply(self, plan, world):
            seen.append(open_faults(stage.path))
            return await super().apply(plan, world)

    stage.faults["kill"] = Looks()
    stage.run([planned(4, "kill", 1, 1)])
    ((known,),) = seen
    assert (known.fault, known.name, known.undo) == (4, "kill", None)
    assert known.plan["victims"] == ["n0"]


def test_what_undoes_a_fault_that_reaches_elsewhere_is_known_before_it_is_applied(stage):
    seen = []

    class Door(process.Kill):
        def undo_ahead(self, plan):
            return {"incarnations": {}, "door": plan["victims"][0]}

        async def apply(self, plan, world):
            seen.extend(open_faults(stage.path))
            return {**await super().apply(plan, world), "door": "north"}

        async def probe(self, plan, undo, world):
            seen.extend(open_faults(stage.path))
            return await super().probe(plan, undo, world)

    class Confused(process.Pause):
        def undo_ahead(self, plan):
            raise KeyError("door")

    stage.faults.update(kill=Door(), pause=Confused())
    tally = stage.run([planned(4, "kill", 1, 1), planned(5, "pause", 5, 1)])
    before, after = seen
    assert (before.undo, before.is_applied) == ({"incarnations": {}, "door": "n0"}, False)
    assert (after.undo["door"], after.is_applied) == ("north", True)
    assert (tally.applied, tally.failed) == (1, 1)
    assert stage.world.is_whole
    assert open_faults(stage.path) == ()


def test_a_fault_that_fails_to_apply_is_recorded_and_has_no_effect(stage):
    class Broken(process.Kill):
        async def apply(self, plan, world):
            raise OSError("no permission")

    class Hangs(process.Pause):
        async def apply(self, plan, world):
            await super().apply(plan, world)
            await trio.sleep_forever()

    class Forgets(process.Kill):
        async def apply(self, plan, world):
            await super().apply(plan, world)

    stage.faults.update(kill=Broken(), pause=Hangs(), forgets=Forgets())
    order = {"variant": "one", "order": ["n2", "n1", "n0"]}
    tally = stage.run(
        [
            planned(0, "kill", 1, 2),
            planned(1, "pause", 2, 2),
            planned(2, "partition", 3, 1),
            planned(3, "forgets", 40, 1, **order),
        ]
    )
    assert (tally.applied, tally.took_effect, tally.failed) == (1, 1, 3)
    stops = {value["fault"]: value for _, _, value in stage.events if value["phase"] == "stop"}
    assert stops[0]["took_effect"] is stops[1]["took_effect"] is False
    assert "OSError: no permission" in stops[0]["evidence"]
    assert f"not applied within {APPLY_TIMEOUT_S:g} s" in stops[1]["evidence"]
    assert "its apply returned None in place of what undoes it" in stops[3]["evidence"]
    assert len(stage.notes) == 3
    left = open_faults(stage.path)  # they are not ours, and none said ahead what undoes it
    assert [(fault.fault, fault.is_applied) for fault in left] == [
        (3, False),
        (1, False),
        (0, False),
    ]
    assert tally.stuck == 3
    assert all("not known what it did" in stops[number]["evidence"] for number in (0, 1, 3))


def test_undo_is_tried_again_and_a_stuck_one_stays_in_the_ledger(stage):
    tries = []

    class Jams(process.Kill):
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


def test_a_probe_that_fails_means_no_effect(stage):
    class Unsure(process.Kill):
        async def probe(self, plan, undo, world):
            raise ValueError("who knows")

    class NeverBites(process.Pause):
        async def probe(self, plan, undo, world):
            return Evidence(False, "nothing held")

    stage.faults.update(kill=Unsure(), pause=NeverBites())
    assert stage.run([planned(0, "kill", 1, 1), planned(1, "pause", 3, 1)]).took_effect == 0
    assert stage.world.is_whole
    assert stage.events[1][2]["evidence"] == "probe failed: ValueError: who knows"


def test_a_kind_without_effect_is_done_again_by_itself(stage):
    class BitesLate(process.Kill):
        probes = 0

        async def probe(self, plan, undo, world):
            self.probes += 1
            return Evidence(self.probes > 2, "as the test wants it")

    stage.faults["kill"] = BitesLate()
    schedule = [
        planned(0, "kill", 1, 1),
        msgspec.structs.replace(planned(1, "kill", 3, 9), scenario="figure-8 1", roles="@led"),
        planned(2, "pause", 14, 1),
        msgspec.structs.replace(planned(3, "partition", 16, 1), scenario="script", on="never"),
    ]

    async def main():
        nemesis = stage.nemesis()
        await nemesis.run(schedule, 20)
        (again,) = nemesis.without_effect(schedule)
        assert again == schedule[0], "its own fault rather than a step, and none of a script"
        began = trio.current_time()
        await nemesis.retry(again)
        assert trio.current_time() == began + 1
        assert nemesis.without_effect(schedule) == []
        await nemesis.retry(again)
        assert trio.current_time() == began + 1, "it took effect"
        assert stage.events[-1][2]["fault"] == 4, "a number of its own"
        assert stage.world.is_whole

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_what_cannot_be_undone_is_left_at_once_where_a_node_broke_a_rule(stage):
    tries = []

    class Stays(process.Kill):
        async def undo(self, undo, world):
            tries.append(trio.current_time())
            raise ValueError("it does not start")

    stage.faults["kill"] = Stays()

    async def main():
        nemesis = stage.nemesis()
        nemesis.is_hopeless = lambda: len(tries) == 2
        await nemesis.run([planned(0, "kill", 1, 1)])
        assert nemesis.tally.stuck == 1

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(tries) == 2 < UNDO_ATTEMPTS_MAX


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
    class Slow(process.Kill):
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


# ---- events, acts, the budget -----------------------------------------------------------


def on_event(number, fault, event, nth=1, after_s=0.0, duration_s=1.0):
    base = planned(number, fault, 0, duration_s)
    return msgspec.structs.replace(base, on=event, nth=nth, after_s=after_s)


def test_a_fault_begins_on_each_event_it_waits_for_and_not_on_those_before(stage):
    class Elections(process.Kill):
        """Somebody else leads when this fault is undone."""

        async def undo(self, undo, world):
            await super().undo(undo, world)
            stage.made.events.leader_elected()

    stage.faults["kill"] = Elections()
    tally = stage.run(
        [
            planned(0, "kill", 1, 2),
            on_event(1, "pause", "leader-elected", after_s=0.5),
            on_event(2, "partition", "fault:pause"),
            on_event(3, "partition", "healed:partition"),
            on_event(4, "pause", "leader-elected", nth=2),
        ],
        room_s=20,
    )
    assert [told for told in stage.told() if told[3] == "start"] == [
        (1, "kill", 0, "start"),
        (3.5, "pause", 1, "start"),
        (3.5, "partition", 2, "start"),
        (4.5, "partition", 3, "start"),
        (19, "pause", 4, "start"),
    ]
    assert (tally.applied, tally.took_effect, tally.left_out) == (4, 4, 1)
    last = stage.events[-1][2]
    assert last["took_effect"] is False
    why = "leader-elected did not happen in time, 1 s before the end"
    assert last["evidence"] == f"not begun: {why}"
    assert open_faults(stage.path) == ()


def step(one, **fields):
    return msgspec.structs.replace(one, scenario="chain 1", **fields)


def struck(stage):
    return [
        (at, f, value["plan"].get("victims"))
        for at, f, value in stage.events
        if value["phase"] == "start" and value["plan"].get("victims")
    ]


def test_steps_of_a_scenario_strike_who_led_when_it_began_and_whom_a_step_struck(stage):
    class Elects(process.Kill):
        """Somebody else leads once it is applied."""

        async def apply(self, plan, world):
            undo = await super().apply(plan, world)
            world.leads = "n1"
            return undo

    stage.faults["kill"] = Elects()
    tally = stage.run(
        [
            step(planned(0, "kill", 1, 1), roles="@led"),
            step(planned(1, "pause", 3, 1), remember="elected"),
            step(planned(2, "pause", 5, 1), roles="@led"),
            step(planned(3, "pause", 7, 1), roles="@elected"),
            step(planned(4, "pause", 9, 1), roles="@follower-3"),
        ]
    )
    assert struck(stage) == [
        (1, "kill", ["n0"]),
        (3, "pause", ["n1"]),
        (5, "pause", ["n0"]),
        (7, "pause", ["n1"]),
    ]
    assert (tally.applied, tally.left_out) == (4, 1)
    last = stage.events[-1][2]
    assert last["evidence"] == "not begun: no node plays @follower-3"
    assert stage.events[0][2]["description"] == "chain: kill leader n0"


def test_events_of_a_scenario_count_from_its_beginning_and_not_for_ever(stage):
    class Elections(process.Kill):
        """Somebody else leads when this fault is undone."""

        async def undo(self, undo, world):
            await super().undo(undo, world)
            stage.made.events.leader_elected()

    stage.faults["kill"] = Elections()
    waits = on_event(1, "pause", "leader-elected")
    tally = stage.run(
        [
            planned(0, "kill", 1, 1),
            step(msgspec.structs.replace(waits, start_s=4.0, until_s=9.0)),
            step(msgspec.structs.replace(waits, number=2, start_s=4.0, until_s=5.5)),
            planned(3, "kill", 6, 1),
        ],
        room_s=20,
    )
    assert [told for told in stage.told() if told[3] == "start"] == [
        (1, "kill", 0, "start"),
        (5.5, "pause", 2, "start"),
        (6, "kill", 3, "start"),
        (7, "pause", 1, "start"),
    ]
    assert (tally.applied, tally.left_out) == (3, 1)


def test_the_nth_call_of_a_node_is_an_event_where_the_world_counts_them(stage):
    started_s = []

    class Counting(MemoryWorld):
        def effects(self, node):
            began = started_s[0] if started_s else started_s.append(trio.current_time())
            done = 0 if began is None else int(10 * (trio.current_time() - began))
            return {"sync": 1_000 + done} if node == "n1" else {}

    stage.world = Counting(NODES, "n0")
    stage.run([on_event(0, "kill", "sync:20"), on_event(1, "pause", "sync:20", nth=2)], room_s=20)
    starts = [told[0] for told in stage.told() if told[3] == "start"]
    assert starts == [pytest.approx(2, abs=0.05), pytest.approx(4, abs=0.05)]


def test_a_world_that_counts_nothing_says_so(stage):
    tally = stage.run([on_event(0, "kill", "sync:20")], room_s=20)
    assert (tally.applied, tally.left_out) == (0, 1)
    assert stage.notes[0] == "fault 0: no one counts sync:20 in this world"


class Wave(process.Kill):
    """Kills one node after the other; `stage` is set by its user."""

    name = "kill"
    failure = None

    async def apply(self, plan, world):
        return {"incarnations": {}}

    def min_duration_s(self, nodes):
        return 3.0

    async def act(self, plan, undo, world, note):
        for node in NODES[: self.count]:
            undo["incarnations"][node] = world.incarnations[node]
            note(undo)
            await world.kill(node)
            await trio.sleep(1)
            if self.failure is not None:
                raise self.failure
            await world.restart(node, undo["incarnations"][node])


@pytest.mark.parametrize(("count", "ended"), [(2, 3), (3, 3.5)])
def test_a_fault_that_acts_is_over_when_it_is_done_or_its_time_is(stage, count, ended):
    wave = Wave()
    wave.count = count
    stage.faults["kill"] = wave
    tally = stage.run([planned(0, "kill", 1, 2.5)])
    assert stage.told() == [(1, "kill", 0, "start"), (ended, "kill", 0, "stop")]
    assert tally.took_effect == 1
    assert stage.world.is_whole
    assert stage.world.log.count("restart n1") == 1
    assert open_faults(stage.path) == ()


def test_what_an_act_does_is_in_the_ledger_before_it_is_done(stage):
    wave = Wave()
    wave.count = 1
    stage.faults["kill"] = wave
    seen = []
    kill_ = stage.world.kill

    async def looks(node):
        seen.append(open_faults(stage.path)[0].undo)
        return await kill_(node)

    stage.world.kill = looks
    stage.run([planned(0, "kill", 1, 2.5)])
    assert seen == [{"incarnations": {"n0": 1}}]


def test_an_act_that_fails_is_told_and_its_fault_is_undone(stage):
    wave = Wave()
    wave.count, wave.failure = 1, OSError("no more")
    stage.faults["kill"] = wave
    stage.run([planned(0, "kill", 1, 2.5)])
    assert stage.world.is_whole
    assert stage.notes == ["fault 0, kill leader n0: OSError: no more"]


def test_a_stuck_fault_keeps_its_account(stage):
    class Jams(process.Kill):
        async def undo(self, undo, world):
            raise RuntimeError("jammed")

    stage.faults["kill"] = Jams()
    stage.budget = Budget(NODES, keeps_quorum=True)
    others = planned(1, "pause", 2, 2, variant="one", order=["n2", "n1", "n0"])
    tally = stage.run([planned(0, "kill", 1, 2), others], room_s=10)
    assert (tally.applied, tally.stuck, tally.left_out) == (1, 1, 1)
    assert stage.budget.out == {"n0"}


def test_a_plan_that_cannot_be_aimed_or_told_is_a_fault_that_failed(stage):
    bad = [
        planned(0, "kill", 1, 2, order=5),
        planned(1, "partition", 1, 2, shape="nope"),
        planned(2, "partition", 1, 2, heal="x"),
    ]
    tally = stage.run([*bad, planned(3, "pause", 2, 1)], room_s=10)
    assert (tally.failed, tally.applied, stage.world.is_whole) == (3, 1, True)
    told = [value["evidence"] for _, _, value in stage.events if value["phase"] == "stop"]
    assert sum(text.startswith("not begun: its plan cannot be done: ") for text in told) == 3


def test_a_fault_behind_the_end_does_not_hold_the_run_up(stage):
    tally = stage.run([planned(0, "kill", 1, 2), planned(1, "pause", 500, 2)], room_s=10)
    assert (tally.applied, tally.left_out) == (1, 1)
    assert stage.ended == 10
    assert stage.events[-1][2]["evidence"] == "not begun: its time is after the end of the run"


def test_faults_share_a_budget_and_wait_for_their_turn(stage):
    stage.budget = Budget(NODES, keeps_quorum=True)
    everybody = planned(0, "kill", 1, 2, variant="all")
    waits = planned(1, "kill", 2, 2, variant="one", order=["n2", "n1", "n0"])
    too_late = planned(2, "pause", 2.5, 0.2, variant="one", order=["n1", "n2", "n0"])
    tally = stage.run([everybody, waits, too_late], room_s=10)
    assert stage.told() == [
        (1, "kill", 0, "start"),
        (2.7, "pause", 2, "start"),
        (2.7, "pause", 2, "stop"),
        (3, "kill", 0, "stop"),
        (3, "kill", 1, "start"),
        (4, "kill", 1, "stop"),
    ]
    assert stage.events[0][2]["plan"]["victims"] == ["n0"]
    assert stage.events[2][2]["evidence"] == (
        "not begun: the budget keeps a quorum, and n0 of 3 is out"
    )
    assert (tally.applied, tally.took_effect, tally.left_out) == (2, 2, 1)
    assert stage.world.is_whole
