"""Bad input: one clear line on stderr, the right exit code, never a traceback."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shaketable.harness import cli, discovery
from shaketable.harness.contracts.errors import HarnessError, UsageError

USAGE = 254


def shaketable(cwd: Path, *arguments: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "shaketable", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


BAD_INPUT = [
    (["rnu"], 'Unknown command "rnu". Did you mean "run"?'),
    (["run", "--fults", "kill"], "Did you mean --faults?"),
    (["run", "--nodes", "three"], 'unable to convert "three" into int'),
    (["run", "--faults", "kil,pause"], "unknown fault 'kil'; did you mean 'kill'?"),
    (["run", "--workload", "lgo"], "unknown workload 'lgo'; did you mean 'log'?"),
    (["run", "--target", "redis"], "unknown target 'redis'"),
    (["run", "--mutant", "ack-before-qorum"], "did you mean 'ack-before-quorum'?"),
    (["run", "--world", "moon"], "moon"),
    (["run", "--nodes", "10"], "nodes 10: expected 0 to 9"),
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
    (["list", "bugz"], "bugz"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "misspelt.toml").write_text("nodse = 3\n")
    (tmp_path / "garbage.toml").write_text("nodes = [")
    (tmp_path / "binary.toml").write_bytes(b"\xff\x00 = [")
    (tmp_path / "a-file").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "told"),
    BAD_INPUT,
    ids=lambda value: " ".join(value) if isinstance(value, list) else "told",
)
def test_usage(
    folder: Path,
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    code = cli.run(arguments)
    lines = capsys.readouterr().err.splitlines()
    assert (code, len(lines)) == (USAGE, 1), lines
    assert lines[0].startswith("shaketable: ")
    assert told in lines[0]
    assert not (folder / "store").exists()  # nothing was begun


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--faults", "kil"], "unknown fault 'kil'; did you mean 'kill'?"),
        (["run", "misspelt.toml"], "nodse"),
        (["run", "--store", "a-file/store"], "a-file"),
        (["analyze", "nowhere"], "nowhere: there is no such folder"),
    ],
    ids=["fault", "key", "store", "run"],
)
def test_usage_as_a_process(folder: Path, arguments: list[str], told: str) -> None:
    done = shaketable(folder, *arguments)
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (USAGE, 1), done.stderr
    assert told in lines[0]


def test_what_should_not_happen_is_one_line_and_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(discovery, "find", lambda _kind: 1 / 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cli.run(["list"]) == 255
    line = capsys.readouterr().err
    assert line.startswith("shaketable: a fault of the harness: ZeroDivisionError")
    kept = Path(line.rsplit("traceback: ", 1)[1].strip())
    assert kept.parent == tmp_path
    assert "Traceback" in kept.read_text()


@pytest.mark.parametrize(
    ("errors", "code", "told"),
    [
        ([ValueError("x"), UsageError("port 1 is in use")], 254, "port 1 is in use"),
        ([KeyboardInterrupt(), HarnessError("no node began")], 255, "no node began"),
        ([KeyboardInterrupt()], 255, "interrupted before a verdict"),
    ],
)
def test_of_several_errors_the_one_that_helps_is_told(
    errors: list[BaseException],
    code: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_kind: str) -> None:
        raise BaseExceptionGroup("outer", [BaseExceptionGroup("inner", errors)])

    monkeypatch.setattr(discovery, "find", fail)
    assert cli.run(["list"]) == code
    assert capsys.readouterr().err == f"shaketable: {told}\n"


def test_no_command_is_the_help(tmp_path: Path) -> None:
    done = shaketable(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "./shaketable run" in done.stdout


@pytest.mark.parametrize("command", ["run", "analyze", "report", "list", "simulate", "replay"])
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
    command = f"{shlex.quote(sys.executable)} -P -m shaketable list | true"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""


@pytest.mark.e2e
def test_a_port_in_use_is_named_and_nothing_is_left_to_judge(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = shaketable(tmp_path, "run", "--base-port", str(port))
    assert done.returncode == 255
    assert f"port {port}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "analyze" not in done.stdout
