"""The start script on machines that lack something: one clear line and its exit code.

Each test works on a copy of the script in a folder of its own, with a PATH that holds only
what the machine in question has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BASE_PYTHON = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
TOOLS = (
    *("cat", "cksum", "cut", "dirname", "env", "grep", "mkdir", "readlink"),
    *("rm", "sed", "sh", "sleep", "tail", "tr"),
)
SHELL = shutil.which("dash") or "/bin/sh"
CLOSED_INDEX = "http://127.0.0.1:9/simple"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A copy of the script in a folder with a space, and an empty PATH folder of tools."""
    copy = tmp_path / "a copy"
    copy.mkdir()
    shutil.copy(ROOT / "shaketable", copy)
    (copy / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "shaketable"\nversion = "0"\n'
    )
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, f"this machine has no {tool}"
        (tools / tool).symlink_to(found)
    return copy


def give(machine: Path, name: str, script: str) -> None:
    """Put an executable on the machine's PATH."""
    path = machine.parent / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def give_python(machine: Path, refuse: str = "") -> None:
    """Put the real Python on PATH; `refuse` is a shell pattern of arguments that fail."""
    guard = f'case "$*" in {refuse}) exit 1 ;; esac\n' if refuse else ""
    give(machine, "python3", f'{guard}exec "{BASE_PYTHON}" "$@"')


def start(machine: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SHELL, str(machine / "shaketable"), *arguments],
        cwd=machine.parent,
        env={"PATH": str(machine.parent / "bin"), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )


def only_line(done: subprocess.CompletedProcess[str]) -> str:
    """The line that says what is wrong; the script's own news come before it."""
    lines = done.stderr.splitlines()
    assert all(line.startswith("shaketable: ") for line in lines), done.stderr
    return lines[-1]


def test_no_python_at_all(machine: Path) -> None:
    done = start(machine, "list")
    assert done.returncode == 255
    assert "needs Python 3.11 or newer; found none on PATH" in only_line(done)
    assert len(done.stderr.splitlines()) == 1


def test_a_python_that_is_too_old_is_named(machine: Path) -> None:
    give(machine, "python3", "echo 3.9.2")
    done = start(machine, "list")
    assert done.returncode == 255
    assert f"found 3.9.2 at {machine.parent}/bin/python3" in only_line(done)


def test_a_newer_python_of_another_name_is_taken(machine: Path) -> None:
    give(machine, "python3", "echo 3.9.2")
    give(
        machine,
        "python3.12",
        'case "$*" in *ensurepip*) exit 1 ;; *version_info*) echo 3.12.1 ;; esac',
    )
    done = start(machine, "list")
    assert f"{machine.parent}/bin/python3.12 has no venv module" in only_line(done)


def test_no_venv_module_names_the_package(machine: Path) -> None:
    give_python(machine, refuse="*ensurepip*")
    done = start(machine, "list")
    assert done.returncode == 255
    assert f"apt install python3.{sys.version_info.minor}-venv" in only_line(done)


def test_no_network_says_so_and_where_the_log_is(machine: Path) -> None:
    give_python(machine)
    done = start(
        machine, "list", PIP_INDEX_URL=CLOSED_INDEX, PIP_RETRIES="0", PIP_CONFIG_FILE=os.devnull
    )
    assert done.returncode == 255
    line = only_line(done)
    assert "no network" in line
    assert line.endswith(f"log: {machine}/.venv/install.log")


def test_a_half_made_venv_is_made_again(machine: Path) -> None:
    give_python(machine, refuse="*ensurepip*")
    (machine / ".venv" / "bin").mkdir(parents=True)
    (machine / ".venv" / "installed-partly").touch()
    (machine / ".venv" / "left-over").touch()
    done = start(machine, "list")
    assert done.returncode == 255
    assert "first use" in done.stderr
    assert not (machine / ".venv" / "left-over").exists()
    assert (machine / ".venv" / "installed-partly").exists()


def finished_venv(machine: Path, python: str) -> None:
    """A .venv as a finished installation leaves it, whose python is the given script."""
    (machine / ".venv" / "bin").mkdir(parents=True)
    fake = machine / ".venv" / "bin" / "python"
    fake.write_text(f"#!/bin/sh\n{python}\n")
    fake.chmod(0o755)
    with (machine / "pyproject.toml").open() as file:
        checksum = subprocess.run(
            ["cksum"], stdin=file, capture_output=True, text=True, check=True
        ).stdout.strip()
    stamp = f"{checksum} {machine}\n"
    for extra in ("base", "java"):
        (machine / ".venv" / f"installed-{extra}").write_text(stamp)


def test_a_finished_installation_needs_no_python_on_path(machine: Path) -> None:
    finished_venv(machine, 'printf "%s|" "$@"; exit 7')
    done = start(machine, "list", "a b")
    assert done.returncode == 7
    assert done.stdout == "-P|-m|harness.cli|list|a b|"
    assert done.stderr == ""


def test_it_works_through_a_link_from_anywhere(machine: Path, tmp_path: Path) -> None:
    finished_venv(machine, "pwd")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "shake").symlink_to("../a copy/shaketable")
    (tmp_path / "again").symlink_to("links/shake")
    done = subprocess.run(
        [SHELL, "../again"],
        cwd=tmp_path / "links",
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.strip() == str(tmp_path / "links")  # the caller's folder stays


def test_a_changed_pyproject_is_installed_again(machine: Path) -> None:
    finished_venv(machine, 'case "$*" in *"-m pip install"*) echo "ERROR: tried" ; exit 1 ;; esac')
    give_python(machine)
    with (machine / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    done = start(machine, "list")
    assert done.returncode == 255
    assert "pyproject.toml or the folder changed" in done.stderr
    assert "pip failed: ERROR: tried" in only_line(done)
    # What was there before is still there: nobody has to download it all again.
    assert not (machine / ".venv" / "installed-partly").exists()


def test_java_is_looked_for_only_where_it_is_needed(machine: Path) -> None:
    finished_venv(
        machine, 'case "$*" in *engine.java*) echo /a/java ;; *) echo "java=$JAVA_HOME" ;; esac'
    )
    assert start(machine, "run").stdout == "java=/a/java\n"
    assert start(machine, "analyze", "x").stdout == "java=/a/java\n"
    for arguments in (
        ["list"],
        ["report", "x"],
        [],
        ["--help"],
        ["run", "--help"],
        ["analyze", "x", "--engine", "local"],
        ["analyze", "x", "--engine=local"],
    ):
        assert start(machine, *arguments).stdout == "java=\n", arguments


def test_no_java_is_said_in_the_words_of_the_search(machine: Path) -> None:
    finished_venv(
        machine, 'case "$*" in *engine.java*) echo "no Java (tried: x)" >&2; exit 3 ;; esac'
    )
    done = start(machine, "run")
    assert done.returncode == 255
    assert done.stderr == "shaketable: no Java (tried: x)\n"


def test_a_runtime_is_brought_where_there_is_none(machine: Path) -> None:
    finished_venv(
        machine,
        """case "$*" in
        *"-m pip install"*"[java]") : >"${0%/.venv/*}/brought" ;;
        *engine.java*) [ -e "${0%/.venv/*}/brought" ] || exit 3; echo /brought ;;
        *harness.cli*) echo "java=$JAVA_HOME" ;;
        esac""",
    )
    (machine / ".venv" / "installed-java").unlink()
    give_python(machine)
    done = start(machine, "run")
    assert (done.returncode, done.stdout) == (0, "java=/brought\n")
    assert "bringing a runtime from PyPI" in done.stderr
    assert start(machine, "run").stderr == ""  # once


def test_a_search_for_java_that_fails_is_said(machine: Path) -> None:
    finished_venv(machine, 'case "$*" in *engine.java*) echo "SyntaxError: x" >&2; exit 1 ;; esac')
    done = start(machine, "run")
    assert done.returncode == 255
    assert only_line(done).endswith("looking for a Java failed: SyntaxError: x")


def test_two_at_once_wait_for_each_other(machine: Path) -> None:
    """The second one waits for the lock, then finds the work of the first one done."""
    finished_venv(
        machine,
        'case "$*" in *"-m pip install"*) sleep 3 ; echo x >>"${0%/.venv/*}/installed" ;; esac',
    )
    give_python(machine)
    (machine / ".venv" / "installed-base").write_text("old\n")
    command = [SHELL, str(machine / "shaketable"), "list"]
    env = {"PATH": str(machine.parent / "bin")}
    both = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert (machine / "installed").read_text() == "x\n"
    assert sum("waiting for it" in text for text in said) == 1


def test_help_of_test_needs_no_installation(machine: Path) -> None:
    done = start(machine, "test", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: shaketable test")
