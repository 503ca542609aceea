"""The command `museum`, on a bug of our own system: found, not found without it, and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from shaketable.harness import cli, museum
from shaketable.reports.museum_page import Shown

BUG = """
title = "A leader acknowledges before a quorum has it"
sources = ["https://example.org/1"]
promised = "What was acknowledged is kept."
happens = "It is not."
seen = "An append is gone."
shows = ["lost-append"]
tries = 2
fixed_by = "the system without the planted bug"
"""
CAMPAIGN = """
world = "sim"
workload = "log"
faults = ["partition"]
concurrency = "4n"
steady = 1.0
time_limit = 9.0
rate = 200.0
engine = "local"
"""
PLANTED = 'mutant = "ack-before-quorum"\n'


@pytest.fixture
def bugs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the bugs that there are: one of our own system, and one that is never seen."""
    folder = tmp_path / "bugs"
    for name, broken in (("early-ack", PLANTED + CAMPAIGN), ("unseen", CAMPAIGN)):
        (folder / name).mkdir(parents=True)
        (folder / name / "bug.toml").write_text(BUG)
        (folder / name / "campaign.toml").write_text(broken)
        (folder / name / "fixed.toml").write_text(CAMPAIGN)
    monkeypatch.setattr(museum, "BUGS", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def shown(store: Path) -> tuple[list[Shown], str]:
    (folder,) = (store / "museum").iterdir()
    data = (folder / "museum.json").read_bytes()
    for one in json.loads(data):
        for each in (*one["tries"], *one["fixed"]):
            assert (folder / each["page"]).exists(), each
    return msgspec.json.decode(data, type=list[Shown]), (folder / "museum.html").read_text()


@pytest.mark.usefixtures("bugs")
def test_a_bug_is_found_and_not_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.run(["museum", "early-ack", "--seed", "1"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    (one,), page = shown(tmp_path / "store")
    assert one.is_found
    assert one.is_fix_clean
    assert one.tries[-1].verdict == "INVALID"
    assert one.tries[-1].shows == ("lost-append",)
    assert "violations/" in one.tries[-1].page
    assert [each.verdict for each in one.fixed] == ["VALID"]
    assert "1 of 1 found" in printed
    assert "without it, 1 of 1" in printed
    assert "1 of 1 found" in page
    assert 'href="https://example.org/1"' in page


@pytest.mark.usefixtures("bugs")
def test_a_bug_that_is_not_seen_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["museum", "unseen", "--tries", "1", "--fixed", "0", "--seed", "1"])
    printed = capsys.readouterr().out
    assert code == 1, printed
    assert "0 of 1 found" in printed
    (one,), page = shown(tmp_path / "store")
    assert [each.verdict for each in one.tries] == ["VALID"]
    assert one.fixed == ()
    assert "not found" in page


def test_what_cannot_run_is_told_with_its_output(
    bugs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bugs / "unseen" / "campaign.toml").write_text(CAMPAIGN + 'faults_at_once = "many"\n')
    code = cli.run(["museum", "unseen"])
    assert code == 254
    assert "faults_at_once" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.mark.usefixtures("bugs")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["unsen"], "unknown published bug 'unsen'; did you mean 'unseen'?"),
        (["unseen", "--tries", "0"], "--tries 0: expected 1 to 100"),
        (["unseen", "--fixed", "-1"], "--fixed -1: expected 0 to 100"),
        (["unseen", "--seed", "-5"], "--seed -5: expected 0 to 4,294,967,295"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["museum", *arguments]) == 254
    told = capsys.readouterr().err
    assert said in told.replace('"', "'")
    assert len(told.strip().splitlines()) == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.usefixtures("bugs")
def test_without_a_name_it_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["museum"]) == 0
    printed = capsys.readouterr().out
    assert "early-ack" in printed
    assert "A leader acknowledges before a quorum has it" in printed


RUN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
from pathlib import Path
from shaketable.harness import cli
from shaketable.harness import museum
museum.BUGS = Path(sys.argv[1])
sys.exit(cli.run(["museum", "early-ack"]))
"""


def running_under(folder: Path) -> list[str]:
    """The command lines of processes that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in line and int(entry.name) != os.getpid():
            found.append(line)
    return found


def test_an_interrupted_one_leaves_no_campaign(bugs: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", RUN, bugs],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("store/museum/*/early-ack/*/early-ack/*/campaign.toml")):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 255
    assert "Traceback" not in errors
    assert running_under(tmp_path / "store") == []
