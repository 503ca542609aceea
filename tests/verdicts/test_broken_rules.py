"""A rule that nodes or their world saw broken is a violation; what a fault explains is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_target import FakeTarget

from shaketable.harness import discovery
from shaketable.harness.contracts.abilities import BROKE_RULE, FOUND_DAMAGE
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import CheckContext, FaultWindow, Promises, Target
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging.invariants import judge_invariants
from shaketable.harness.targets.dledger import ENDS
from shaketable.system.node import process
from shaketable.system.raft.protocol import InvariantError
from shaketable.system.sim.stories.promises import PROMISES
from shaketable.system.store.disk import DiskFailed, DiskFull
from shaketable.system.store.plain_log import PlainLogDamaged
from shaketable.system.store.state_files import LogDamaged

S = 1_000_000_000
BROKEN: dict[str, Any] = {
    "invariant": "vote-is-durable",
    "finding": "term 3 was recovered, term 4 was durable",
    "node": "n1",
    "at_ns": 5 * S,
    "promise": "Term and vote that were made durable are found again after any crash.",
    "matters": "A member that forgets its vote votes twice.",
}
ENDED: dict[str, Any] = {
    "node": "n0",
    "incarnation": 2,
    "returncode": 70,
    "asked": False,
    "last_line": "2026-11-23T10:00:00.000 level=ERROR event=stopped error=entry 7 is committed",
    "at_ns": 9 * S,
    "cause": BROKE_RULE,
    "excuse": "",
}
WITHOUT_CAUSE = {**ENDED, "returncode": 1, "cause": ""}


def window(name: str, start_s: int) -> FaultWindow:
    return FaultWindow(0, name, "n0", start_s * S, (start_s + 1) * S, True, "it bit")


def judged(
    tmp_path: Path, *windows: FaultWindow, target: Target | None = None, **facts: Any
) -> Verdict | None:
    known = {"status": "complete", "world": "processes", "exits": [], **facts}
    (tmp_path / "run.json").write_text(json.dumps(known))
    chosen: Target = target or discovery.get("targets", "dledger")
    promises = Promises(durable_under=frozenset({"kill", "damage"}))
    context = CheckContext(("n0", "n1", "n2"), {}, promises, windows)
    return judge_invariants(RunFolder(tmp_path), chosen, context)


def kinds(verdict: Verdict | None) -> tuple[Outcome, list[str]]:
    assert verdict is not None
    return verdict.outcome, [finding.kind for finding in verdict.findings]


def test_a_run_in_which_nobody_saw_any_is_valid(tmp_path: Path) -> None:
    assert kinds(judged(tmp_path)) == (Outcome.VALID, [])
    assert kinds(judged(tmp_path, exits=[WITHOUT_CAUSE])) == (Outcome.VALID, []), "not known why"


def test_what_the_world_saw_is_named_with_its_words(tmp_path: Path) -> None:
    verdict = judged(tmp_path, world="sim", broken=[BROKEN])
    assert kinds(verdict) == (Outcome.INVALID, ["invariant-broken"])
    assert verdict is not None
    assert verdict.summary == (
        "The invariant vote-is-durable was broken at n1, 5.000 s into the run:"
        " term 3 was recovered, term 4 was durable"
    )
    assert verdict.findings[0].details["promise"] == BROKEN["promise"]


def test_a_node_that_stopped_of_its_own_rule_or_of_damage_is_held_against_the_group(
    tmp_path: Path,
) -> None:
    damaged = {**ENDED, "cause": FOUND_DAMAGE, "returncode": 65, "at_ns": 4 * S}
    verdict = judged(tmp_path, exits=[ENDED, damaged])
    assert kinds(verdict) == (Outcome.INVALID, ["damage-found", "rule-broken"]), "by time"
    assert verdict is not None
    assert verdict.findings[1].message == (
        "Node n0 (incarnation 2) stopped because a rule of its own was broken, 9.000 s into the"
        " run: entry 7 is committed."
    )
    assert verdict.summary.endswith("(and 1 more broken rule)")


def test_a_rule_that_the_target_knows_is_explained(tmp_path: Path) -> None:
    line = "level=ERROR event=stopped error=vote-is-durable: term 3 was found, term 4 was durable"
    of_sim = "InvariantError: vote-is-durable: term 3 was found, term 4 was durable"
    verdict = judged(
        tmp_path, exits=[{**ENDED, "last_line": line}, ENDED, {**ENDED, "last_line": of_sim}]
    )
    assert verdict is not None
    named, unnamed, simulated = verdict.findings
    promise = PROMISES["vote-is-durable"]
    assert named.details["promise"] == promise.statement
    assert named.details["matters"] == promise.impact
    assert "promise" not in unnamed.details
    assert simulated.details["promise"] == promise.statement


def test_what_a_fault_did_to_the_node_excuses_its_end(tmp_path: Path) -> None:
    excused = {**ENDED, "excuse": "bytes of its files had been changed by a fault"}
    assert kinds(judged(tmp_path, exits=[excused])) == (Outcome.VALID, [])


def test_a_fault_that_nobody_promised_to_stand_excuses_what_came_after_it(tmp_path: Path) -> None:
    verdict = judged(tmp_path, window("rollback", 8), exits=[ENDED])
    assert kinds(verdict) == (Outcome.VALID, [])
    assert verdict is not None
    assert [finding.kind for finding in verdict.observed] == ["rule-broken"]
    assert "does not promise to survive rollback" in verdict.summary
    later = judged(tmp_path, window("rollback", 10), exits=[ENDED])
    assert kinds(later) == (Outcome.INVALID, ["rule-broken"])
    stood = judged(tmp_path, window("kill", 8), exits=[ENDED])
    assert kinds(stood) == (Outcome.INVALID, ["rule-broken"])


def test_a_target_that_does_not_say_what_its_statuses_mean_is_not_judged(tmp_path: Path) -> None:
    assert judged(tmp_path, target=FakeTarget(), exits=[WITHOUT_CAUSE]) is None
    assert judged(tmp_path, target=FakeTarget(), world="sim", broken=[BROKEN]) is not None


def test_what_was_not_recorded_is_not_judged_and_what_is_damaged_is_an_error(
    tmp_path: Path,
) -> None:
    context = CheckContext(("n0",), {}, Promises())
    target: Target = discovery.get("targets", "dledger")
    assert judge_invariants(RunFolder(tmp_path), target, context) is None
    (tmp_path / "run.json").write_text('{"status": "running", "world": "processes"}')
    assert kinds(judge_invariants(RunFolder(tmp_path), target, context)) == (Outcome.VALID, [])
    (tmp_path / "run.json").write_text('{"exits": 3}')
    with pytest.raises(HarnessError, match=r"run\.json"):
        judge_invariants(RunFolder(tmp_path), target, context)


def test_the_harness_and_the_nodes_mean_the_same_by_an_exit_status() -> None:
    assert {process.EXIT_DAMAGED: FOUND_DAMAGE, process.EXIT_INVARIANT: BROKE_RULE} == ENDS
    assert process.exit_status(InvariantError("x")) == process.EXIT_INVARIANT
    assert process.exit_status(AssertionError()) == process.EXIT_INVARIANT
    assert process.exit_status(LogDamaged("path", "x")) == process.EXIT_DAMAGED
    assert process.exit_status(PlainLogDamaged("x")) == process.EXIT_DAMAGED
    for bug in (KeyError("x"), TypeError("x"), RuntimeError("x")):
        assert process.exit_status(bug) == process.EXIT_INVARIANT
    assert not process.is_unexpected(MemoryError())
    for other in (DiskFailed("x"), DiskFull("x"), OSError("x")):
        assert process.exit_status(other) == process.EXIT_DISK


def test_an_assertion_without_words_says_where_it_stands() -> None:
    with pytest.raises(AssertionError) as raised:
        raise AssertionError
    assert process.reason(raised.value).startswith("test_broken_rules.py:")
    assert process.reason(raised.value).endswith("asserts: raise AssertionError")


def test_an_error_that_nobody_foresaw_says_where_it_was_raised() -> None:
    with pytest.raises(KeyError) as raised:
        raise KeyError("queue")
    assert process.reason(raised.value).startswith("test_broken_rules.py:")
    assert process.reason(raised.value).endswith("raises KeyError: 'queue'")
