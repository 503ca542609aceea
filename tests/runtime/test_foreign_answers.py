"""Whatever somebody's plug-in raises or answers, a run goes on, and nothing is left untold."""

from __future__ import annotations

import asyncio
import sys
from random import Random

import pytest
import trio
from nemesis_stage import Stage, planned

from shaketable.harness import plugin_calls
from shaketable.harness.contracts.plugins import Evidence
from shaketable.harness.faults import process
from shaketable.harness.plugin_calls import PlugInError, as_plugin_error
from shaketable.harness.runtime.ledger import open_faults
from shaketable.harness.runtime.nemesis import Budget


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path / "faults.jsonl")


class Door(process.Kill):
    """Somebody's fault that shuts a door elsewhere, and then fails in a way of its own."""

    name = "kill"
    is_shut = False
    undo_error = None

    def undo_ahead(self, plan):
        return {"door": "north"}

    async def apply(self, plan, world):
        self.is_shut = True
        return await self.fail()

    async def fail(self):
        raise OSError("it creaks")

    async def probe(self, plan, undo, world):
        return Evidence(True, "shut")

    async def undo(self, undo, world):
        if self.undo_error is not None:
            raise self.undo_error
        assert undo["door"] == "north"
        self.is_shut = False


class Hangs(Door):
    async def fail(self):
        await trio.sleep_forever()


class Forgets(Door):
    async def fail(self):
        return None


class Leaves(Door):
    async def fail(self):
        sys.exit(3)


class ElsewhereCancelled(Door):
    """It runs an event loop of its own, and what ends a task there gets out."""

    async def fail(self):
        raise asyncio.CancelledError("by its loop")


class SaysNothing(Door):
    async def fail(self):
        raise OSError(Rude())


class SaysHalf(Door):
    """Its words hold half of a character: no file can."""

    async def fail(self):
        raise OSError("it creaks: \udce9")


class Numbered(Door):
    """What undoes it has numbers as keys: the ledger gives back words."""

    async def fail(self):
        return {"door": "north", "keys": {1: "a"}}


class NoJson(Door):
    """What it returns undoes it, but cannot be written down."""

    async def fail(self):
        return {"door": "north", "keys": {1, 2}}


class Crowd(Door):
    """One of its tasks fails while the others are cancelled."""

    async def fail(self):
        async def late():
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("woken up")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(late)
            nursery.start_soon(trio.sleep_forever)


FAILURES = {
    Door: "OSError: it creaks",
    Hangs: "not applied within 15 s",
    Forgets: "its apply returned None in place of what undoes it",
    Leaves: "SystemExit: 3",
    NoJson: "its apply returned what is no JSON: TypeError",
    ElsewhereCancelled: "CancelledError: by its loop",
    SaysNothing: "OSError: <OSError that cannot be shown>",
    SaysHalf: "OSError: it creaks: \\udce9",
    Numbered: "its apply returned what JSON does not give back as it is: ",
    Crowd: "ValueError: woken up",
}


@pytest.mark.parametrize("failing", FAILURES)
def test_what_failed_to_apply_is_undone_by_what_it_gave_ahead(stage, failing):
    stage.faults["kill"] = door = failing()
    tally = stage.run([planned(0, "kill", 1, 1), planned(1, "pause", 60, 1)])
    assert not door.is_shut
    assert open_faults(stage.path) == ()
    assert (tally.failed, tally.stuck, tally.applied) == (1, 0, 1)
    stop = stage.events[1][2]
    assert stop["evidence"].startswith(f"could not be applied: {FAILURES[failing]}")


def test_what_failed_to_apply_is_undone_also_if_that_cannot_be_recorded(stage):
    stage.faults["kill"] = door = Door()
    nemesis = stage.nemesis

    def full_disk(*_):
        raise OSError("no space left")

    def with_full_disk():
        made = nemesis()
        made._record = full_disk
        return made

    stage.nemesis = with_full_disk
    with pytest.raises(ExceptionGroup):
        stage.run([planned(0, "kill", 1, 1)])
    assert not door.is_shut


def test_what_failed_to_apply_and_to_be_undone_stays_open(stage):
    stage.faults["kill"] = door = Door()
    door.undo_error = RuntimeError("the door is jammed")
    tally = stage.run([planned(0, "kill", 1, 1)])
    (left,) = open_faults(stage.path)
    assert (left.undo, left.is_applied) == ({"door": "north"}, False)
    assert (tally.failed, tally.stuck) == (1, 1)
    assert (
        "OSError: it creaks; could not be undone: RuntimeError: the door is jammed"
        in (stage.events[-1][2]["evidence"])
    )


def test_what_failed_to_apply_and_gave_no_undo_ahead_stays_open_and_is_told(stage):
    class Silent(process.Kill):
        async def apply(self, plan, world):
            raise OSError("half way")

    stage.faults["kill"] = Silent()
    tally = stage.run([planned(0, "kill", 1, 1)])
    (left,) = open_faults(stage.path)
    assert (left.fault, left.undo) == (0, None)
    assert tally.stuck == 1
    assert '"event":"stuck"' in stage.path.read_text()
    assert "it is not known what it did" in stage.events[-1][2]["evidence"]
    assert "it is not known what it did" in stage.notes[0]


def test_ours_take_back_what_they_had_begun(stage):
    async def refused(to):
        raise OSError("not now")

    stage.world.transfer = refused
    stage.faults["transfer"] = process.TRANSFER
    plan = process.TRANSFER.plan(Random(1), stage.world.nodes, 0)
    tally = stage.run([planned(0, "transfer", 1, 1, **plan)])
    assert (tally.failed, tally.stuck) == (1, 0)
    assert open_faults(stage.path) == ()


class Rude:
    """Raises whenever somebody looks at it."""

    def __repr__(self):
        raise ValueError("do not look")

    __str__ = __repr__


class Sly(str):
    """Words that are others whenever somebody looks at them."""

    def __str__(self, *_):
        raise ValueError("do not look")

    split = encode = __repr__ = __str__


ANSWERS = {
    "None": None,
    "rude": Rude(),
    "rude words": Evidence(True, Rude()),
    "rude measures": Evidence(True, "shut", {"doors": Rude()}),
    "for ever": Evidence(True, "shut", {"doors": float("inf")}),
    "not a number": Evidence(True, "shut", {"doors": float("nan")}),
    "huge number": Evidence(True, "shut", {"doors": 10**400}),
    "number as a name": Evidence(True, "shut", {1: 2}),
    "truth": Evidence("yes", "shut"),
    "words": Evidence(True, b"shut"),
    "measures": Evidence(True, "shut", {"doors": {1}}),
    "number": Evidence(True, "shut", {"doors": "two"}),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_probe_that_gives_no_evidence_means_no_effect_and_undone(stage, answer):
    class Vague(process.Kill):
        async def probe(self, plan, undo, world):
            return ANSWERS[answer]

    stage.faults["kill"] = Vague()
    tally = stage.run([planned(0, "kill", 1, 1), planned(1, "pause", 5, 1)])
    assert (tally.applied, tally.took_effect, tally.stuck) == (2, 1, 0)
    assert stage.world.is_whole
    assert open_faults(stage.path) == ()
    assert stage.events[1][2]["evidence"].startswith("probe failed: its probe returned")


PLANS = {
    "undo_ahead": {1, 2},
    "undo_ahead of": {"door": b"north"},
    "undo_ahead is": None,
    "aim": ["n0"],
    "aim of": {"victims": {"n0"}},
    "describe": None,
}


@pytest.mark.parametrize("which", PLANS)
def test_a_plan_or_an_undo_that_is_no_json_is_a_fault_that_did_not_begin(stage, which):
    struck = []

    class Odd(process.Kill):
        async def apply(self, plan, world):
            struck.append(plan)

    setattr(Odd, which.split()[0], lambda self, *_: PLANS[which])
    stage.faults["kill"] = Odd()
    tally = stage.run([planned(0, "kill", 1, 1), planned(1, "pause", 5, 1)])
    assert (tally.failed, tally.applied, tally.stuck) == (1, 1, 0)
    assert struck == []
    assert stage.events[1][2]["evidence"].startswith("not begun: its plan cannot be done: its ")
    assert open_faults(stage.path) == ()


@pytest.mark.parametrize("method", ["aim", "describe", "probe", "undo"])
def test_a_plug_in_that_ends_python_ends_no_run(stage, method):
    class Ends(process.Kill):
        pass

    def ends(self, *_):
        sys.exit(7)

    async def ends_later(self, *_):
        sys.exit(7)

    setattr(Ends, method, ends_later if method in ("probe", "undo") else ends)
    stage.faults["kill"] = Ends()
    tally = stage.run([planned(0, "kill", 1, 1), planned(1, "pause", 200, 1)])
    assert tally.applied == (2 if method in ("probe", "undo") else 1)
    assert "SystemExit: 7" in stage.events[1][2]["evidence"]
    assert [fault.fault for fault in open_faults(stage.path)] == ([0] if method == "undo" else [])


def test_an_act_that_ends_python_or_notes_no_json_is_undone(stage):
    class Acting(process.Pause):
        def min_duration_s(self, nodes):
            return 1.0

        async def act(self, plan, undo, world, note):
            note({"incarnations": {}, "keys": {1}})

    class Ending(process.Kill):
        def min_duration_s(self, nodes):
            return 1.0

        async def act(self, plan, undo, world, note):
            sys.exit(1)

    stage.faults.update(pause=Acting(), kill=Ending())
    tally = stage.run([planned(0, "pause", 1, 1), planned(1, "kill", 5, 1)])
    assert tally.applied == 2
    assert stage.world.is_whole
    assert len(stage.notes) == 2
    assert open_faults(stage.path) == ()


@pytest.mark.parametrize("kind", [Sly, str])
def test_words_of_a_plug_in_are_made_plain(stage, kind):
    words = kind("shut \udce9")

    class Wordy(process.Kill):
        def describe(self, plan):
            return words

        async def probe(self, plan, undo, world):
            return Evidence(True, words)

    stage.faults["kill"] = Wordy()
    tally = stage.run([planned(0, "kill", 1, 1)])
    assert (tally.took_effect, tally.stuck) == (1, 0)
    stop = stage.events[1][2]
    assert (stop["description"], stop["evidence"]) == ("shut \\udce9",) * 2
    assert type(stop["description"]) is type(stop["evidence"]) is str


def test_lists_may_be_tuples_and_seconds_are_no_longer_than_anything():
    given = {"links": (("n0", "n1"),), "none": None, "deep": {"much": [1, 2.5, True]}}
    assert plugin_calls.json_object(given, "it returned") is given
    with pytest.raises(PlugInError, match="in place of seconds"):
        plugin_calls.seconds(10**400, "it returned")


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_who_interrupts_is_no_plug_in(error):
    with pytest.raises(error), as_plugin_error():
        raise error


def test_who_cancels_a_plug_in_cancels_it():
    async def main():
        with trio.move_on_after(0) as scope, as_plugin_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await trio.sleep_forever()
        return scope.cancelled_caught

    assert trio.run(main)


@pytest.mark.parametrize("broken", ["leader", "budget"])
def test_errors_of_ours_are_not_called_a_plug_in_s(stage, broken):
    def fails(*_):
        raise ZeroDivisionError("of ours")

    async def fails_later(*_):
        fails()

    if broken == "leader":
        stage.world.leader = fails_later
    else:
        stage.budget = Budget(stage.world.nodes, keeps_quorum=True)
        stage.budget.take = fails
    with pytest.raises(ExceptionGroup) as raised:
        stage.run([planned(0, "kill", 1, 1)])
    assert raised.group_contains(ZeroDivisionError)
    assert stage.made.tally.failed == 0


@pytest.mark.parametrize(
    ("taken_out", "narrowed", "told"),
    [
        (Rude(), None, "TypeError"),
        ([3], None, "its taken_out returned 3 in place of words"),
        (["n0", "n1"], {1: 2}, "its narrowed returned what JSON does not give back"),
    ],
)
def test_a_plug_in_is_blamed_for_what_it_tells_the_budget(stage, taken_out, narrowed, told):
    class Odd(process.Kill):
        def taken_out(self, plan, nodes):
            return taken_out

        def narrowed(self, plan, nodes, spare):
            return narrowed

    stage.faults["kill"] = Odd()
    stage.budget = Budget(stage.world.nodes, keeps_quorum=True)
    tally = stage.run([planned(0, "kill", 1, 1)])
    assert tally.failed == 1
    assert told in stage.events[1][2]["evidence"]
