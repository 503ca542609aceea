"""What was never promised is observed: counted, said with what is documented, and forgiven."""

from __future__ import annotations

import pytest

from shaketable.checkers.anomalies.log_rules import why_not_promised
from shaketable.checkers.findings import NOTHING_BROKEN, Findings, gather, settle
from shaketable.harness.contracts.capabilities import FAMILIES
from shaketable.harness.contracts.plugins import Promises
from shaketable.harness.contracts.promises import FAULTS_OF_DISKS, PROMISED_BY
from shaketable.harness.contracts.verdict import Finding, Outcome
from shaketable.harness.history.export import NOT_UNDONE
from tests.support.checker_histories import context, struck

KEPT = Promises(
    durable_under=frozenset({"kill", "wipe"}),
    delivered_under=frozenset({"kill"}),
    excludes=frozenset({"lost-message", "offset-lost", "poll-skip", "late-delivery"}),
    documented="few are lost (the manual)",
)


@pytest.mark.parametrize(
    ("kind", "faults", "why"),
    [
        ("lost-message", ("kill",), None),
        ("lost-message", ("kill", "wipe"), "the target promises no delivery under wipe"),
        # What was lost is waited for in vain: nobody can tell it from what is late.
        ("late-delivery", ("kill",), None),
        ("late-delivery", ("kill", "wipe"), "the target promises no delivery under wipe"),
        ("offset-lost", ("kill", "wipe"), None),
        ("offset-lost", ("pause",), "the target promises no durability under pause"),
        ("poll-skip", ("kill", "wipe"), None),
        ("duplicate", (), "the target does not promise it"),
    ],
)
def test_what_is_kept_and_what_is_delivered_are_promised_apart(kind, faults, why):
    assert why_not_promised(kind, context(promises=KEPT, **struck(*faults))) == why


STURDY = Promises(
    durable_under=frozenset({"kill", "pause"}) | FAULTS_OF_DISKS, excludes=frozenset({"lost-add"})
)


@pytest.mark.parametrize(
    ("fault", "family", "is_excused"),
    [
        ("power-plug", "disk", True),  # whoever stands all of disks stands a wipe too
        ("debugger", "process", False),
        ("old-copy", "rollback", True),
        ("whatever", "other", True),
        ("uninstalled", None, True),
        ("clock", "clock", True),
        ("rolling-restart", "process", True),  # it could be named, and is not
    ],
)
def test_other_peoples_faults_are_judged_by_their_family(fault, family, is_excused):
    families = {} if family is None else {fault: family}
    about = context(promises=STURDY, families=families, **struck("kill", fault))
    why = f"the target promises no durability under {fault}" if is_excused else None
    assert why_not_promised("lost-add", about) == why
    assert set(PROMISED_BY) <= set(FAMILIES)


@pytest.mark.parametrize(
    ("evidence", "is_excused"),
    [
        ("the disk is as it was", False),
        ("not begun: the budget keeps a quorum", False),
        ("could not be applied: OSError: no room", True),
        ("probe failed: OSError: no disk", True),
        (NOT_UNDONE, True),
    ],
)
def test_a_fault_without_effect_excuses_nothing_if_that_is_known(evidence, is_excused):
    faults = struck("rollback", took_effect=False, evidence=evidence)
    assert bool(why_not_promised("lost-add", context(promises=STURDY, **faults))) is is_excused


def test_observed_kinds_are_counted_and_told_with_what_is_documented():
    about = context(promises=KEPT, **struck("wipe"))
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
        **struck("wipe"),
    )
    again = settle(
        "x", gather(findings.table({})), raised,
        clean="all is well", observed=lambda kind: why_not_promised(kind, raised),
    )  # fmt: skip
    assert again.outcome is Outcome.INVALID
    assert again.findings_total == 300


def test_observed_kinds_with_one_reason_are_told_together():
    findings = Findings()
    for kind in ("stale-read (not promised)", "stale-end", "lost-message"):
        findings.add(kind, range(2), lambda _n, kind=kind: Finding(kind, "gone"))
    verdict = settle(
        "x", gather(findings.table({})), context(), clean="",
        observed=lambda kind: "a loss" if kind == "lost-message" else "no promise",
    )  # fmt: skip
    assert verdict.summary == (
        f"{NOTHING_BROKEN}; observed, not counted: 2 lost-message (a loss); observed, not"
        " counted: 2 stale-end, 2 stale-read (no promise)"
    )
