"""The command `calibrate`: a sample that CI gates on, gone on with, and what it refuses."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from shaketable.harness import cli

SAMPLE = "ack-before-quorum,ack-before-fsync,double-vote"

pytestmark = pytest.mark.timeout(600)


def calibrate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "shaketable", "calibrate", *arguments]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


def test_a_sample_is_found_and_the_correct_system_stays_clean(tmp_path: Path) -> None:
    sample = ["--mutant", SAMPLE, "--by", "sim", "--repeats", "1", "--clean", "1"]
    sample += ["--virtual-time", "120"]
    done = calibrate(tmp_path, *sample, "--seed", "5", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 planted bugs found" in done.stdout
    assert "0 false alarms" in done.stdout
    (folder,) = (tmp_path / "store" / "calibrate").iterdir()
    card = json.loads((folder / "scorecard.json").read_bytes())
    assert [row["bug"] for row in card["bugs"]] == sorted(SAMPLE.split(","))
    assert "3 of 3 found" in (folder / "scorecard.html").read_text()
    # An interrupted one goes on with what has not ended, and keeps what has.
    first, *others = (folder / "hunts.jsonl").read_text().splitlines(keepends=True)
    kept = "".join(others)
    (folder / "hunts.jsonl").write_text(kept + first[:40])  # the disk was full, say
    again = calibrate(tmp_path, "--resume", str(folder))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 of 4 hunts to do" in again.stdout
    assert (folder / "hunts.jsonl").read_text().startswith(f"{kept}{first[:40]}\n{{")
    assert json.loads((folder / "scorecard.json").read_bytes())["done"] == 4
    with (folder / "plan.json").open() as plan:
        fcntl.flock(plan, fcntl.LOCK_EX)
        second = calibrate(tmp_path, "--resume", str(folder))
    assert second.returncode == 254
    assert second.stderr.strip().endswith("another process goes on with this calibration")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mutant", "nope"], "--mutant: unknown planted bug 'nope'"),
        (["--family", "nope"], "--family: unknown family 'nope'"),
        (["--by", "luck"], "--by: unknown method 'luck'"),
        (["--by", ","], "--by: expected some of default, default-sim, sim, family"),
        (["--repeats", "0"], "--repeats 0: expected 1 to 99"),
        (["--virtual-time", "5"], "--virtual-time 5: expected 30 to 100,000"),
        (["--require", "2"], "--require 2: expected a share, 0 to 1"),
        (["--resume", "nowhere"], "--resume nowhere: no calibration: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["calibrate", *arguments]) == 254
    told = capsys.readouterr().err
    assert said in told.replace('"', "'")
    assert len(told.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
