"""The list of commands names what there is, and shows it without loading it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest
from cyclopts import App

from shaketable.harness.cli import run
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.terminal.commands import COMMANDS, Command, app

HEAVY = (
    *("pyarrow", "numba", "pyspark", "trio"),
    *("shaketable.harness.judging.judge", "shaketable.reports", "shaketable.system"),
)
SHOW_AND_TELL = """
import sys
from shaketable.harness.cli import run
assert run(["--help"]) == 0
print("loaded:", *sorted(sys.modules))
"""


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_is_there_and_its_summary_begins_its_help(command: Command) -> None:
    found = app[command.name]
    assert isinstance(found, App)
    first = (inspect.getdoc(found.default_command) or "").partition("\n\n")[0]
    assert " ".join(first.split()) == command.summary


def test_who_asks_what_there_is_waits_for_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW_AND_TELL], capture_output=True, text=True, check=True
    )
    shown, _, loaded = done.stdout.partition("loaded: ")
    assert all(f"  {command.name}" in shown for command in COMMANDS)
    assert not [name for name in HEAVY if name in loaded.split()]


@pytest.mark.parametrize(("typed", "told"), [("rnu", 'Did you mean "run"?'), ("zzz", '"zzz";')])
def test_a_mistyped_command_is_one_line_that_helps(
    typed: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([typed]) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert line.lower().endswith("see ./shaketable --help")
    assert "?;" not in line
    assert "Available" not in line


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["simulate", "--seed", "abc"], "simulate --help"),
        (["run", "--nonsense"], "run --help"),
        (["--nonsense"], "--help"),
    ],
)
def test_who_mistypes_an_option_is_sent_to_the_help_of_its_command(
    typed: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.lower().endswith(f"see ./shaketable {told}")


def test_an_argument_too_many_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "here"]) == ExitCode.USAGE
    said = "shaketable: unexpected argument here; see ./shaketable serve --help\n"
    assert capsys.readouterr().err == said


BEFORE = {
    "shaketable.harness.terminal.session": ("shaketable.reports.run_view", "bokeh", "pyspark"),
    "shaketable": ("shaketable.harness", "numpy", "importlib.metadata"),
    "shaketable.harness.terminal.commands": ("importlib.metadata", "shaketable.harness.described"),
    "shaketable.harness.terminal.histories.check": (
        "trio",
        "bokeh",
        "shaketable.harness.judging.judge",
    ),
    "shaketable.harness.terminal.matrix": ("shaketable.reports.run_view", "pyarrow", "bokeh"),
    "shaketable.harness.runtime.supervisor": ("pyarrow", "numba", "pyroute2", "shaketable.system"),
    "shaketable.harness.runtime.clients.worker": ("pyarrow", "numba", "shaketable.system"),
    "shaketable.harness.targets.async_replication": ("numba", "shaketable.system.sim.world"),
}
"""What is loaded where something begins, and what is not: it is needed later, or elsewhere."""


@pytest.mark.parametrize("module", BEFORE)
def test_what_is_needed_late_is_loaded_late(module: str) -> None:
    program = f"import sys, {module}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert module in loaded
    assert not loaded.intersection(BEFORE[module])


def test_help_fills_its_lines() -> None:
    """Where a docstring's line ends is nothing to its reader."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shaketable", "new", "--help"],
        env=os.environ | {"COLUMNS": "400"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = "with placeholders such as {id}, {client}, {peer}, {members} and {data} (docs/"
    assert told in done.stdout
