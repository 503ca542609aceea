"""Tab in real shells: commands, options, and the names that the program knows."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from shaketable.harness import cli

SHELLS = ("bash", "zsh", "fish")
TARGETS = """
[targets.orders]
start = ["true", "{data}"]
client = "client.py"
"""
IN_BASH = """
source completion
[[ $(complete -p shaketable) == *"-F _shaketable shaketable" ]] || exit 1
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shaketable
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
IN_FISH = "source completion; complete --do-complete {line}"

CASES = [
    ("shaketable ru", {"run"}, {"report"}),
    ("shaketable run --targ", {"--target"}, {"--world"}),
    ("shaketable run --target ", {"dledger", "sync-double-write", "orders"}, {"kill"}),
    ("shaketable run --world ", {"process", "sim"}, {"dledger"}),
    ("shaketable run --workload re", {"register"}, {"log"}),
    ("shaketable run s", {"soak"}, {"quick"}),
    ("shaketable run m", {"mine.toml"}, {"client.py"}),
    (
        "shaketable run --target sync-double-write --mutant slave",
        {"slave-reports-what-it-received"},
        set(),
    ),
    ("shaketable list c", {"campaigns", "checkers"}, {"faults"}),
    ("shaketable check --model cas", {"cas-register"}, {"counter"}),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a target of its own, where `shaketable` is a command."""
    program = tmp_path / "bin" / "shaketable"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m shaketable "$@"\n')
    program.chmod(0o755)
    here = tmp_path / "here"
    here.mkdir()
    (here / "shaketable.toml").write_text(TARGETS)
    (here / "client.py").write_text("def read(node, key): ...\ndef write(node, key, value): ...\n")
    (here / "mine.toml").write_text('name = "mine"\n')
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return here


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    """What `completion` prints for each shell."""
    printed = {}
    for shell in SHELLS:
        with redirect_stdout(io.StringIO()) as output:
            assert cli.run(["completion", shell]) == 0
        printed[shell] = output.getvalue()
    return printed


def offered(argv: list[str], folder: Path) -> set[str]:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True, timeout=120)
    return {line.split("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize(("line", "expected", "left_out"), CASES)
def test_bash_completes(
    line: str,
    expected: set[str],
    left_out: set[str],
    folder: Path,
    scripts: dict[str, str],
) -> None:
    (folder / "completion").write_text(scripts["bash"])
    words = " ".join(map(shlex.quote, line.split(" ")))
    found = offered(["bash", "--norc", "-c", IN_BASH.format(words=words)], folder)
    assert expected <= found
    assert not left_out & found


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish on PATH (Debian: fish)")
@pytest.mark.parametrize(("line", "expected", "left_out"), CASES[:4])
def test_fish_completes(
    line: str,
    expected: set[str],
    left_out: set[str],
    folder: Path,
    scripts: dict[str, str],
) -> None:
    (folder / "completion").write_text(scripts["fish"])
    found = offered(["fish", "-c", IN_FISH.format(line=shlex.quote(line))], folder)
    assert expected <= found
    assert not left_out & found


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on PATH (Debian: zsh)")
def test_zsh_takes_its_script(folder: Path, scripts: dict[str, str]) -> None:
    (folder / "_shaketable").write_text(scripts["zsh"])
    loads = "fpath=($PWD $fpath); autoload -U compinit; compinit -u -D; print $_comps[shaketable]"
    assert offered(["zsh", "-f", "-c", loads], folder) == {"_shaketable"}
    assert offered(["zsh", "-f", "-n", "_shaketable"], folder) == set()


def test_names_between_commas_are_completed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["__complete", "run", "--faults", "kill,pa"]) == 0
    found = {line.split("\t")[0] for line in capsys.readouterr().out.splitlines()}
    assert {"kill,pause", "kill,partition"} <= found
    assert not found & {"kill,kill", "kill,all", "pause"}


def test_it_is_installed_where_bash_looks(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["completion", "bash", "--install"]) == 0
    told = capsys.readouterr().out
    (written,) = [
        path
        for path in tmp_path.rglob("*")
        if path.name == "shaketable" and path.parent.name == "completions"
    ]
    assert str(written) in told.replace("\n", "")
    loaded = offered(["bash", "--norc", "-c", "source ~/.bashrc; complete -p shaketable"], folder)
    assert any("_shaketable" in line for line in loaded)


def test_an_unknown_shell_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.run(["completion", "tcsh"]) == 254
    assert "bash" in capsys.readouterr().err
