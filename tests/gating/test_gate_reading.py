"""What a gate reads of run folders, matrices and files of `check --json`."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

import pytest
from gated_runs import results, write_matrix, write_run

from harness.errors import UsageError
from harness.gating.policy_file import loads
from harness.gating.reading import read
from harness.matrix.journal import FaultCount
from harness.matrix.journal import Outcome as Attempt
from harness.verdict import Outcome
from reports.gating.decide import decide
from reports.gating.model import Bites, RunFacts
from reports.gating.policy import Policy

ALL = loads(
    """
    [floors]
    operations = 1
    [ceilings]
    recovery_median_s = 9
    """,
    "gate.toml",
    datetime.date(2026, 11, 22),
)


def one(path: Path, policy: Policy = ALL) -> RunFacts:
    (facts,) = read([path], policy)
    return facts


def code(*paths: Path) -> int:
    return decide(Policy(), read(paths, Policy()), datetime.date(2026, 11, 22)).code


def test_a_run_is_measured(tmp_path: Path) -> None:
    facts = one(write_run(tmp_path / "quick" / "1", results()))
    assert (facts.name, facts.outcome, facts.repeat) == (
        "quick/1",
        Outcome.VALID,
        "./shaketable run --seed 7",
    )
    assert facts.faults == {"kill": Bites(1, 1)}
    # The fault begins at 4 s; what is asked from 5 s on is acknowledged 2 ms later.
    expected = {
        "operations": 1000,
        "faults_bit": 1,
        "recovery_median_s": 1.002,
        "recovery_worst_s": 1.002,
        "p99_ms": 2.0,
        "p99_steady_ms": 2.0,
        "unavailable_longest_s": 1.01,
        "unavailable_total_s": 1.01,
        "acknowledged_loss": 0,
    }
    assert facts.measures == pytest.approx(expected)
    assert facts.seconds == 10.0


def test_what_nobody_asks_for_is_not_read(tmp_path: Path) -> None:
    facts = one(write_run(tmp_path / "quick" / "1", results()), Policy())
    assert set(facts.measures) == {"faults_bit", "acknowledged_loss"}


def test_findings_are_told_by_kind_and_losses_counted(tmp_path: Path) -> None:
    facts = one(write_run(tmp_path / "quick" / "1", results(False)))
    (conclusion,) = facts.conclusions
    (kind,) = conclusion.kinds
    assert (kind.name, kind.count, kind.key, kind.operations) == ("lost-append", 1, "q/0", (14,))
    assert facts.measures["acknowledged_loss"] == 1


def test_the_worst_of_what_a_file_says_counts(tmp_path: Path) -> None:
    lying = {**results(False), "valid": True}
    assert one(write_run(tmp_path / "q" / "1", lying)).outcome is Outcome.INVALID
    empty = {**results(), "checkers": {}}
    assert one(write_run(tmp_path / "q" / "2", empty)).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    "text", [None, "", "[]", '{"valid": 1}', '{"valid": true', '{"valid":"?"}']
)
def test_what_cannot_be_read_is_no_verdict_which_nothing_allows(
    tmp_path: Path, text: str | None
) -> None:
    run = write_run(tmp_path / "quick" / "1", results())
    if text is None:
        (run / "results.json").unlink()
    else:
        (run / "results.json").write_text(text)
    facts = one(run)
    assert facts.outcome is None
    assert "./shaketable analyze" in facts.failure
    assert code(run) == 255
    today = datetime.date(2026, 11, 22)
    allowing = '[[allow]]\nverdict = "unknown"\nreason = "x"\nuntil = 2026-12-01\n'
    assert decide(loads(allowing, "gate.toml", today), [facts], today).code == 255


def test_numbers_that_cannot_be_had_are_missing_and_fail(tmp_path: Path) -> None:
    run = write_run(tmp_path / "quick" / "1", results())
    (run / "history" / "operations" / "part-0.parquet").write_bytes(b"PAR1")
    facts = one(run)
    assert "recovery_median_s" not in facts.measures
    result = decide(ALL, [facts], datetime.date(2026, 11, 22))
    assert result.code == 2
    assert all("not known (" in ruling.message for _, ruling in result.breaches)


def test_a_matrix_counts_every_attempt(tmp_path: Path) -> None:
    folder = tmp_path / "matrix-m" / "1"
    bit = {"kill": FaultCount(1, 1)}
    wrong = Attempt(attempt=1, code=1, run="runs/a/20261", faults=bit)
    right = Attempt(attempt=2, code=0, run="runs/a/20262", faults=bit)
    write_matrix(folder, {"a": [wrong, right], "b": [Attempt(attempt=1, code=0, faults=bit)]})
    write_run(folder / "runs" / "a" / "20261", results(False))
    write_run(folder / "runs" / "a" / "20262", results())
    facts = read([folder], Policy())
    assert [(run.name, run.outcome, run.is_retried, run.skipped) for run in facts] == [
        ("matrix-m/a attempt 1", Outcome.INVALID, True, ""),
        ("matrix-m/a", Outcome.VALID, False, ""),
        ("matrix-m/b", Outcome.VALID, False, ""),
        ("matrix-m/wipe-sim", None, False, "disks are never lost"),
    ]
    assert code(folder) == 1


def test_a_run_that_its_matrix_did_not_note_is_not_hidden(tmp_path: Path) -> None:
    folder = tmp_path / "matrix-m" / "1"
    write_matrix(folder, {"a": [Attempt(attempt=2, code=0, run="runs/a/20262")]})
    write_run(folder / "runs" / "a" / "20262", results())
    assert code(folder) == 0
    write_run(folder / "runs" / "a" / "20261", results(False))
    assert code(folder) == 1


def test_a_cell_whose_faults_bit_too_seldom_stays_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "matrix-m" / "1"
    attempt = Attempt(attempt=1, code=2, why="bit too seldom", run="runs/a/20261")
    write_matrix(folder, {"a": [attempt]})
    write_run(folder / "runs" / "a" / "20261", results())
    result = decide(Policy(), read([folder], Policy()), datetime.date(2026, 11, 22))
    assert result.code == 2
    assert [ruling.message for _, ruling in result.breaches] == ["bit too seldom"]


@pytest.mark.parametrize(("attempt", "expected"), [(None, 255), (255, 255), (2, 2), (1, 1), (0, 0)])
def test_cells_without_a_folder(tmp_path: Path, attempt: int | None, expected: int) -> None:
    folder = tmp_path / "matrix-m" / "1"
    ended = [] if attempt is None else [Attempt(attempt=1, code=attempt)]
    write_matrix(folder, {"a": ended})
    assert code(folder) == expected


def test_a_journal_leads_nowhere_else(tmp_path: Path) -> None:
    write_run(tmp_path / "elsewhere" / "1", results())
    folder = tmp_path / "matrix-m" / "1"
    write_matrix(folder, {"a": [Attempt(attempt=1, code=2, run="../../elsewhere/1")]})
    facts = read([folder], Policy())[0]
    assert (facts.outcome, facts.report) == (Outcome.UNKNOWN, "")


def test_what_is_given_twice_counts_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "quick" / "1", results())
    link = tmp_path / "latest"
    link.symlink_to(run)
    assert len(read([run, link, Path(os.path.relpath(run))], Policy())) == 1


def test_files_of_check(tmp_path: Path) -> None:
    history = {"path": "h.edn", "valid": False, "operations": {"ok": 3, "info": 1}, "seconds": 2.0}
    history["checkers"] = results(False)["checkers"]
    file = tmp_path / "checked.json"
    file.write_text(json.dumps({"format": 1, "valid": False, "histories": [history]}))
    facts = one(file)
    assert (facts.name, facts.outcome, facts.measures["operations"]) == (
        "h.edn",
        Outcome.INVALID,
        4,
    )
    assert code(file) == 1


def test_bugs_that_were_hunted_count_as_found_if_each_hunt_found_them(tmp_path: Path) -> None:
    bugs = {"late": {"hunts": 3, "found": 3}, "rare": {"hunts": 3, "found": 2}}
    file = tmp_path / "hunted.json"
    file.write_text(json.dumps({"format": 1, "target": "t", "world": "core", "planted_bugs": bugs}))
    policy = loads("[detection]\n", "gate.toml", datetime.date(2026, 11, 22))
    facts = read([file], policy)
    assert [run.name for run in facts] == ["simulated/t/core/late", "simulated/t/core/rare"]
    result = decide(policy, facts, datetime.date(2026, 11, 22))
    assert [ruling.message for _, ruling in result.breaches] == [
        "planted bugs found: 1 of 2, not rare; at least 100%"
    ]
    with pytest.raises(UsageError, match=r"of which the policy says nothing \(\[detection\]\)"):
        read([file], Policy())


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"histories": 3}', '{"planted_bugs": 3}', "\0"])
def test_other_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"neither a folder of a run or a matrix nor [^\n]*$"):
        read([file], Policy())


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError):
            read([path], Policy())
