"""Bad input: one clear line on stderr, the right exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

USAGE = 254


def shaketable(cwd: Path, *arguments: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "harness.cli", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["rnu"], 'Unknown command "rnu". Did you mean "run"?'),
        (["run", "--fults", "kill"], "Did you mean --faults?"),
        (["run", "--nodes", "three"], 'unable to convert "three" into int'),
        (["run", "--faults", "kil,pause"], "unknown fault 'kil'; did you mean 'kill'?"),
        (["run", "--workload", "lgo"], "unknown workload 'lgo'; did you mean 'log'?"),
        (["run", "--target", "redis"], "unknown target 'redis'"),
        (["run", "--mutant", "ack-before-qorum"], "did you mean 'ack-before-quorum'?"),
        (["run", "--world", "netns"], "netns"),
        (["run", "--nodes", "0"], "nodes"),
        (["run", "--test-count", "0"], "--test-count 0: expected 1 to"),
        (["run", "absent.toml"], "cannot read the campaign absent.toml"),
        (["run", "misspelt.toml"], "nodse"),
        (["run", "garbage.toml"], "garbage.toml: not TOML"),
        (["run", "binary.toml"], "cannot read the campaign binary.toml: not UTF-8"),
        (["run", "--store", "a-file/store"], "a-file"),
        (["analyze", "nowhere"], "nowhere: there is no such folder"),
        (["analyze"], "parameter RUN requires an argument"),
        (["analyze", "."], "not the folder of a run"),
        (["report", "misspelt.toml"], "misspelt.toml: a file"),
        (["list", "bugs"], "bugs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "told",
)
def test_usage(tmp_path: Path, arguments: list[str], told: str) -> None:
    (tmp_path / "misspelt.toml").write_text("nodse = 3\n")
    (tmp_path / "garbage.toml").write_text("nodes = [")
    (tmp_path / "binary.toml").write_bytes(b"\xff\x00 = [")
    (tmp_path / "a-file").touch()
    done = shaketable(tmp_path, *arguments)
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (USAGE, 1), done.stderr
    assert lines[0].startswith("shaketable: ")
    assert told in lines[0]
    assert not (tmp_path / "store").exists()  # nothing was begun


def test_no_command_is_the_help(tmp_path: Path) -> None:
    done = shaketable(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "./shaketable run" in done.stdout


@pytest.mark.parametrize("command", ["run", "analyze", "report", "list"])
def test_each_command_s_help_has_an_example(tmp_path: Path, command: str) -> None:
    done = shaketable(tmp_path, command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: ./shaketable {command}" in done.stdout
    body = done.stdout.split("\n", 1)[1]
    assert f"./shaketable {command}" in body
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("kind", ["targets", "faults", "workloads", "checkers"])
def test_list_names_what_there_is_and_says_what_it_is(tmp_path: Path, kind: str) -> None:
    done = shaketable(tmp_path, "list", kind, columns=200)
    assert done.returncode == 0
    heading, *lines = done.stdout.splitlines()
    assert heading == kind.capitalize()
    names = [line.split(maxsplit=1) for line in lines if line.strip()]
    assert names
    assert all(len(words) == 2 for words in names)


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -P -m harness.cli list | true"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
