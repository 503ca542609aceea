"""Help and messages call the program by the name that it was called by."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shaketable.harness.contracts.program import _called


@pytest.mark.parametrize(
    ("variable", "first_argument", "words"),
    [
        ("./shaketable", "/checkout/src/shaketable/__main__.py", ("./shaketable",)),
        ("", "/site-packages/shaketable/__main__.py", ("python", "-m", "shaketable")),
        ("", "/venv/bin/shaketable", ("shaketable",)),
        ("", "/venv/bin/pytest", ("shaketable",)),  # a library has no name of its own
    ],
)
def test_the_program_is_called_as_it_was(variable, first_argument, words) -> None:
    assert _called(variable, first_argument) == words


@pytest.mark.parametrize("arguments", [("check",), ("check", "--help"), ("--help",)], ids=" ".join)
@pytest.mark.parametrize("name", ["", "./shaketable", "/opt/my tools/shaketable"])
def test_help_and_messages_say_the_name(arguments, name) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shaketable", *arguments],
        env={**os.environ, "SHAKETABLE_PROGRAM": name, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    shown = {"": "python -m shaketable", "/opt/my tools/shaketable": "'/opt/my tools/shaketable'"}
    assert shown.get(name, name) in said
    assert ("./shaketable" in said) == (name == "./shaketable")
