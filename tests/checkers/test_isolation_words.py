"""What the anomalies of transactions are called, and how their steps are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shaketable.harness.contracts.finding_kinds import FINDING_KINDS, UNKNOWN_PROMISE, record_of
from shaketable.harness.contracts.isolation import (
    BREAKS,
    LEVELS,
    STRONGEST,
    anomaly_of,
    implied,
    ruled_out_by,
    weaker_of,
)
from shaketable.reports.finding_texts import are_steps, steps_text

DOCUMENTED = Path(__file__).parents[2] / "docs/isolation.md"


def test_every_anomaly_has_words_and_the_documentation_the_same() -> None:
    text = DOCUMENTED.read_text()
    rows = re.findall(r"^\| ([A-Za-z0-9-]+) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    documented = {name: (what, levels) for name, what, levels in rows}
    for kind, levels in BREAKS.items():
        anomaly = anomaly_of(kind)
        assert anomaly is not None
        if kind.endswith(("-process", "-realtime")):
            continue
        assert documented[kind] == (anomaly.what, ", ".join(levels))
        if kind not in FINDING_KINDS:
            record = record_of(kind)
            assert record.one == f"case of {anomaly.name}"
            assert record.promise.endswith(f" never show this: {anomaly.what}.")
    assert record_of("G2-item-realtime").one == "case of write skew (G2-item), with real time"
    assert anomaly_of("stale-read") is None
    assert record_of("of-a-plug-in").promise == UNKNOWN_PROMISE


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_rules_out_what_breaks_it_or_what_it_implies(level: str) -> None:
    out = ruled_out_by(level)
    assert out == {kind for kind in BREAKS if not implied(level).isdisjoint(BREAKS[kind])}
    assert all(ruled_out_by(weaker) <= out for weaker in implied(level))
    assert out <= ruled_out_by(STRONGEST)
    assert not ruled_out_by("")


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("serializable", "snapshot-isolation", "snapshot-isolation"),
        ("read-committed", "strict-serializable", "read-committed"),
        ("snapshot-isolation", "repeatable-read", "read-atomic"),
        ("serializable", "", ""),
        ("", "", ""),
    ],
)
def test_of_two_levels_what_both_imply_is_left(one: str, other: str, both: str) -> None:
    assert weaker_of(one, other) == weaker_of(other, one)
    left = weaker_of(one, other)
    assert left == both or {left, both} <= implied(one) & implied(other)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([["r", "x", [1, 2]], ["append", "x", 3]], "r x [1 2], append x 3"),
        ([["r", "x", []], ["r", 7, None], ["w", "y", "seven"]], "r x [], r 7, w y seven"),
        ([["r", "x"]], "r x"),
        ([["r", "x", list(range(12))]], "r x [0 1 2 3 ... 8 9 10 11]"),
    ],
)
def test_steps_are_written_as_elle_writes_them(steps: list[list[object]], text: str) -> None:
    assert are_steps(steps)
    assert steps_text(steps) == text


def test_a_long_transaction_is_cut() -> None:
    text = steps_text([["append", f"key-{number}", number] for number in range(100)])
    assert len(text) == 240
    assert text.endswith("…")


@pytest.mark.parametrize("value", [None, [], "r", [1, 2], [[1, 2]], [["r"]], {"r": 1}])
def test_other_values_are_no_steps(value: object) -> None:
    assert not are_steps(value)
