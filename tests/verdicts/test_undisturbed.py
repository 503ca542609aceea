"""In virtual time, who calls a group that nothing disturbs learns what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_target import FakeTarget

from shaketable.harness.contracts.abilities import Broken
from shaketable.harness.contracts.plugins import CheckContext, FaultWindow, Promises
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.export import GIVEN_UP
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.schema import OPERATIONS
from shaketable.harness.judging.invariants import (
    COLUMNS,
    KNOWN,
    REFUSED_MIN,
    SERVED,
    SUCCEED,
    find_broken,
    judge_invariants,
)

S = 1_000_000_000
QUIET_S = 50
"""Long after the faults of these tests, which begin at 2 s."""


def operation(number: int, outcome: str, call_s: float, **more: Any) -> dict[str, Any]:
    """A send of process `number`, which takes half a second."""
    one = dict.fromkeys(COLUMNS) | {"op": number, "process": number, "f": "send", "key": "q/1"}
    one |= {"input": number, "call_ns": int(call_s * S), "outcome": outcome}
    if outcome != "info":
        one["return_ns"] = int((call_s + 0.5) * S)
    return one | more


def judged(
    *operations: dict[str, Any],
    fault: str | None = "kill",
    elected_s: float | None = None,
    is_ever_done: bool = True,
) -> tuple[Broken, ...]:
    if is_ever_done and any(one["outcome"] == "info" for one in operations):
        operations = (*operations, operation(99, "ok", 2.5))
    windows = (FaultWindow(0, fault, "n0", 2 * S, 3 * S, True, "it bit"),) if fault else ()
    elections = () if elected_s is None else (int(elected_s * S),)
    context = CheckContext(("n0",), {}, Promises(), windows, elections_ns=elections)
    given_up = [
        {"process": one["process"], "time_ns": one["call_ns"] + S // 2}
        for one in operations
        if one["outcome"] == "info" and not one.get("hangs")
    ]
    schema = pa.schema([OPERATIONS.field(name) for name in COLUMNS])
    rows = [{name: one[name] for name in COLUMNS} for one in operations]
    table = pa.Table.from_pylist(rows, schema)
    return find_broken(table, pa.Table.from_pylist(given_up, GIVEN_UP), context)


def test_a_call_of_unknown_outcome_is_named_with_what_its_client_was_told() -> None:
    [broken] = judged(
        operation(1, "ok", QUIET_S),
        operation(2, "info", QUIET_S + 2, error="code 1"),
        operation(3, "info", QUIET_S + 1, error="code 1"),
    )
    assert (broken.invariant, broken.node, broken.at_ns) == (KNOWN, "", int((QUIET_S + 1.5) * S))
    assert broken.operations == (3,)
    assert broken.finding == (
        "the send 3 on q/1 of process 3 (op 3), called 51.000 s into the run, was given up at"
        " 51.500 s, its outcome unknown (code 1), and nothing had disturbed the group; so it was"
        " with 1 other call"
    )


@pytest.mark.parametrize("call_s", [1.6, 2.5, 7.0, 42.0])
def test_what_a_fault_may_have_disturbed_may_stay_unknown(call_s: float) -> None:
    assert judged(operation(1, "info", call_s)) == ()
    assert judged(operation(1, "info", call_s), fault=None) != ()


def test_what_an_election_may_have_disturbed_may_stay_unknown() -> None:
    assert judged(operation(1, "info", QUIET_S), elected_s=QUIET_S + 0.4) == ()
    assert judged(operation(1, "info", QUIET_S), elected_s=QUIET_S - 41) != ()


def test_a_call_that_never_ended_is_nothing_that_was_given_up() -> None:
    assert judged(operation(1, "info", QUIET_S, hangs=True)) == ()


def test_what_is_never_done_on_a_key_may_stay_unknown() -> None:
    """As sends are to a SYNC_MASTER that has no slave."""
    assert judged(operation(1, "info", QUIET_S), is_ever_done=False) == ()
    assert judged(operation(1, "info", QUIET_S)) != ()


def test_a_group_that_refuses_all_that_it_is_given_breaks_a_promise() -> None:
    refused = [operation(n, "fail", QUIET_S + n, error="no room") for n in range(REFUSED_MIN)]
    [broken] = judged(*refused)
    assert broken.invariant == SUCCEED
    assert broken.finding.startswith(
        f"none of {REFUSED_MIN} appends was done that were called while nothing disturbed the"
        " group: the send 0 on q/1 of process 0 (op 0), called 50.000 s into the run, was refused"
    )
    assert judged(*refused[1:]) == ()
    assert judged(*refused, operation(9, "ok", QUIET_S + 9)) == ()
    assert judged(*refused, operation(9, "ok", 2.5)) != ()


def test_a_group_that_refuses_all_of_a_kind_breaks_a_promise() -> None:
    stored = operation(50, "ok", QUIET_S)
    refused = [
        operation(n, "fail", QUIET_S + n, f="commit-oneway", error="closed")
        for n in range(REFUSED_MIN)
    ]
    [broken] = judged(stored, *refused)
    assert broken.invariant == SERVED
    assert broken.finding.startswith(
        f"none of {REFUSED_MIN} commit-oneway operations was done that were called while nothing"
    )
    assert judged(stored, *refused[1:]) == ()
    done = operation(60, "ok", QUIET_S, f="commit-oneway")
    assert judged(stored, done, *refused) == ()
    handled = [{**one, "f": "handle"} for one in refused]
    assert judged(stored, *handled) == ()


def test_what_clients_met_is_judged_beside_what_the_world_saw(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"world": "sim", "left": ["kill"]}')
    [met] = judged(operation(1, "info", QUIET_S))
    context = CheckContext(("n0",), {}, Promises(), ())
    folder, target = RunFolder(tmp_path), FakeTarget()
    verdict = judge_invariants(folder, target, context, [met])
    assert verdict is not None
    assert verdict.outcome is Outcome.VALID  # a fault was never undone
    assert "observed" in verdict.summary
    (tmp_path / "run.json").write_text('{"world": "sim"}')
    verdict = judge_invariants(folder, target, context, [met])
    assert verdict is not None
    assert verdict.outcome is Outcome.INVALID
    assert KNOWN in verdict.summary
