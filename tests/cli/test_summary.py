"""The summary at the end of a run."""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow as pa
import pytest
from rich.console import Console

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.history.schema import OPERATIONS
from shaketable.harness.terminal import summary
from shaketable.reports.availability import Gap, Recovery
from shaketable.reports.run_view import CheckerView, FaultRow, RunView, Violation, ViolationGroup

S = 1_000_000_000


def fault(number: int, name: str, bit: bool, recovery_ns: int | None) -> FaultRow:
    window = FaultWindow(number, name, name, number * S, (number + 1) * S, bit, "")
    gap = Gap(number * S, number * S + 2 * S)
    return FaultRow(window, Recovery(number, recovery_ns, gap, 10, (number + 1) * S, bit))


def violation(kind: str, offset: int) -> Violation:
    return Violation(
        kind=kind,
        message=f"the append at offset {offset} was acknowledged by n0 and is gone",
        key="shaketable/0",
        offset=offset,
        value=offset,
        acknowledged_by="n0",
        acknowledged_ns=1,
        fault=None,
        instead=(),
        evidence=(),
    )


def run_view(**changed: object) -> RunView:
    facts: dict[str, object] = {
        "folder": "store/quick/x",
        "name": "quick",
        "started": "",
        "verdict": "VALID",
        "why": "every checker found what the group promises",
        "target": "dledger",
        "world": "process",
        "mutant": None,
        "workload": "log",
        "seed": "5b2e",
        "faults_asked": ("kill", "pause"),
        "nodes": ("n0", "n1", "n2"),
        "command": "./shaketable run --seed 5b2e",
        "promises": (),
        "duration_ns": 40 * S,
        "outcomes": (30911, 12, 281),
        "leader_changes": 3,
        "notes": (),
        "faults": (fault(0, "kill", True, S // 2), fault(1, "kill", False, S)),
        "phases": (),
        "lanes": (),
        "checkers": (),
        "stats": (),
        "errors": (),
        "drain": (),
        "files": (),
        "operations": OPERATIONS.empty_table(),
    } | changed
    return RunView(**facts)  # type: ignore[arg-type]


def test_a_valid_run() -> None:
    assert dict(summary.rows(run_view(), "store/latest/report.html")) == {
        "operations": "31,204: 30,911 ok, 12 fail, 281 info (outcome unknown)",
        "faults": "1 of 2 took effect (kill 1 of 2); never drawn: pause",
        "recovery": "median 0.50 s, worst 0.50 s; longest without an acknowledgement 2.00 s",
        "leader": "changed 3 times",
        "seed": "5b2e",
        "report": "store/latest/report.html",
        "repeat": "./shaketable run --seed 5b2e",
    }


def test_one_finding_of_each_kind_stands_in_words_the_lost_first() -> None:
    def group(kind: str, total: int) -> ViolationGroup:
        return ViolationGroup(kind, kind, (violation(kind, 7), violation(kind, 8)), total)

    order = CheckerView(
        "log", "INVALID", "", (), (group("stale-read", 4), group("unheard-of", 2)), 6, 6, (),
        totals=(("stale-read", 4), ("unheard-of", 2)),
    )  # fmt: skip
    durability = CheckerView(
        "durability",
        "INVALID",
        "",
        (),
        (group("lost-append", 186), group("lost-append", 14)),
        15_451,  # four of them are stale reads as well
        200,
        (),
        totals=(("lost-append", 15_447), ("stale-read", 4)),
    )
    found = summary.findings_rows(run_view(verdict="INVALID", checkers=(order, durability)))
    assert [label for label, _ in found] == ["finding", "finding", "finding", ""]
    assert found[0][1].startswith("lost-append (15,447 of them): the append at offset 7 was")
    assert [text.split()[0] for _, text in found[1:3]] == ["stale-read", "unheard-of"]
    assert found[-1][1] == "and 15,450 more; see the report"


@pytest.mark.parametrize(
    ("faults", "asked", "said"),
    [
        ((), (), "none requested"),
        ((), ("kill",), "none applied of kill"),
        ((fault(0, "kill", True, 1),), ("kill",), "1 of 1 took effect (kill 1)"),
        ((fault(0, "kill", False, 1),), ("kill",), "0 of 1 took effect (kill 0 of 1)"),
    ],
)
def test_faults(faults: tuple[FaultRow, ...], asked: tuple[str, ...], said: str) -> None:
    assert summary.faults_text(faults, asked) == said


def test_a_group_that_never_served_again() -> None:
    view = run_view(faults=(fault(0, "kill", True, None),))
    assert dict(summary.rows(view, ""))["recovery"] == "the group never served again"


def test_kills_of_the_leader_are_told_next_to_the_goal() -> None:
    kills = tuple(
        replace(fault(number, "kill", True, (number + 1) * S // 10), killed_leader=True)
        for number in range(5)
    )
    faults = (*kills, fault(9, "pause", True, 3 * S))
    said = dict(summary.rows(run_view(faults=faults, failover_goals_s=(1.0, 2.0)), ""))
    assert said["failover"] == (
        "5 kills of the leader, next acknowledged write after: median 0.30 s (goal 1.00 s), "
        "p99 0.50 s (goal 2.00 s)"
    )
    said = dict(summary.rows(run_view(faults=faults), ""))
    assert said["failover"].endswith("median 0.30 s, p99 0.50 s"), "not every target has goals"
    silent = replace(fault(0, "kill", True, None), killed_leader=True)
    said = dict(summary.rows(run_view(faults=(silent,)), ""))
    assert said["failover"] == "after 1 kill of the leader no write was acknowledged"
    assert "failover" not in dict(summary.rows(run_view(), ""))


def test_faults_that_cannot_be_had_are_told() -> None:
    lacking = (("transfer", "nobody can be asked"),)
    done = (fault(0, "kill", True, 1),)
    said = summary.faults_text(done, ("kill", "transfer"), lacking)
    assert said == "1 of 1 took effect (kill 1); not available: transfer"


def test_notes_are_few_and_short() -> None:
    rows = summary.note_rows(["short", "x" * 500, "third", "fourth", "fifth"])
    assert [label for label, _ in rows] == ["note", "note", "note", ""]
    assert max(len(text) for _, text in rows) == summary.NOTE_CHARS_MAX
    assert rows[-1][1] == "and 2 more in the report"


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal_and_begins_with_the_verdict(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    summary.show(console, run_view(), "store/latest/report.html")
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[1].startswith("VALID  every checker")
    assert max(map(len, lines)) <= width


def test_the_table_of_the_view_is_the_schemas() -> None:
    assert run_view().operations.schema.equals(pa.schema(OPERATIONS))
