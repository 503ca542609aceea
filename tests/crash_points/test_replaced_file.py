"""A store that replaces its file at each write: right, and in three ways that lose it.

Each is broken at the calls at which it must be, and at no other. 200 points of each:
docs/crash-points.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from shaketable.harness import cli, run_markers
from shaketable.harness.history.run_folder import RunFolder
from shaketable.reports.crash_points_page import BROKEN, NO_START, NOT_REACHED, Tried, Tries

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("fuse")]

STORE = Path(__file__).parents[1] / "support" / "replaced_file"
FILE = "data/values.json"
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(STORE)


def folder_of(store: Path) -> Path:
    (folder,) = (store / "crash-points").iterdir()
    return folder


def tried(store: Path, target: str, *more: str, points: int = 10) -> tuple[int, Tries]:
    """Try points of a way to replace the file; return the exit code, and what came of them."""
    usual = ("--points", str(points), "--operations", "12", "--seed", "7", "--groups", "1")
    code = cli.run(["crash-points", "--target", target, *(more or usual), "--store", str(store)])
    found = msgspec.json.decode((folder_of(store) / "crash-points.json").read_bytes(), type=Tries)
    return code, found


def must_be_empty(one: Tried) -> bool:
    """Whether the file has its name, and not its bytes, if power is lost then."""
    return one.call == "fsync"


def must_be_empty_for_good(one: Tried) -> bool:
    """As above, but it is never synced: the first folder that is synced makes it so."""
    return one.nth > 1


def test_the_right_store_is_broken_at_no_call(tmp_path: Path) -> None:
    code, tries = tried(tmp_path, "right")
    assert [one.name for one in tries.tried if one.result != "VALID"] == []
    assert (code, tries.verdict, len(tries.tried)) == (0, "VALID", 10)
    assert set(tries.calls) == {"create", "write", "fsync", "rename", "fsync-dir"}
    assert {one.call for one in tries.tried} == set(tries.calls)
    assert not (folder_of(tmp_path) / "points").exists()
    assert not (folder_of(tmp_path) / "groups").exists()


@pytest.mark.parametrize(
    ("target", "must_be_broken"),
    [("rename-first", must_be_empty), ("no-file-sync", must_be_empty_for_good)],
)
def test_an_empty_file_is_found_at_the_calls_that_leave_one(
    tmp_path: Path, target: str, must_be_broken: Callable[[Tried], bool]
) -> None:
    code, tries = tried(tmp_path, target)
    assert NOT_REACHED not in {one.result for one in tries.tried}
    broken = {one.name for one in tries.tried if one.result in BROKEN}
    assert broken == {one.name for one in tries.tried if must_be_broken(one)}
    assert {one.result for one in tries.broken} == {NO_START}
    assert code == 2
    for one in tries.broken:
        assert any("JSONDecodeError" in line for line in one.last_lines)
        kept = folder_of(tmp_path) / one.folder / "nodes" / "n0" / "disk" / FILE
        assert kept.read_bytes() == b""


def test_a_lost_write_is_found_with_its_page_and_repeated_alone(tmp_path: Path) -> None:
    code, tries = tried(tmp_path / "all", "no-dir-sync", points=25)
    lost = [one for one in tries.tried if one.result == "INVALID"]
    assert code == 1
    assert lost
    # The first write is not acknowledged before its rename; nothing is lost until then.
    assert not [one.name for one in lost if one.nth == 1]
    kept = RunFolder(folder_of(tmp_path / "all") / lost[0].folder)
    assert (folder_of(tmp_path / "all") / lost[0].page).exists()
    assert "violations/" in lost[0].page
    assert "by process" in lost[0].why, "the operation at fault"
    page = (folder_of(tmp_path / "all") / "crash-points.html").read_text()
    assert lost[0].repeat in page.replace("&#34;", '"')
    assert cli.run(["analyze", str(kept.path), "--engine", "local"]) == 1
    repeat = lost[0].repeat.partition("crash-points ")[2].split()
    code, again = tried(tmp_path / "one", "no-dir-sync", *repeat[2:])
    # Which client reads first after the loss, before another one writes, is not in its seed.
    assert [(one.name, one.path) for one in again.tried] == [(lost[0].name, lost[0].path)]
    assert (code, again.tried[0].result) in [(1, "INVALID"), (0, "VALID")]


def started(store: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-P", "-m", "shaketable", "crash-points", "--target", "right"]
    argv += ["--points", "1000", "--operations", "300", "--store", str(store)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def of_store(store: Path) -> list[int]:
    """Return the processes that a command with this store has started."""
    found = ((pid, run_markers.marker_of(pid)) for pid in run_markers.pids())
    return [pid for pid, mark in found if mark and mark.folder.is_relative_to(store)]


def until(is_so: Callable[[], object]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_command_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as process:
        try:
            assert process.stdout is not None
            while "calls without" not in process.stdout.readline():
                assert process.poll() is None
            until(lambda: len(of_store(tmp_path)) >= 3)
            os.kill(process.pid, number)
            printed, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    until(lambda: not of_store(tmp_path))
    if number == signal.SIGTERM:
        assert process.returncode == 2, printed
        assert (folder_of(tmp_path) / "crash-points.html").exists()
    assert cli.run(["heal", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--points", "0"], "--points 0: expected 1 to 100,000"),
        (["--calls", "sync"], "--calls sync: unknown call 'sync'"),
        (["--point", "fsync"], "--point fsync: expected CALL:N, as fsync:17"),
        (["--victims", "n7"], "--victims: unknown victim 'n7'"),
        (["--workload", "registr"], "unknown workload 'registr'; did you mean 'register'?"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["crash-points", "--target", "right", *arguments, "--store", str(tmp_path / "store")]
    assert cli.run(command) == 254
    told = capsys.readouterr().err
    assert said in told.replace('"', "'")
    assert len(told.strip().splitlines()) == 1
    assert not (tmp_path / "store").exists()
