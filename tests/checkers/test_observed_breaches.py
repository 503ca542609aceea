"""What was never promised is observed: counted, said with what is documented, and forgiven."""

from __future__ import annotations

import pytest

from checkers.anomalies.promises import why_not_promised
from checkers.findings import NOTHING_BROKEN, Findings, gather, settle
from harness.plugins import Promises
from harness.verdict import Finding, Outcome
from tests.support.checker_histories import context

KEPT = Promises(
    durable_under=frozenset({"kill", "wipe"}),
    delivered_under=frozenset({"kill"}),
    excludes=frozenset({"lost-message", "offset-lost", "poll-skip"}),
    documented="few are lost (the manual)",
)


@pytest.mark.parametrize(
    ("kind", "faults", "why"),
    [
        ("lost-message", ("kill",), None),
        ("lost-message", ("kill", "wipe"), "the target promises no delivery under wipe"),
        ("offset-lost", ("kill", "wipe"), None),
        ("offset-lost", ("pause",), "the target promises no durability under pause"),
        ("poll-skip", ("kill", "wipe"), None),
        ("duplicate", (), "the target does not promise it"),
    ],
)
def test_what_is_kept_and_what_is_delivered_are_promised_apart(kind, faults, why):
    assert why_not_promised(kind, context(promises=KEPT, faults_asked=faults)) == why


def test_observed_kinds_are_counted_and_told_with_what_is_documented():
    about = context(promises=KEPT, faults_asked=("wipe",))
    findings = Findings()
    findings.add("lost-message", range(300), lambda n: Finding("lost-message", f"{n} is gone."))
    verdict = settle(
        "x", gather(findings.table({})), about,
        clean="all is well", observed=lambda kind: why_not_promised(kind, about),
    )  # fmt: skip
    assert verdict.outcome is Outcome.VALID
    assert verdict.data["observed"] == {"lost-message": 300}
    assert verdict.summary == (
        f"{NOTHING_BROKEN}; observed, not counted: 300 lost-message (the target promises no"
        " delivery under wipe); documented: few are lost (the manual)"
    )
    raised = context(
        promises=KEPT.raised_to(Promises(durable_under=frozenset({"wipe"})), "other"),
        faults_asked=("wipe",),
    )
    again = settle(
        "x", gather(findings.table({})), raised,
        clean="all is well", observed=lambda kind: why_not_promised(kind, raised),
    )  # fmt: skip
    assert again.outcome is Outcome.INVALID
    assert again.findings_total == 300
