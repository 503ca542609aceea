"""What came of a cell is read from its own attempt's run, and from no earlier one."""

from __future__ import annotations

import json
import os
import time
from io import StringIO
from pathlib import Path

from rich.console import Console

from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.history.run_folder import LATEST
from shaketable.harness.matrix.folder import MatrixFolder
from shaketable.harness.matrix.plan import Cell, Plan
from shaketable.harness.matrix.running import read_outcome, to_json, view
from shaketable.harness.terminal import matrix
from shaketable.reports.matrix_page import render_matrix


def test_an_attempt_that_made_no_run_is_not_judged_by_the_one_before(tmp_path: Path) -> None:
    folder = MatrixFolder(tmp_path)
    run = folder.runs / "a" / "20261122T000000.000Z"
    run.mkdir(parents=True)
    (run / "results.json").write_text(json.dumps({"valid": False, "faults": {"by_name": {}}}))
    link = folder.runs / "a" / LATEST
    link.symlink_to(run.name)
    folder.output("a", 1).parent.mkdir(parents=True, exist_ok=True)
    folder.output("a", 2).write_text("Traceback ...\nImportError: no module named x\n")

    now = read_outcome(folder, "a", 2, 1, 5.0, 0)
    assert (now.code, now.run) == (ExitCode.INVALID, str(run.relative_to(tmp_path)))

    before_s = time.time() - 60
    os.utime(link, (before_s, before_s), follow_symlinks=False)
    later = read_outcome(folder, "a", 2, 1, 5.0, 0)
    assert (later.code, later.run) == (ExitCode.HARNESS, "")
    assert later.why == "ImportError: no module named x"


def test_faults_that_its_world_lacks_are_kept_with_their_reason(tmp_path: Path) -> None:
    """A cell of several faults of which one cannot be done is told as done in part."""
    folder = MatrixFolder(tmp_path)
    run = folder.runs / "a" / "20261122T000000.000Z"
    run.mkdir(parents=True)
    faults = {
        "by_name": {"kill": {"took_effect": 4, "done": 5}, "loss": {"took_effect": 0, "done": 0}}
    }
    lacking = {"loss": "a TCP stream loses nothing"}
    results = {"valid": True, "faults": faults, "faults_unavailable": lacking}
    (run / "results.json").write_text(json.dumps(results))
    (folder.runs / "a" / LATEST).symlink_to(run.name)

    outcome = read_outcome(folder, "a", 1, 0, 5.0, 3)
    assert (outcome.code, outcome.lacking) == (ExitCode.VALID, lacking)
    assert list(outcome.faults) == ["kill"]

    cell = Cell(
        id="a", target="t", workload="w", faults=("kill", "loss"), world="process", seed="1"
    )
    plan = Plan(name="m", effects_min=3, cells=(cell,))
    (told,) = to_json(plan, {"a": [outcome]})["cells"]
    assert told["attempts"][0]["lacking"] == lacking
    shown = view(plan, {"a": [outcome]}, "resume")
    page = render_matrix(shown)
    assert "without loss" in page
    assert "<b>a</b> without loss: a TCP stream loses nothing" in page
    console = Console(file=StringIO(), width=100)
    matrix.show_matrix(console, shown, "store/m/matrix.html")
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue()
    assert "VALID in part" in printed
    assert "in part, without loss: a\n  a TCP stream loses nothing" in printed
