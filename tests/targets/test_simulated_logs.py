"""The logs of simulated nodes, as they are kept."""

from __future__ import annotations

import pytest

from shaketable.harness.targets import simulated_group
from shaketable.harness.targets.simulated_group import SimulatedLogs
from shaketable.reports.violation_page.node_evidence import Clock, NodeLog, lines_around, parsed


def test_lines_and_marks_are_read_back_at_their_times() -> None:
    logs = SimulatedLogs(["n0", "n1"], lambda: 4_500.0)
    logs.add_line(1_250.5, "n0", "INFO", "event=role role=leader")
    logs.mark("n0", "killed")
    logs.add_line(1.0, "clients", "INFO", "is no node's")
    read = NodeLog("n0", [parsed(line) for line in logs.text("n0").splitlines()])
    found = lines_around([read], Clock(0, 0), [3_000_000_000])
    assert found is not None
    assert [(line.time_ns, line.text, line.is_marker) for line in found.lines] == [
        (1_250_000_000, "level=INFO event=role role=leader", False),
        (4_500_000_000, "n0 killed", True),
    ]
    assert logs.text("n1") == ""


def test_the_last_lines_stay_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_group, "LINES_MAX", 3)
    logs = SimulatedLogs(["n0"], lambda: 0.0)
    for number in range(5):
        logs.add_line(float(number), "n0", "INFO", f"line {number}")
    first, *rest = logs.text("n0").splitlines()
    assert "2 lines before these were not kept" in first
    assert [line.rpartition(" ")[2] for line in rest] == ["2", "3", "4"]
