"""Tells what went wrong: one line on stderr, and the exit code that goes with it."""

from __future__ import annotations

import os
import sys

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.printable import printable

_lost: list[str] = []


def note_stdout_failure(error: OSError) -> None:
    """Note that something could not be written to stdout; the command goes on."""
    _lost.append(error.strerror or str(error))


def take_stdout_failure() -> str | None:
    """Say why something was not written to stdout, and forget it; None if all was."""
    why = _lost[0] if _lost else None
    _lost.clear()
    return why


def print_error(what: object, code: ExitCode) -> int:
    """Say what went wrong in one line on stderr; return the exit code."""
    try:
        print(f"shaketable: {one_line(what)}", file=sys.stderr, flush=True)  # noqa: T201 - this is the CLI
    except OSError:  # nobody listens there: the exit code stands
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return code


def print_harness_error(error: UsageError | HarnessError) -> int:
    """Say an error in one line on stderr; return its exit code."""
    return print_error(error, ExitCode.USAGE if isinstance(error, UsageError) else ExitCode.HARNESS)


def one_line(text: object) -> str:
    """Return what was said as one line that harms no terminal."""
    return printable(" ".join(str(text).split()))
