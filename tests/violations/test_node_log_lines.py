"""How lines of the nodes' logs are related to the run's time."""

from __future__ import annotations

from pathlib import Path

import pytest

from shaketable.reports.violation_page import node_evidence
from shaketable.reports.violation_page.node_evidence import (
    NO_CLOCK,
    Clock,
    NodeLog,
    clock_of,
    lines_around,
    parsed,
    read_logs,
)

S = 1_000_000_000


def log(*lines: str, node: str = "n0") -> NodeLog:
    return NodeLog(node, [parsed(line) for line in lines])


def times(*lines: str, clock: Clock) -> list[tuple[float, str]]:
    found = lines_around([log(*lines)], clock, [5 * S])
    assert found is not None
    return [(line.time_ns / S, line.text) for line in found.lines]


def test_local_stamps_are_taken_back_by_the_zone_that_the_run_recorded() -> None:
    clock = Clock(1_800_000_000 * S, 7200)  # 2027-01-15T08:00:00Z
    line = "2027-01-15T10:00:03.250 level=INFO event=role role=leader"
    assert times(line, clock=clock) == [(3.25, "level=INFO event=role role=leader")]


@pytest.mark.parametrize(
    "stamp",
    [
        "2027-01-15T08:00:03.250Z", "2027-01-15T10:00:03.250+02:00", "2027-01-15 03:00:03,25-0500",
    ],
)  # fmt: skip
def test_a_stamp_with_a_zone_needs_none(stamp: str) -> None:
    clock = Clock(1_800_000_000 * S, 7200)
    assert times(f"{stamp} up", clock=clock) == [(3.25, "up")]


def test_a_stamp_inside_a_line_of_json_counts_and_the_line_stays_whole() -> None:
    line = '{"level":"info","ts":"2027-01-15T08:00:01.000Z","msg":"ready"}'
    assert times(line, clock=Clock(1_800_000_000 * S, 0)) == [(1.0, line)]


def test_marks_bear_the_runs_own_time_and_lines_without_one_that_of_the_line_before() -> None:
    told = times(
        "before any time",
        "--- shaketable: n0 incarnation 2 starts at 4.500 s",
        "Traceback (most recent call last):",
        clock=Clock(None, 0),
    )
    assert told == [
        (4.5, "n0 incarnation 2 starts"),
        (4.5, "Traceback (most recent call last):"),
    ]


def test_without_a_clock_marks_bound_the_runs_begin() -> None:
    lines = (
        "--- shaketable: n0 incarnation 1 starts at 1.000 s",
        "2027-01-15T08:00:01.400 first",
        "--- shaketable: n0 incarnation 2 starts at 3.000 s",
        "2027-01-15T08:00:03.100 second",
    )
    found = lines_around([log(*lines)], Clock(None, 0), [5 * S])
    assert found is not None
    assert found.notes == (NO_CLOCK,)
    assert [
        (round(line.time_ns / S, 3), line.text) for line in found.lines if not line.is_marker
    ] == [
        (1.3, "first"),
        (3.0, "second"),
    ]


def test_a_log_without_any_time_is_said_to_have_none() -> None:
    found = lines_around([log("hello", "world")], Clock(0, 0), [5 * S])
    assert found is not None
    assert found.lines == ()
    assert "bear no time" in found.notes[0]


def test_all_nodes_stand_in_one_order_and_only_what_is_near() -> None:
    logs = [
        log("1970-01-01T00:00:05.000 a", "1970-01-01T00:00:11.000 late", node="n0"),
        log("1970-01-01T00:00:04.999 b", "1970-01-01T00:00:05.001 c", node="n1"),
    ]
    found = lines_around(logs, Clock(0, 0), [5 * S])
    assert found is not None
    assert [(line.node, line.text) for line in found.lines] == [
        ("n1", "b"), ("n0", "a"), ("n1", "c"),
    ]  # fmt: skip


def test_of_very_many_lines_the_nearest_stay_and_the_rest_is_counted() -> None:
    lines = [f"1970-01-01T00:00:05.{n:03d} line {n}" for n in range(100)]
    found = lines_around([log(*lines)], Clock(0, 0), [5 * S])
    assert found is not None
    assert [line.text for line in found.lines] == [
        f"line {n}" for n in range(node_evidence.LINES_OF_NODE_MAX)
    ]
    assert found.notes[0].startswith("60 more lines of n0")


def test_what_a_node_says_again_and_again_stands_once_with_how_often() -> None:
    clock = Clock(1_800_000_000 * S, 0)
    said = [f"2027-01-15T08:00:0{n // 10}.{n % 10}00Z peer {w}" for n in range(30, 38)
            for w in ("found", "lost")]  # fmt: skip
    said += ["2027-01-15T08:00:04.100Z role=leader"] * 3
    said += ["--- shaketable: n0 incarnation 2 starts at 4.500 s"] * 4
    told = times(*said, clock=clock)
    assert told[:2] == [
        (3.0, "peer found (again 7 times until 3.700 s)"),
        (3.0, "peer lost (again 7 times until 3.700 s)"),
    ]
    assert [text for _, text in told[2:]] == ["role=leader"] * 3 + ["n0 incarnation 2 starts"] * 4


@pytest.mark.parametrize(
    "line",
    ["2027-99-99T99:99:99 x", "2027-01-15T08:00:03.250Zx", "\x00\x1b[31mred", "--- shaketable: x"],
)
def test_odd_lines_are_lines(line: str) -> None:
    assert "\x1b" not in parsed(line).text


@pytest.mark.parametrize("clock", [None, 7, {}, {"unix_ns": "x"}, {"unix_ns": True}, []])
def test_a_clock_that_makes_no_sense_is_none(clock: object) -> None:
    assert clock_of({"clock": clock}) == Clock(None, 0)


def test_a_large_log_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_evidence, "LOG_BYTES_MAX", 64)
    path = tmp_path / "nodes" / "n0" / "node.log"
    path.parent.mkdir(parents=True)
    path.write_text("x" * 100 + "\n1970-01-01T00:00:05.000 last\n")
    logs = read_logs(tmp_path, ["n0", "n1"])
    assert [each.node for each in logs] == ["n0"]
    found = lines_around(logs, Clock(0, 0), [5 * S])
    assert found is not None
    assert "large" in found.notes[0]
    assert found.lines[-1].text == "last"


def test_a_name_or_a_link_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "nodes" / "n0").mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("1970-01-01T00:00:05.000 secret")
    (folder / "nodes" / "n0" / "node.log").symlink_to(secret)
    (tmp_path / "node.log").write_text("1970-01-01T00:00:05.000 secret")
    assert read_logs(folder, ["n0", "../..", "\0"]) == []
