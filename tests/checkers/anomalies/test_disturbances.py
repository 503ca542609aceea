"""Bounds on time are judged beside no fault, no election, and no clients that stalled."""

from __future__ import annotations

import pytest

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.contracts.verdict import Outcome
from tests.support.anomaly_histories import ROOT, judge, kinds_of, parse

MS = 1_000_000
BROKEN = [
    ("held-late", "held-polls", "late-delivery", 1_000 * MS),
    ("held-early", "held-polls", "early-answer", 1_000 * MS),
    ("delayed-overdue", "delayed-messages", "late-delivery", 10_000 * MS),
    ("locks-overlap", "queue-locks", "lock-overlap", 3),
    ("push-late", "push-delivery", "late-delivery", 21_000 * MS),
    ("push-out-of-order", "push-delivery", "out-of-order", 70 * MS),
    ("offsets-oneway-all-lost", "consumer-offsets", "offset-lost", 1_100 * MS),
]
"""Golden history, its checker, the kind that it shows, and a time (ns) while that came about."""


def rows(name):
    return parse((ROOT / f"{name}.txt").read_text())


@pytest.mark.parametrize(("name", "checker", "kind", "at_ns"), BROKEN)
def test_an_election_that_no_fault_explains_excuses(tmp_path, name, checker, kind, at_ns):
    verdict = judge(tmp_path, rows(name), checker, elections_ns=(at_ns,))
    assert kind not in kinds_of(verdict)
    assert verdict.outcome is not Outcome.INVALID


@pytest.mark.parametrize(("name", "checker", "kind", "at_ns"), BROKEN)
def test_clients_that_stalled_excuse(tmp_path, name, checker, kind, at_ns):
    verdict = judge(tmp_path, rows(name), checker, stalls=((at_ns - 1, at_ns),))
    assert kind not in kinds_of(verdict)


@pytest.mark.parametrize(("name", "checker", "kind", "at_ns"), BROKEN)
def test_what_was_over_long_after_excuses_nothing(tmp_path, name, checker, kind, at_ns):
    late_ns = at_ns + 100_000 * MS
    verdict = judge(
        tmp_path, rows(name), checker, elections_ns=(late_ns,), stalls=((late_ns, late_ns + 1),)
    )
    assert kind in kinds_of(verdict)


S = 1_000 * MS
OF_ONE_LEADER = [
    ("held-early", "held-polls", "early-answer", 2_000 * MS),
    ("locks-overlap", "queue-locks", "lock-overlap", 3),
]
"""What a leader promises by itself: who else is cut off or dies is no excuse."""


def fault(name, at_ns):
    return FaultWindow(0, name, "", at_ns, at_ns + 1, took_effect=True, evidence="")


@pytest.mark.parametrize(("name", "checker", "kind", "at_ns"), OF_ONE_LEADER)
def test_within_one_known_term_faults_excuse_nothing_but_those_of_clocks(
    tmp_path, name, checker, kind, at_ns
):
    later_ns = at_ns + 100 * S

    def kinds(fault_name, *elections_ns):
        window = fault(fault_name, at_ns)
        return kinds_of(
            judge(tmp_path, rows(name), checker, windows=(window,), elections_ns=elections_ns)
        )

    assert kind in kinds("partition", later_ns)
    assert kind not in kinds("clock", later_ns), "its clock may have jumped"
    assert kind not in kinds("partition"), "terms are not known here"
    assert kind not in kinds("partition", at_ns + 4 * S), "that term may have begun before"
    assert kind in kinds("partition", at_ns + 9 * S)
