"""Samples of the nodes over a run: how often, how many, and how clocks are measured."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from shaketable.harness.contracts.plugins import NodeStatus
from shaketable.harness.runtime import group_status
from shaketable.harness.runtime.group_status import AnsweredClocks, ClockOffsets, Samples, Shown
from shaketable.harness.runtime.ledger import Lines

S = 1_000_000_000


class Rig:
    """A clock that is set by hand, and the file that is written."""

    def __init__(self, path: Path) -> None:
        self.now_ns = 0
        self.path = path
        self.lines = Lines(path)
        self.samples = Samples(self.lines, self, lambda: self.now_ns)

    def shown(self) -> Shown:
        return Shown(self.now_ns / 1e6, self.now_ns / 1e6)

    def offsets(self, status: NodeStatus, asked: Shown) -> ClockOffsets | None:
        return None if status.wall_ms is None else ClockOffsets(1.04, -2.0, 0.26)

    def poll(self, node: str, wall_ms: int | None = None) -> None:
        asked = self.samples.begin(node)
        if asked is not None:
            status = NodeStatus(node, "leader", 3, node, 41, 43, wall_ms=wall_ms)
            self.samples.end(node, status, asked)

    def rows(self) -> list[dict]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def rig(tmp_path: Path):
    rig = Rig(tmp_path / "samples.jsonl")
    yield rig
    rig.lines.close()


def test_each_node_is_sampled_at_most_twice_a_second(rig: Rig) -> None:
    for tenth in range(101):
        rig.now_ns = tenth * S // 10
        rig.poll("n0")
        rig.poll("n1")
    times = [row["time_ns"] for row in rig.rows() if row["node"] == "n1"]
    assert times == [half * S // 2 for half in range(21)]
    first = {"time_ns": 0, "node": "n0", "committed_index": 41, "end_index": 43}
    assert rig.rows()[0] == first  # no clocks of a node that does not tell


def test_a_long_run_thins_out(rig: Rig) -> None:
    hour = 3600 * S
    for step in range(0, 24 * hour, S // 2):
        rig.now_ns = step
        rig.poll("n0")
    times = [row["time_ns"] for row in rig.rows()]
    assert 2_000 < len(times) < 12_000  # of 172,800 polls
    assert max(b - a for a, b in pairwise(times)) < 50 * S


def test_no_more_rows_than_the_limit(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_status, "ROWS_MAX", 3)
    for step in range(9):
        rig.now_ns = step * S
        rig.poll("n0")
    assert len(rig.rows()) == 3


def test_clocks_stand_in_the_row_of_a_node_that_tells_them(rig: Rig) -> None:
    rig.poll("n0", wall_ms=7)
    [row] = rig.rows()
    clocks = {"wall_offset_ms": 1.0, "monotonic_offset_ms": -2.0, "doubt_ms": 0.3}
    assert clocks.items() <= row.items()


def test_a_clock_is_measured_against_the_middle_of_question_and_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = AnsweredClocks()
    monkeypatch.setattr(AnsweredClocks, "shown", lambda self: Shown(1_000_010.0, 510.0))
    asked = Shown(1_000_000.0, 500.0)
    status = NodeStatus("n0", "leader", 1, "n0", 1, 1, wall_ms=1_000_305, monotonic_ms=500)
    assert clocks.offsets(status, asked) == ClockOffsets(300.0, -5.0, 5.0)
    mute = NodeStatus("n0", "leader", 1, "n0", 1, 1)
    assert clocks.offsets(mute, asked) is None
