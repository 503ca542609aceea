"""What came of a cell is read from its own attempt's run, and from no earlier one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from harness.history.run_folder import LATEST
from harness.matrix.folder import MatrixFolder
from harness.matrix.reading import read_outcome
from harness.verdict import ExitCode


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
