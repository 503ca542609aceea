"""Report errors: one line on stderr, and the matching exit code."""

from __future__ import annotations

import os
import sys

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.untrusted_text import printable

_lost: list[str] = []


def note_stdout_failure(error: OSError) -> None:
    """Remember that a write to stdout failed; the command continues."""
    _lost.append(error.strerror or str(error))


def take_stdout_failure() -> str | None:
    """Return and clear why a write to stdout failed; None if none did."""
    why = _lost[0] if _lost else None
    _lost.clear()
    return why


def print_error(what: object, code: ExitCode) -> int:
    """Print an error as one line on stderr; return the exit code."""
    try:
        print(f"shaketable: {one_line(what)}", file=sys.stderr, flush=True)  # noqa: T201 - this is the CLI
    except OSError:  # stderr is closed: the exit code still reports it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return code


def print_harness_error(error: UsageError | HarnessError) -> int:
    """Print an error as one line on stderr; return its exit code."""
    return print_error(error, ExitCode.USAGE if isinstance(error, UsageError) else ExitCode.HARNESS)


def one_line(text: object) -> str:
    """Return a text as one line that is safe to print on a terminal."""
    return printable(" ".join(str(text).split()))
