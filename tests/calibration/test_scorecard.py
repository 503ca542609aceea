"""Scorecards: what counts as found, in time, missed, and as a false alarm."""

from __future__ import annotations

from shaketable.harness.calibration import NO_FAULT, Hunt, HuntOutcome, add_up
from shaketable.harness.terminal.calibrate import summary_lines
from shaketable.reports.calibration_page import Found, render_scorecard


def hunt(bug: str, method: str = "default", repeat: int = 1) -> Hunt:
    return Hunt(bug=bug, family="f", target="t", method=method, repeat=repeat, seed=1)  # type: ignore[arg-type]


def found(*faults: str, report: str = "page.html") -> Found:
    return Found(
        by=("durability",),
        world="process",
        kinds=("lost-append",),
        says="<1 append is lost>",
        faults=faults,
        seed="a",
        report=report,
    )


def outcome(of: Hunt, what: Found | None, took_s: float = 9.0, virtual_s: float = 0) -> HuntOutcome:
    return HuntOutcome(hunt=of, found=what, runs=2, took_s=took_s, virtual_s=virtual_s)


def test_a_bug_that_one_method_finds_is_found_and_the_others_are_missed() -> None:
    card = add_up(
        [
            outcome(hunt("a"), None),
            outcome(hunt("a", "sim"), found(report=""), virtual_s=50),
            outcome(hunt("b"), None),
        ],
        seed=3,
        hunts=4,
    )
    assert [row.bug for row in card.missed] == ["b"]
    assert (card.found_by("default"), card.found_by("sim")) == (0, 1)
    lines = summary_lines(card)
    assert lines[0] == "1 of 2 planted bugs found"
    assert "missed: b (f)" in lines
    assert lines[-1] == "1 of 4 hunts were not done"
    assert render_scorecard(card).count("missed</span>") == 2, "b by default, and a"


def test_in_time_is_the_median_over_all_hunts_also_those_that_found_nothing() -> None:
    quick = [outcome(hunt("a", repeat=n), found()) for n in (1, 2)]
    missed = [outcome(hunt("a", repeat=n), None) for n in (3, 4, 5)]
    assert add_up(quick, 1, 2).bugs[0].scores["default"].is_in_time
    assert not add_up([*quick, *missed], 1, 5).bugs[0].scores["default"].is_in_time
    slow = outcome(hunt("a"), found(), took_s=61)
    assert not add_up([slow], 1, 1).bugs[0].scores["default"].is_in_time
    simulated = outcome(hunt("a", "sim"), found(), took_s=61, virtual_s=600)
    assert add_up([simulated], 1, 1).bugs[0].scores["sim"].is_in_time


def test_the_matrix_counts_campaigns_by_the_faults_that_held() -> None:
    card = add_up(
        [
            outcome(hunt("a", repeat=1), found("kill", "pause")),
            outcome(hunt("a", repeat=2), found("kill")),
            outcome(hunt("b"), found()),
            outcome(hunt("b", "sim"), found(report="")),  # a seed says nothing of faults
        ],
        1,
        4,
    )
    assert card.matrix == {"kill": {"a": 2}, NO_FAULT: {"b": 1}, "pause": {"a": 1}}


def test_what_the_correct_system_is_accused_of_is_a_false_alarm() -> None:
    card = add_up([outcome(hunt(""), found()), outcome(hunt("", "sim"), None)], 1, 2)
    assert card.alarms == 1
    assert summary_lines(card)[-1] == "the correct system: 1 false alarm in 4 runs"
    page = render_scorecard(card)
    assert "&lt;1 append is lost&gt;" in page
    assert "<1 append" not in page
