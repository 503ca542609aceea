"""Every anomaly has a golden history: it is found and named exactly, clean ones are not accused."""

from __future__ import annotations

import pytest

from shaketable.harness import discovery
from shaketable.harness.contracts.verdict import Outcome
from tests.support.anomaly_histories import ROOT, judge, kinds_of, parse

HISTORIES = sorted(ROOT.glob("*.txt"))
SINGLE = {
    "inconsistent-offsets": ("inconsistent-offsets",),
    "duplicate": ("duplicate",),
    "lost-write": ("lost-write",),
    "unseen": ("unseen",),
    "aborted-read": ("G1a", "phantom-read"),
    "poll-skip": ("poll-skip", "int-poll-skip"),
    "nonmonotonic-poll": ("nonmonotonic-poll", "int-nonmonotonic-poll"),
    "nonmonotonic-send": ("nonmonotonic-send",),
}
"""The checkers of one anomaly each, of which log-anomalies is made."""


def expectation(path):
    """Return the checker, the outcome and the kinds that the first line names."""
    checker, outcome, *kinds = path.read_text().splitlines()[0].removeprefix("#").split()
    return checker, Outcome[outcome.upper()], kinds


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_golden_history(tmp_path, path):
    checker, outcome, kinds = expectation(path)
    rows = parse(path.read_text())
    verdict = judge(tmp_path, rows, checker)
    assert kinds_of(verdict) == kinds, verdict.summary
    assert verdict.outcome is outcome, verdict.summary
    known = {row["op"] for row in rows}
    for finding in verdict.findings:
        assert finding.operations
        assert set(finding.operations) <= known
        assert finding.message.endswith(".")


@pytest.mark.parametrize("name", SINGLE)
def test_each_row_of_the_table_is_a_checker_by_itself(tmp_path, name):
    for path in HISTORIES:
        checker, _, kinds = expectation(path)
        if checker == "log-anomalies":
            verdict = judge(tmp_path, parse(path.read_text()), name)
            assert kinds_of(verdict) == [kind for kind in kinds if kind in SINGLE[name]], path


def test_every_anomaly_that_is_defined_has_a_golden_history():
    from shaketable.checkers.anomalies.log_rules import ANOMALIES  # noqa: PLC0415

    shown = {kind for path in HISTORIES for kind in expectation(path)[2]}
    assert shown == ANOMALIES


def test_every_checker_of_anomalies_is_found():
    names = {checker for checker, *_ in map(expectation, HISTORIES)} | set(SINGLE)
    assert names <= set(discovery.find("checkers"))
