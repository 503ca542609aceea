"""The start script on machines that lack something: one clear line and its exit code.

Each test works on a copy of the script in a folder of its own, with a PATH that holds only
what the machine in question has.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
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


def test_compiled_modules_are_kept_whatever_the_image_says(machine: Path) -> None:
    give(machine, "python3", 'echo "3.9.2-${PYTHONDONTWRITEBYTECODE-kept}"')
    assert "found 3.9.2-kept at" in only_line(start(machine, "list", PYTHONDONTWRITEBYTECODE="1"))


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
    own = 'case "$*" in *version_info*) echo 3.11; exit ;; *"import pip") exit ;; esac'
    fake.write_text(f"#!/bin/sh\n{own}\n{python}\n")
    fake.chmod(0o755)
    with (machine / "pyproject.toml").open() as file:
        checksum = subprocess.run(
            ["cksum"], stdin=file, capture_output=True, text=True, check=True
        ).stdout.strip()
    stamp = f"{checksum} {machine} Python 3.11 at {fake}\n"
    for extra in ("base", "java"):
        (machine / ".venv" / f"installed-{extra}").write_text(stamp)


def test_a_finished_installation_needs_no_python_on_path(machine: Path) -> None:
    finished_venv(machine, 'printf "%s|" "$@"; exit 7')
    done = start(machine, "list", "a b")
    assert done.returncode == 7
    assert done.stdout == "-P|-m|shaketable|list|a b|"
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
    assert "pyproject.toml, the folder or Python changed" in done.stderr
    assert "pip failed: ERROR: tried" in only_line(done)
    # What was there before is still there: nobody has to download it all again.
    assert not (machine / ".venv" / "installed-partly").exists()


def pips(machine: Path) -> str:
    """What the fake pips of this machine were told to install, one a line."""
    log = machine / "pips"
    return log.read_text() if log.exists() else ""


NOTE_PIP = """*"-m pip install"*) for last; do :; done; echo "$last" >>"${0%/.venv/*}/pips" ;;"""


def test_an_upgraded_python_is_installed_for_again(machine: Path) -> None:
    finished_venv(machine, f'case "$*" in {NOTE_PIP} *) echo ran ;; esac')
    give_python(machine)
    python = machine / ".venv" / "bin" / "python"
    python.write_text(python.read_text().replace("echo 3.11", "echo 3.12"))
    done = start(machine, "list")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "pyproject.toml, the folder or Python changed" in done.stderr
    assert pips(machine) == f"{machine}\n"
    assert start(machine, "list").stderr == ""  # once


def test_a_python_without_its_packages_makes_the_venv_again(machine: Path) -> None:
    finished_venv(machine, "exit 1")
    give_python(machine, refuse="*ensurepip*")
    python = machine / ".venv" / "bin" / "python"
    python.write_text("#!/bin/sh\necho 'No module named harness' >&2\nexit 1\n")
    done = start(machine, "list")
    assert done.returncode == 255, "1 would say that the group broke a promise"
    assert "works no more (was Python upgraded?)" in done.stderr
    assert not python.exists()


def test_an_interrupted_extra_costs_nothing_that_was_there(machine: Path) -> None:
    finished_venv(
        machine,
        """case "$*" in
        *"-m pip install"*) echo "Collecting" >"${0%/.venv/*}/pips" ; exec sleep 60 ;;
        *) echo ran ;;
        esac""",
    )
    give_python(machine)
    packages = machine / ".venv" / "lib" / "python3.11" / "site-packages"
    for name in ("whole", "half"):
        (packages / f"{name}-1.dist-info").mkdir(parents=True)
    (packages / "whole-1.dist-info" / "RECORD").touch()
    with subprocess.Popen(
        [SHELL, str(machine / "shaketable"), "test"],
        env={"PATH": str(machine.parent / "bin")},
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        while not pips(machine):
            time.sleep(0.02)
        script.send_signal(signal.SIGTERM)
        said = script.communicate(timeout=60)[1]
    assert script.returncode == 255
    assert "interrupted while installing" in said
    (machine / "pips").unlink()
    done = start(machine, "list")  # pip is not called: there may be no network now
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert pips(machine) == ""
    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]
    assert not (machine / ".venv" / "installed-partly").exists()


def test_an_interrupted_extra_that_broke_the_rest_is_installed_over_it(machine: Path) -> None:
    finished_venv(
        machine,
        f"""case "$*" in
        {NOTE_PIP}
        *"-m shaketable "*) [ -e "${{0%/.venv/*}}/pips" ] && echo ran ;;
        esac""",
    )
    give_python(machine)
    (machine / ".venv" / "installed-partly").touch()
    (machine / ".venv" / "kept").touch()
    done = start(machine, "list")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert pips(machine) == f"{machine}\n"
    assert (machine / ".venv" / "kept").exists()
    assert not (machine / ".venv" / "installed-partly").exists()


def test_a_bad_option_downloads_no_java(machine: Path) -> None:
    finished_venv(
        machine,
        f"""case "$*" in
        {NOTE_PIP}
        *engine.java*) exit 3 ;;
        *parse_args*--fults*) exit 1 ;;
        *"-m shaketable "*) echo "shaketable: Unknown option: --fults" >&2; exit 254 ;;
        esac""",
    )
    (machine / ".venv" / "installed-java").unlink()
    done = start(machine, "run", "--fults", "x")
    assert done.returncode == 254
    assert done.stderr == "shaketable: Unknown option: --fults\n"
    assert pips(machine) == ""


@pytest.mark.parametrize(("word", "code"), [("--faults", 0), ("--fults", 1)])
def test_the_script_tells_good_words_from_bad_ones_as_the_command_line_does(
    word: str, code: int
) -> None:
    script = (ROOT / "shaketable").read_text()
    program = script.partition("can_be_parsed() {")[2].partition("-c '")[2].partition("'")[0]
    assert "parse_args" in program
    command = [sys.executable, "-P", "-c", program, "run", word, "kill"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == code


def test_java_is_looked_for_only_where_it_is_needed(machine: Path) -> None:
    finished_venv(
        machine, 'case "$*" in *engine.java*) echo /a/java ;; *) echo "java=$JAVA_HOME" ;; esac'
    )
    assert start(machine, "run").stdout == "java=/a/java\n"
    assert start(machine, "analyze", "x").stdout == "java=/a/java\n"
    for asked in (["--engine", "spark"], ["--engine=spark"], ["--spark-master", "yarn"]):
        assert start(machine, "check", "x", *asked).stdout == "java=/a/java\n", asked
    for arguments in (
        ["check", "x"],
        ["check", "x", "--engine", "local"],
        ["check", "x", "--spark-remote", "sc://h:1"],
        ["check", "x", "--engine", "spark", "--help"],
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
        *"-m shaketable "*) echo "java=$JAVA_HOME" ;;
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
        """case "$*" in *"-m pip install"*)
        echo x >>"${0%/.venv/*}/pips"
        while [ ! -e "${0%/.venv/*}/go" ]; do sleep 0.05; done ;;
        esac""",
    )
    give_python(machine)
    (machine / ".venv" / "installed-base").write_text("old\n")
    command = [SHELL, str(machine / "shaketable"), "list"]
    env = {"PATH": str(machine.parent / "bin")}
    first = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    while not pips(machine):  # a hang fails by the test's timeout
        time.sleep(0.02)
    second = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    assert second.stderr
    assert "waiting for it" in second.stderr.readline()
    (machine / "go").touch()
    said = [process.communicate(timeout=60)[1] for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0]
    assert pips(machine) == "x\n"
    assert "waiting" not in said[0]
    assert said[1] == ""


def test_help_of_test_needs_no_installation(machine: Path) -> None:
    done = start(machine, "test", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: shaketable test")


def test_test_install_only_installs(machine: Path) -> None:
    finished_venv(machine, f'case "$*" in {NOTE_PIP} *pytest*) echo tested ;; esac')
    give_python(machine)
    done = start(machine, "test", "--install")
    assert (done.returncode, done.stdout) == (0, "")
    assert pips(machine) == f"{machine}[test]\n"
    done = start(machine, "test", "--install", "tests/cli")
    assert done.returncode == 254
    assert "takes no other words" in done.stderr
