"""Campaigns that are judged while they run: one ends at the first violation, one is left alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.shaketable_runs import shaketable

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "kvs"
USUAL = ("--faults", "kill", "--engine", "local", "--seed", "1", "--nemesis-interval", "0.5")
LONG_S = 300.0


def run(folder: Path, *arguments: str) -> tuple[int, str, dict[str, Any], Path]:
    for name in ("shaketable.toml", "client.py", "server.py"):
        shutil.copy(EXAMPLE / name, folder)
    done = shaketable("run", *USUAL, *arguments, cwd=folder)
    assert done.stderr == "", done.stderr
    latest = folder / "store" / "latest"
    facts = json.loads((latest / "run.json").read_text())
    return done.returncode, done.stdout, facts, latest


def test_the_first_violation_is_told_and_ends_the_run(tmp_path: Path) -> None:
    code, said, facts, latest = run(
        tmp_path, "--target", "kvs-lazy", "--steady", "1", "--time-limit", f"{LONG_S:g}",
        "--stop-at-first-violation",
    )  # fmt: skip
    assert code == 1, said
    assert "online: linearizable-register is judged as operations come" in said
    assert re.search(r"violation: key shaketable/\d: .* by process \d+ \(op \d+\)", said)
    assert said.index("undoing faults and ending the run") < said.index("INVALID")
    phases = {span["name"]: span["stop_ns"] - span["start_ns"] for span in facts["phases"]}
    assert {"heal", "drain", "teardown"} <= phases.keys()
    assert phases["chaos"] < LONG_S / 2 * 1e9
    assert facts["status"] == "complete"
    assert facts["stopped_at"].startswith("key shaketable/")
    assert facts["online"]["outcome"] == "INVALID"
    results = json.loads((latest / "results.json").read_text())
    assert results["checkers"]["linearizable-register"]["valid"] is False
    assert "online" not in results["checkers"], "it agrees with the check"
    assert all(v["at_ns"] < v["told_ns"] for v in facts["online"]["violations"])
    accused = {v["key"] for v in facts["online"]["violations"]}
    found = results["checkers"]["linearizable-register"]["findings"]
    assert accused == {finding["key"] for finding in found}
    assert "<html" in (latest / "online.html").read_text()


def test_a_store_that_keeps_its_promises_is_not_accused(tmp_path: Path) -> None:
    code, said, facts, latest = run(
        tmp_path, "--target", "kvs", "--steady", "1", "--time-limit", "6", "--online"
    )
    assert code == 0, said
    assert "judged as they came: no violation" in said
    assert facts["online"]["outcome"] == "VALID"
    assert facts["online"]["operations"] == sum(facts["counts"].values())
    assert facts["online"]["violations"] == []
    assert facts["stopped_at"] is None
    assert not (latest / "online.html").exists()
