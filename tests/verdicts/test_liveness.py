"""In a simulated world a group that has not come back in time is a violation, unless excused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from shaketable.harness import discovery
from shaketable.harness.contracts.abilities import BROKE_RULE, ENDED_UNHARMED, Broken
from shaketable.harness.contracts.plugins import CheckContext, FaultWindow, Target
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging.invariants import judge_invariants
from shaketable.harness.runtime import liveness
from shaketable.harness.runtime.liveness import (
    Standstill,
    name_server_ended,
    never_served,
    not_recovered,
)

S = 1_000_000_000
LED = "n0 is leader of term 4, follows n0, committed 25 of 25"
BEHIND = "n1 is follower of term 4, follows n0, committed 10 of 12"
STILL = Standstill(
    at_ns=90 * S,
    waited_s=60.0,
    lagging=("n1",),
    states=f"{LED}; {BEHIND}",
    waiting=("client 3 waits for append of q/1",),
)
DOWN = replace(STILL, down={"n2": "n2 does not run"}, states=f"{LED}; n2 does not run")


def window(name: str, start_s: int = 8) -> FaultWindow:
    return FaultWindow(0, name, "n0", start_s * S, (start_s + 1) * S, True, "it bit")


def judged(
    tmp_path: Path,
    *broken: Broken,
    faults: tuple[str, ...] = ("kill",),
    left: tuple[str, ...] = (),
    target: str = "dledger",
    exits: tuple[dict[str, object], ...] = (),
) -> Verdict:
    facts = {
        "world": "sim", "exits": exits, "broken": [asdict(each) for each in broken], "left": left
    }  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(facts))
    whose: Target = discovery.get("targets", target)
    windows = tuple(map(window, faults))
    context = CheckContext(("n0", "n1", "n2"), {}, whose.promises, windows)
    verdict = judge_invariants(RunFolder(tmp_path), whose, context)
    assert verdict is not None
    return verdict


def test_a_group_that_came_back_broke_nothing() -> None:
    assert not_recovered(replace(STILL, lagging=(), waiting=()), settled=True, answered=True) == ()


def test_the_node_that_did_not_come_back_is_named_first_then_what_clients_wait_for() -> None:
    [found] = not_recovered(STILL, settled=False, answered=True)
    assert (found.invariant, found.node, found.at_ns) == (liveness.CATCHES_UP, "n1", 90 * S)
    assert found.finding == (
        "n1 did not come to agree with the others in 60 s of undisturbed virtual time after the"
        f" last fault: {LED}; {BEHIND}; client 3 waits for append of q/1"
    )


def test_nodes_that_do_not_run_come_before_the_others_and_before_clients() -> None:
    found = not_recovered(DOWN, settled=False, answered=False)
    kinds = [each.invariant for each in found]
    assert kinds == [liveness.RUNS, liveness.CATCHES_UP, liveness.CALLS_END]
    assert found[0].node == "n2"
    assert found[0].finding.startswith("n2 does not run, though all faults are over; n0 is leader")
    assert "client 3 waits for append of q/1; n0 is leader" in found[2].finding


def test_each_is_a_violation_with_its_promise(tmp_path: Path) -> None:
    broken = (*not_recovered(DOWN, settled=False, answered=False), never_served(STILL))
    verdict = judged(tmp_path, *broken, name_server_ended("ns0 ended", S))
    assert (verdict.outcome, verdict.findings_total) == (Outcome.INVALID, 5)
    assert all(each.details["promise"] and each.details["matters"] for each in verdict.findings)


@pytest.mark.parametrize(
    ("target", "fault", "excused"),
    [
        ("dledger", "power", ()),
        ("dledger", "wipe", ()),
        ("sync-double-write", "wipe", ()),
        # A node without its disk begins anew and runs, but clients may wait for what it had.
        ("async-replication", "wipe", (liveness.CALLS_END,)),
        ("multi-master", "power", (liveness.RUNS, liveness.CATCHES_UP, liveness.CALLS_END)),
    ],
)
def test_what_a_fault_destroyed_that_nobody_promised_to_stand_excuses_it(
    tmp_path: Path, target: str, fault: str, excused: tuple[str, ...]
) -> None:
    broken = not_recovered(DOWN, settled=False, answered=False)
    verdict = judged(tmp_path, *broken, target=target, faults=(fault,))
    assert tuple(each.details["invariant"] for each in verdict.observed) == excused
    assert len(verdict.findings) == 3 - len(excused)


def test_a_fault_that_could_not_be_undone_excuses_it_but_for_a_disk_that_is_not_given_back(
    tmp_path: Path,
) -> None:
    broken = not_recovered(DOWN, settled=False, answered=False)
    undone = judged(tmp_path, *broken, left=("members", "wipe"))
    assert (undone.outcome, len(undone.observed)) == (Outcome.VALID, 3)
    assert "members could not be undone" in undone.summary
    assert judged(tmp_path, *broken, left=("wipe",)).outcome is Outcome.INVALID


def test_an_end_by_itself_of_a_node_that_nothing_was_done_to_is_a_violation(tmp_path: Path) -> None:
    ended: dict[str, object] = {
        "node": "n0",
        "incarnation": 2,
        "returncode": 74,
        "last_line": "StoreError: /store/config/topics.json: no JSON",
        "at_ns": 9 * S,
        "cause": ENDED_UNHARMED,
        "excuse": "",
    }
    verdict = judged(tmp_path, exits=(ended,), target="async-replication", faults=("wipe",))
    assert [each.kind for each in verdict.findings] == ["ended-unharmed"]
    assert verdict.summary == (
        "Node n0 (incarnation 2) ended by itself with status 74, 9.000 s into the run, and nothing"
        " had been done to it that ends a node: StoreError: /store/config/topics.json: no JSON"
    )
    lost = judged(tmp_path, exits=(ended,), target="async-replication", faults=("power",))
    assert lost.outcome is Outcome.VALID


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [("wipe", Outcome.INVALID), ("rollback", Outcome.VALID), ("power", Outcome.VALID)],
)
def test_a_lost_disk_excuses_no_broken_rule_of_a_nodes_own(
    tmp_path: Path, fault: str, outcome: Outcome
) -> None:
    ended: dict[str, object] = {
        "node": "n0",
        "incarnation": 2,
        "returncode": 70,
        "last_line": "level=ERROR event=stopped error=saved-is-loaded: it begins with none",
        "at_ns": 9 * S,
        "cause": BROKE_RULE,
        "excuse": "",
    }
    verdict = judged(tmp_path, exits=(ended,), target="multi-master", faults=(fault,))
    assert verdict.outcome is outcome
    assert [each.kind for each in (*verdict.findings, *verdict.observed)] == ["rule-broken"]
