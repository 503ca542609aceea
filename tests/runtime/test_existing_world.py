"""The world of groups that run already: what it does to nodes shows, and is put back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from shaketable.harness.campaigns.schedule import Planned
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import UNTOUCHED, Address, NodeLayout, NodeStatus
from shaketable.harness.faults.network import PARTITION
from shaketable.harness.faults.process import KILL, PAUSE
from shaketable.harness.runtime import ledger
from shaketable.harness.runtime.existing_world import ExistingWorld, number_in, recover
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.nemesis import Nemesis
from shaketable.harness.runtime.observer import SilentObserver

NODES = ("n0", "n1", "n2")


class Group:
    """Nodes that obey, and note the commands that they were given."""

    name = "group"
    addresses = tuple(Address("127.0.0.1", 7000 + n) for n in range(3))

    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []
        self.failing: set[str] = set()
        self.is_deaf_to_kills = False
        self.strange = ""
        self.takes_s = 0.0
        self.answers_after_s = 0.0
        self.down: set[str] = set()
        self.dropped = 0

    def why_not(self, capability: Capability) -> str | None:
        return None

    async def act(self, action: str, node: str, to: str = "") -> str:
        await trio.sleep(self.takes_s)
        if action != "dropped":
            self.done.append((action, node, to) if to else (action, node))
        if action == self.strange:
            raise OSError("no space left")
        if action in self.failing:
            raise HarnessError(f"command {action} of {node}: exit code 1")
        if action == "kill" and self.is_deaf_to_kills:
            return ""
        if action in ("kill", "stop", "pause"):
            self.down.add(node)
        if action in ("start", "resume"):
            self.down.discard(node)
        return f"{self.dropped}\n"

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        is_silent = layout.node in self.down or self.answers_after_s > timeout_s
        await trio.sleep(self.answers_after_s)
        if is_silent:
            return None
        return NodeStatus(layout.node, "up", 0, None, -1, -1)


def in_world(folder: Path, group: Group, body: Callable[[ExistingWorld], Awaitable[None]]) -> None:
    layouts = {
        node: NodeLayout(node, folder / node, at, at, {})
        for node, at in zip(NODES, group.addresses, strict=True)
    }
    lines = Lines(folder / "status.jsonl")
    world = ExistingWorld(group, layouts, lines, SilentObserver(), 0)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(world.run)
            await world.until_ready(10)
            await body(world)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    lines.close()


@pytest.mark.parametrize("fault", [KILL, PAUSE])
def test_a_struck_node_has_to_miss_a_request(tmp_path: Path, fault: object) -> None:
    group = Group()

    async def body(world: ExistingWorld) -> None:
        plan = {"victims": ["n1"]}
        undo = await fault.apply(plan, world)  # type: ignore[attr-defined]
        evidence = await fault.probe(plan, undo, world)  # type: ignore[attr-defined]
        assert evidence.took_effect
        assert evidence.what == "n1 did not answer; no known leader"
        await fault.undo(undo, world)  # type: ignore[attr-defined]
        await fault.undo(undo, world)  # type: ignore[attr-defined]
        assert await world.until_ready(10)

    in_world(tmp_path, group, body)
    action, undo = ("kill", "start") if fault is KILL else ("pause", "resume")
    assert group.done == [(action, "n1"), (undo, "n1")]


def test_a_node_that_survives_its_kill_is_no_killed_node(tmp_path: Path) -> None:
    group = Group()
    group.is_deaf_to_kills = True

    async def body(world: ExistingWorld) -> None:
        undo = await KILL.apply({"victims": ["n1"]}, world)
        await trio.sleep(1)
        assert not (await KILL.probe({"victims": ["n1"]}, undo, world)).took_effect
        await KILL.undo(undo, world)
        assert world.incarnation("n1") == 1

    in_world(tmp_path, group, body)
    assert group.done == [("kill", "n1"), ("start", "n1")]


def test_a_kill_that_failed_may_have_killed(tmp_path: Path) -> None:
    group = Group()
    group.failing = {"kill"}

    async def body(world: ExistingWorld) -> None:
        with pytest.raises(HarnessError, match="command kill of n2"):
            await KILL.apply({"victims": ["n2"]}, world)
        assert world.is_running("n2")

    in_world(tmp_path, group, body)
    assert group.done == [("kill", "n2"), ("start", "n2")]


def test_a_node_that_ends_late_is_started_after_its_end(tmp_path: Path) -> None:
    group = Group()
    group.is_deaf_to_kills = True

    async def body(world: ExistingWorld) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.kill, "n1")
            await trio.sleep(0.4)
            group.down.add("n1")
        await world.restart("n1", 1)
        assert world.incarnation("n1") == 2

    in_world(tmp_path, group, body)


def test_a_node_that_ends_after_its_start_is_started_again(tmp_path: Path) -> None:
    group = Group()
    group.is_deaf_to_kills = True

    async def body(world: ExistingWorld) -> None:
        killed = await world.kill("n1")
        await world.restart("n1", killed["incarnation"])
        group.down.update(("n0", "n1"))
        await trio.sleep(1)
        assert await world.put_back(30) == ()  # a slow node is no problem of the run

    in_world(tmp_path, group, body)
    assert group.done[:3] == [("kill", "n1"), ("start", "n1"), ("start", "n1")]
    assert ("start", "n0") not in group.done  # it ended by itself


def test_a_failed_kill_that_is_not_undone_is_for_heal(tmp_path: Path) -> None:
    group = Group()
    group.failing = {"kill", "start"}
    kept = ledger.Ledger(tmp_path / "faults.jsonl", lambda: 0)

    async def body(world: ExistingWorld) -> None:
        plan = {"variant": "one", "order": ["n1"]}
        planned = Planned(number=4, fault="kill", plan=plan, start_s=0, duration_s=1)
        nemesis = Nemesis(
            {"kill": KILL}, world, kept, lambda _f, _value: None, SilentObserver(), lambda: 0
        )
        await nemesis.run([planned])
        assert nemesis.left == ["kill"]

    in_world(tmp_path, group, body)
    kept.close()
    assert [fault.fault for fault in ledger.open_faults(tmp_path / "faults.jsonl")] == [4]


def test_another_fault_leaves_a_struck_node_alone(tmp_path: Path) -> None:
    group = Group()

    async def body(world: ExistingWorld) -> None:
        killed = await world.kill("n0")
        assert await world.kill("n0") == {"incarnation": UNTOUCHED}
        assert await world.pause("n0") == {"incarnation": UNTOUCHED}
        await trio.sleep(1)
        await world.restart("n0", killed["incarnation"])
        await world.restart("n0", killed["incarnation"])
        assert world.incarnation("n0") == 2

    in_world(tmp_path, group, body)
    assert group.done == [("kill", "n0"), ("start", "n0")]


def test_a_killed_node_is_paused_no_longer(tmp_path: Path) -> None:
    group = Group()

    async def body(world: ExistingWorld) -> None:
        paused = await world.pause("n0")
        killed = await world.kill("n0")
        await world.restart("n0", killed["incarnation"])
        await world.resume("n0", paused["incarnation"])
        assert await world.put_back() == ()

    in_world(tmp_path, group, body)
    assert group.done == [("pause", "n0"), ("kill", "n0"), ("start", "n0"), ("resume", "n0")]
    assert not group.down


def test_a_request_from_before_a_kill_is_no_evidence(tmp_path: Path) -> None:
    group = Group()
    group.is_deaf_to_kills = True

    async def body(world: ExistingWorld) -> None:
        group.answers_after_s = 0.5  # the nodes are slow for a moment
        await trio.sleep(0.3)
        group.answers_after_s = 0.0
        undo = await KILL.apply({"victims": ["n1"]}, world)
        await trio.sleep(1)
        assert not (await KILL.probe({"victims": ["n1"]}, undo, world)).took_effect
        await KILL.undo(undo, world)

    in_world(tmp_path, group, body)


def test_a_paused_node_that_survives_its_kill_is_resumed(tmp_path: Path) -> None:
    group = Group()
    group.is_deaf_to_kills = True

    async def body(world: ExistingWorld) -> None:
        paused = await PAUSE.apply({"victims": ["n1"]}, world)
        killed = await KILL.apply({"victims": ["n1"]}, world)
        await trio.sleep(1)
        assert not (await KILL.probe({"victims": ["n1"]}, killed, world)).took_effect
        await KILL.undo(killed, world)
        await PAUSE.undo(paused, world)

    in_world(tmp_path, group, body)
    assert group.done[2:] == [("start", "n1"), ("resume", "n1")]


def test_a_kill_right_after_which_the_node_is_started_shows(tmp_path: Path) -> None:
    group = Group()

    async def body(world: ExistingWorld) -> None:
        for incarnation in (1, 2, 3):
            await world.restart("n1", (await world.kill("n1"))["incarnation"])
            assert world.incarnation("n1") == incarnation + 1

    in_world(tmp_path, group, body)


def test_commands_for_a_node_take_turns(tmp_path: Path) -> None:
    group = Group()
    group.takes_s = 0.5

    async def body(world: ExistingWorld) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.pause, "n1")
            await trio.sleep(0.1)
            killed = await world.kill("n1")
        async with trio.open_nursery() as nursery:  # the run is cut off while the fault is undone
            nursery.start_soon(world.restart, "n1", killed["incarnation"])
            nursery.start_soon(world.put_back)
        assert await world.put_back() == ()

    in_world(tmp_path, group, body)
    assert group.done[:2] == [("pause", "n1"), ("kill", "n1")]
    assert sorted(group.done[2:]) == [("resume", "n1"), ("start", "n1")]


def test_cuts_that_are_healed_at_the_same_time_leave_no_link_cut(tmp_path: Path) -> None:
    group = Group()

    async def body(world: ExistingWorld) -> None:
        first = await world.cut([("n0", "n1"), ("n1", "n0")])
        second = await world.cut([("n0", "n1"), ("n2", "n1")])
        group.takes_s = 0.5
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.heal, first, "deliver")
            nursery.start_soon(world.heal, second, "deliver")

    in_world(tmp_path, group, body)
    assert sorted(group.done[-3:]) == [
        ("heal", "n0", "n1"), ("heal", "n1", "n0"), ("heal", "n2", "n1"),
    ]  # fmt: skip


def test_what_was_dropped_before_a_cut_is_not_its_doing(tmp_path: Path) -> None:
    group = Group()
    group.dropped = 1000

    async def body(world: ExistingWorld) -> None:
        cut = await world.cut([("n0", "n1")])
        await trio.sleep(1)
        assert world.held(cut)["bytes"] == 0
        group.dropped = 1007
        await trio.sleep(1)
        assert world.held(cut)["bytes"] == 7

    in_world(tmp_path, group, body)


def test_a_short_cut_is_counted_when_it_is_healed(tmp_path: Path) -> None:
    group = Group()

    async def body(world: ExistingWorld) -> None:
        cut = await world.cut([("n0", "n1")])
        await trio.sleep(0.06)
        group.dropped = 3
        await world.heal(cut, "deliver")
        assert world.held(cut)["bytes"] == 3

    in_world(tmp_path, group, body)


def test_a_link_is_open_when_its_last_cut_is_healed(tmp_path: Path) -> None:
    group = Group()

    async def body(world: ExistingWorld) -> None:
        first = await world.cut([("n0", "n1"), ("n1", "n0")])
        second = await world.cut([("n0", "n1")])
        await world.heal(first, "deliver")
        assert group.done[-1] == ("heal", "n1", "n0")
        await world.heal(second, "reset")
        assert group.done[-1] == ("heal", "n0", "n1")
        await world.heal(second, "reset")

    in_world(tmp_path, group, body)
    assert sorted(group.done) == [
        ("cut", "n0", "n1"), ("cut", "n1", "n0"), ("heal", "n0", "n1"), ("heal", "n1", "n0"),
    ]  # fmt: skip


def test_a_cut_took_effect_if_it_dropped_something(tmp_path: Path) -> None:
    group = Group()

    async def body(world: ExistingWorld) -> None:
        plan = {"links": [["n0", "n1"], ["n1", "n0"]], "shape": "one", "heal": "deliver"}
        undo = await PARTITION.apply(plan, world)
        await trio.sleep(1)
        assert not (await PARTITION.probe(plan, undo, world)).took_effect
        group.dropped = 40
        await trio.sleep(1)
        evidence = await PARTITION.probe(plan, undo, world)
        assert evidence.took_effect
        assert evidence.what.startswith("dropped 80")  # by two links
        await PARTITION.undo(undo, world)

    in_world(tmp_path, group, body)


def test_a_cut_that_fails_is_healed(tmp_path: Path) -> None:
    group = Group()
    group.failing = {"cut"}

    async def body(world: ExistingWorld) -> None:
        with pytest.raises(HarnessError, match="command cut of n0"):
            await world.cut([("n0", "n1")])
        assert await world.put_back() == ()

    in_world(tmp_path, group, body)
    assert group.done == [("cut", "n0", "n1"), ("heal", "n0", "n1")]


def test_all_is_put_back_when_the_run_is_cut_off(tmp_path: Path) -> None:
    group = Group()

    async def body(world: ExistingWorld) -> None:
        await world.kill("n0")
        await world.pause("n1")
        await world.cut([("n1", "n2")])

    in_world(tmp_path, group, body)
    assert group.done[3:] == [("heal", "n1", "n2"), ("resume", "n1"), ("start", "n0")]
    assert not group.down


def test_what_cannot_be_put_back_is_told(tmp_path: Path) -> None:
    group = Group()

    async def body(world: ExistingWorld) -> None:
        await world.pause("n1")
        group.failing = {"resume"}
        [line] = await world.put_back()
        assert line == ("node n1 was still paused, and still is: command resume of n1: exit code 1")

    in_world(tmp_path, group, body)
    assert group.done.count(("resume", "n1")) > 3


def test_an_unexpected_error_keeps_nothing_else_from_being_put_back(tmp_path: Path) -> None:
    group = Group()

    async def body(world: ExistingWorld) -> None:
        group.strange = "dropped"
        await world.cut([("n0", "n1"), ("n0", "n2")])
        await trio.sleep(1)
        await world.kill("n2")
        group.strange = "heal"

    in_world(tmp_path, group, body)
    assert group.done[-1] == ("start", "n2")


def test_after_a_killed_harness_all_of_a_kind_is_undone() -> None:
    group = Group()
    trio.run(recover, group, {Capability.PAUSE}, NODES)
    assert sorted(group.done) == [("resume", node) for node in NODES]
    group.done.clear()
    trio.run(recover, group, {Capability.CUT}, NODES)
    assert len(set(group.done)) == 6
    group.failing = {"start"}
    with pytest.raises(HarnessError, match="command start of n"):
        trio.run(recover, group, {Capability.KILL}, NODES)


@pytest.mark.parametrize(
    ("text", "number"), [("", 0), ("17\n", 17), ("3 packets\n4\n", 7), ("no -2", 0)]
)
def test_numbers_of_a_command(text: str, number: int) -> None:
    assert number_in(text) == number
