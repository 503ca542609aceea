"""The command `matrix`: ended by Ctrl-C before anything is done, gone on with, told in a table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from shaketable.harness.matrix.folder import FaultCount, Journal, Outcome

MATRIX = """
faults = ["kill", "damage"]
worlds = ["sim"]
effects_min = 1
[campaign]
time_limit = 6.0
steady = 1.0
rate = 60.0
nemesis_interval = 0.5
fault_duration_min = 0.5
fault_duration_max = 1.0
spark_master = "local[1]"
"""
WAIT_S = 60.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "shaketable", "matrix", *arguments]


def processes_of(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def test_a_matrix_that_is_ended_leaves_no_process_and_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(MATRIX)
    begun = subprocess.Popen(
        command("m.toml", "--store", "s"), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + WAIT_S
        while not (journals := list(tmp_path.glob("s/matrix-m/2*/journal.jsonl"))) or (
            b"began" not in journals[0].read_bytes()
        ):
            assert begun.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        begun.send_signal(signal.SIGINT)
        _, said = begun.communicate(timeout=WAIT_S)
    finally:
        begun.kill()
        begun.wait()
    assert begun.returncode == 255
    assert "interrupted; to go on: ./shaketable matrix --resume" in said
    assert processes_of(tmp_path) == []

    folder = tmp_path / "s" / "matrix-m" / "latest"
    with Journal(folder / "journal.jsonl") as journal:
        assert (journal.begun, journal.attempts) == ({"kill-sim": 1}, {})
        journal.ended(
            "kill-sim", "now", Outcome(attempt=2, code=0, faults={"kill": FaultCount(3, 3)})
        )
    done = subprocess.run(
        command("--resume", "s/matrix-m/latest"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 1 cells to run" in done.stdout
    assert "VALID  1 VALID, 1 not here" in done.stdout
    assert "campaigns do not edit the files of simulated nodes" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    found = json.loads((folder / "results.json").read_text())
    kill, damage = found["cells"]
    assert (found["exit_code"], kill["verdict"], damage["verdict"]) == (0, "VALID", "SKIPPED")
    assert ">VALID<" in (folder / "matrix.html").read_text()
