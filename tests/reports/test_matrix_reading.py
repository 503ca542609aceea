"""What came of a matrix' cell is read from its run's folder, or from what the run said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shaketable.harness.matrix.folder import FaultCount, MatrixFolder, Outcome
from shaketable.harness.matrix.running import read_outcome

CELL = "first-shake"


def read(sample: Any, code: int, effects_min: int = 0, **of_fault: tuple[int, int]) -> Outcome:
    results = json.loads((sample.folder / "results.json").read_text())
    results["faults"] = {
        "by_name": {
            name: {"family": "process", "took_effect": took_effect, "done": done}
            for name, (took_effect, done) in of_fault.items()
        }
    }
    results["faults_unavailable"] = {"loss": "a TCP stream loses nothing"}
    (sample.folder / "results.json").write_text(json.dumps(results))
    store = sample.folder.parent.parent
    runs = store.parent / "runs"
    store.rename(runs)
    (runs / CELL / "latest").symlink_to(sample.folder.name)
    return read_outcome(MatrixFolder(store.parent), CELL, 1, code, 61.24, effects_min)


def test_a_run_that_bit_often_enough_is_what_it_was_judged(clean_run: Any) -> None:
    found = read(clean_run, 0, 3, kill=(3, 4), loss=(0, 0))
    assert (found.code, found.why, found.took_s) == (0, "", 61.2)
    assert found.faults == {"kill": FaultCount(3, 4)}, "what cannot be had is not asked of it"
    assert found.run == f"runs/{CELL}/20261121T091104.000Z"
    assert found.operations > 1000
    assert found.recovery_ns is not None
    assert found.recovery_max_ns is not None
    assert 0 < found.recovery_ns <= found.recovery_max_ns


def test_one_that_bit_too_seldom_is_not_valid(clean_run: Any) -> None:
    found = read(clean_run, 0, 3, kill=(3, 4), pause=(2, 4))
    assert found.code == 2
    assert found.why == "took effect too seldom, at least 3 requested: pause 2 of 4"


def test_an_invalid_one_stays_invalid_and_says_why(invalid_run: Any) -> None:
    found = read(invalid_run, 1, 3, kill=(0, 4))
    assert found.code == 1
    assert "lost" in found.why


def test_a_run_that_failed_says_what_it_said_last(tmp_path: Path) -> None:
    folder = MatrixFolder(tmp_path)
    output = folder.output(CELL, 2)
    output.parent.mkdir()
    output.write_text("steady\nshaketable: port 7 is in use\nsomething behind it\n")
    found = read_outcome(folder, CELL, 2, 255, 3.0, 3)
    assert (found.code, found.why, found.run) == (255, "port 7 is in use", "")
    output.write_text("")
    assert read_outcome(folder, CELL, 2, -9, 3.0, 3).why == "the run ended with exit status -9"
