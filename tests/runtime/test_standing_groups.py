"""Who leads where a run's nodes are several groups, each with a leader of its own."""

from __future__ import annotations

from pathlib import Path

import trio

from shaketable.harness.contracts.plugins import NO_ROLE, NodeStatus
from shaketable.harness.runtime.group_status import GroupStatus
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import SilentObserver

NODES = ("n0", "n1", "n2", "n3")
GROUPS = {"n0": "a", "n1": "b", "n2": "a", "n3": "b"}


class Running:
    def incarnation(self, node: str) -> int:
        return 1

    def is_running(self, node: str) -> bool:
        return True

    def last_line(self, node: str) -> str:
        return ""


def said(node: str, leader: str | None, end: int = 7) -> NodeStatus:
    role = "leader" if node == leader else "follower"
    return NodeStatus(node, role, 0, leader, end, end, GROUPS[node])


def asked(tmp_path: Path, *statuses: NodeStatus) -> GroupStatus:
    """Return a standing that has just asked every node."""
    told = {status.node: status for status in statuses}

    async def ask(node: str) -> NodeStatus | None:
        await trio.lowlevel.checkpoint()
        return told.get(node)

    lines = Lines(tmp_path / "status.jsonl")
    group_status = GroupStatus(NODES, Running(), ask, lines, SilentObserver(), lambda: 0)

    async def main() -> None:
        with trio.move_on_after(0.02):
            async with trio.open_nursery() as nursery:
                for node in NODES:
                    nursery.start_soon(group_status.poll, node)

    trio.run(main)
    lines.close()
    return group_status


def test_each_group_has_a_leader_and_an_end_of_its_own(tmp_path: Path) -> None:
    whole = asked(
        tmp_path, said("n0", "n0"), said("n1", "n1", 9), said("n2", "n0"), said("n3", "n1", 9)
    )
    assert whole.is_ready(-1.0)
    assert whole.is_settled(-1.0)
    assert whole.leader(("n3", "n0", "n1")) == "n0"
    assert whole.leader(("n2", "n1")) == "n1"
    assert whole.leader() == whole.leading()[0] == "n1"


def test_one_group_without_a_leader_or_behind_is_enough_not_to_be_ready(tmp_path: Path) -> None:
    headless = asked(
        tmp_path, said("n0", "n0"), said("n1", None), said("n2", "n0"), said("n3", None)
    )
    assert not headless.is_ready(-1.0)
    assert headless.leader(("n1", "n0")) == "n0"
    behind = asked(
        tmp_path, said("n0", "n0"), said("n1", "n1", 9), said("n2", "n0", 6), said("n3", "n1", 9)
    )
    assert behind.is_ready(-1.0)
    assert not behind.is_settled(-1.0)


def test_nodes_that_show_no_role_are_ready_as_soon_as_all_answer(tmp_path: Path) -> None:
    up = [NodeStatus(node, NO_ROLE, 0, None, -1, -1) for node in NODES]
    whole = asked(tmp_path, *up)
    assert whole.is_ready(-1.0)
    assert whole.is_settled(-1.0)
    assert whole.leader() is None
    assert whole.lagging() == ()
    assert whole.why_not_ready() == "n0 answers; n1 answers; n2 answers; n3 answers"
    missing = asked(tmp_path, *up[1:])
    assert not missing.is_ready(-1.0)
    assert missing.lagging() == ("n0",)
