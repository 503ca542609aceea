"""What a gate reads of run folders, matrices and files of `check --json`."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gated_runs import fault_events, results, write_matrix, write_run

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.gating import parse_policy, read
from shaketable.harness.history import run_folder
from shaketable.harness.history.export import load_given_up, load_nemesis
from shaketable.harness.history.schema import EVENTS
from shaketable.harness.matrix.folder import FaultCount
from shaketable.harness.matrix.folder import Outcome as Attempt
from shaketable.reports.gating.policy import Policy
from shaketable.reports.gating.rulings import FaultEffects, RunFacts, decide

ALL = parse_policy(
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
    assert facts.faults == {"kill": FaultEffects(1, 1)}
    # The fault begins at 4 s; what is asked from 5 s on is acknowledged 2 ms later. Nobody waits
    # between the last answer before the fault and the first call after it.
    expected = {
        "operations": 1000,
        "faults_took_effect": 1,
        "recovery_median_s": 1.002,
        "recovery_worst_s": 1.002,
        "p99_ms": 2.0,
        "p99_steady_ms": 2.0,
        "unavailable_longest_s": 1.002,
        "unavailable_total_s": 1.002,
        "acknowledged_loss": 0,
    }
    assert facts.measures == pytest.approx(expected)
    assert facts.seconds == 10.0


def test_what_nobody_asks_for_is_not_read(tmp_path: Path) -> None:
    facts = one(write_run(tmp_path / "quick" / "1", results()), Policy())
    assert set(facts.measures) == {"faults_took_effect", "acknowledged_loss"}


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
    "text",
    [
        None,
        "",
        "[]",
        '{"valid": 1}',
        '{"valid": true',
        '{"valid":"?"}',
        '{"valid": true, "x": ' + "[" * 20_000 + "]" * 20_000 + "}",
        '{"valid": true, "faults": {"took_effect": 1' + "0" * 400 + "}}",
        '{"valid": true, "faults": {"took_effect": -1}}',
        '{"valid": true, "faults_asked": ["\udcff"]}',
    ],
)
def test_what_cannot_be_read_is_no_verdict_which_nothing_allows(
    tmp_path: Path, text: str | None
) -> None:
    run = write_run(tmp_path / "quick" / "1", results())
    if text is None:
        (run / "results.json").unlink()
    else:
        (run / "results.json").write_text(text, errors="surrogateescape")
    facts = one(run)
    assert facts.outcome is None
    assert "./shaketable analyze" in facts.failure
    assert code(run) == 255
    today = datetime.date(2026, 11, 22)
    allowing = '[[allow]]\nverdict = "unknown"\nreason = "x"\nuntil = 2026-12-01\n'
    assert decide(parse_policy(allowing, "gate.toml", today), [facts], today).code == 255


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
    counts = {"kill": FaultCount(1, 1)}
    wrong = Attempt(attempt=1, code=1, run="runs/a/20261", faults=counts)
    right = Attempt(attempt=2, code=0, run="runs/a/20262", faults=counts)
    write_matrix(folder, {"a": [wrong, right], "b": [Attempt(attempt=1, code=0, faults=counts)]})
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
    attempt = Attempt(attempt=1, code=2, why="took effect too seldom", run="runs/a/20261")
    write_matrix(folder, {"a": [attempt]})
    write_run(folder / "runs" / "a" / "20261", results())
    result = decide(Policy(), read([folder], Policy()), datetime.date(2026, 11, 22))
    assert result.code == 2
    assert [ruling.message for _, ruling in result.breaches] == ["vacuous: took effect too seldom"]


@pytest.mark.parametrize("code_", [0, 2])
def test_who_allows_unknown_does_not_allow_a_cell_whose_faults_bit_too_seldom(
    tmp_path: Path, code_: int
) -> None:
    today = datetime.date(2026, 11, 22)
    unknown = '[[allow]]\nverdict = "unknown"\nreason = "x"\nuntil = 2026-12-01\n'
    folder = tmp_path / "matrix-m" / "1"
    why = "took effect too seldom, at least 3 requested: kill 1 of 1" if code_ else ""
    attempt = Attempt(attempt=1, code=code_, why=why, faults={"kill": FaultCount(1, 1)})
    write_matrix(folder, {"a": [attempt]}, effects_min=3)
    facts = read([folder], Policy())
    assert decide(parse_policy(unknown, "gate.toml", today), facts, today).code == 2
    vacuous = unknown.replace("unknown", "vacuous")
    assert decide(parse_policy(vacuous, "gate.toml", today), facts, today).code == 0


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
    policy = parse_policy("[detection]\n", "gate.toml", datetime.date(2026, 11, 22))
    facts = read([file], policy)
    assert [run.name for run in facts] == ["simulated/t/core/late", "simulated/t/core/rare"]
    result = decide(policy, facts, datetime.date(2026, 11, 22))
    assert [ruling.message for _, ruling in result.breaches] == [
        "planted bugs found: 1 of 2, not rare; at least 100%"
    ]
    with pytest.raises(UsageError, match=r"which the policy does not mention \(\[detection\]\)"):
        read([file], Policy())


OTHERS = (
    "",
    "[1]",
    "{}",
    '{"histories": 3}',
    '{"planted_bugs": 3}',
    "\0",
    '{"histories": [{"path": "\udcff", "valid": true}]}',
    '{"histories": ' + "[" * 20_000 + "]" * 20_000 + "}",
    '{"histories": [{"path": "h", "valid": true, "seconds": 1e999}]}',
)


@pytest.mark.parametrize("text", OTHERS)
def test_other_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other"
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError, match=r"neither a folder of a run or a matrix nor [^\n]*$"):
        read([file], Policy())


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError):
            read([path], Policy())


def test_a_history_that_was_refused_is_not_hidden(tmp_path: Path) -> None:
    history = {"path": "h.edn", "valid": True, "checkers": {}, "operations": {"ok": 3}}
    history["checkers"] = results()["checkers"]
    refused = [{"path": "other.edn", "why": "line 3 is cut"}]
    file = tmp_path / "checked.json"
    told = {"format": 1, "valid": "unknown", "histories": [history], "refused": refused}
    file.write_text(json.dumps(told))
    facts = read([file], Policy())
    assert [(run.name, run.failure) for run in facts if run.outcome is None] == [
        ("other.edn", "not read: line 3 is cut")
    ]
    assert code(file) == 255


@pytest.mark.parametrize(
    "phases",
    [
        3,
        "steady",
        [3, None, "x"],
        [{"name": "steady", "start_ns": "soon", "stop_ns": []}],
        [{"name": "steady", "start_ns": 0, "stop_ns": 10**30}],
        [{"name": "steady", "start_ns": -5, "stop_ns": True}],
        [{"name": ["steady"], "start_ns": 0, "stop_ns": 10}],
    ],
)
def test_odd_phases_leave_numbers_unknown(tmp_path: Path, phases: object) -> None:
    run = write_run(tmp_path / "quick" / "1", results())
    (run / "run.json").write_text(json.dumps({"phases": phases}))
    facts = one(run)
    assert facts.outcome is Outcome.VALID
    assert "recovery_median_s" not in facts.measures
    assert "does not say when clients worked" in facts.missing["recovery_median_s"]
    assert facts.seconds < 1e9


def test_a_pipe_is_no_file_of_ours(tmp_path: Path) -> None:
    run = write_run(tmp_path / "quick" / "1", results())
    for name in ("run.json", "results.json"):
        (run / name).unlink()
        os.mkfifo(run / name)
    assert "not a regular file" in one(run).failure


def test_what_is_observed_and_was_not_kept_whole_is_a_least_number(tmp_path: Path) -> None:
    finding = {"kind": "lost-append", "message": "gone"}
    observed = {"valid": True, "summary": "", "observed": [finding] * 200}
    kept = {**results(), "checkers": {"durability": observed}}
    facts = one(write_run(tmp_path / "q" / "1", kept))
    assert (facts.measures["acknowledged_loss"], set(facts.at_least)) == (
        200,
        {"acknowledged_loss"},
    )
    counted = {**observed, "data": {"observed": {"lost-append": 731}}}
    facts = one(write_run(tmp_path / "q" / "2", {**results(), "checkers": {"durability": counted}}))
    assert (facts.measures["acknowledged_loss"], facts.at_least) == (731, frozenset())


def test_only_the_rows_that_matter_are_read_of_the_events(tmp_path: Path) -> None:
    run = write_run(tmp_path / "quick" / "1", results())
    folder = run_folder.RunFolder(run)
    clients = [
        {"index": n, "time_ns": n, "process": n % 7, "type": kind, "f": "append", "key": "q"}
        for n, kind in enumerate(["invoke", "ok", "info", "fail"] * 250)
    ]
    table = pa.concat_tables([fault_events(), pa.Table.from_pylist(clients, schema=EVENTS)])
    pq.write_table(table, folder.events_parquet)
    assert load_nemesis(folder).num_rows == fault_events().num_rows
    assert load_nemesis(folder).schema == EVENTS
    given_up = load_given_up(folder)
    assert given_up.column_names == ["process", "time_ns"]
    assert given_up["time_ns"].to_pylist() == list(range(2, 1000, 4))
