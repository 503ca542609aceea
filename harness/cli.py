"""The entry point of the command line: run a command and map every outcome to an exit code.

Exit codes: 0 valid, 1 invalid, 2 unknown, 254 bad usage, 255 the harness failed or was
interrupted before a verdict. Every error is one line on stderr; the traceback of an unexpected
one goes to the run's shaketable.log, or to a file of its own.

Every client worker process imports this module again: keep its imports light.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from shaketable.harness.contracts.errors import HarnessError, NamespaceNeededError, UsageError
from shaketable.harness.contracts.program import version
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.error_output import (
    note_stdout_failure,
    one_line,
    print_error,
    print_harness_error,
    take_stdout_failure,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    _open_standard_files()
    given = sys.argv[1:] if arguments is None else arguments
    sys.exit(_flushed(run(given, otherwise=_start_in_namespace)))


def run(arguments: Sequence[str], otherwise: Callable[[Sequence[str]], int] | None = None) -> int:
    """Run one command; return its exit code. Never raises.

    `otherwise` is called for a command that needs a network namespace of its own.
    """
    try:
        return _command(arguments)
    except KeyboardInterrupt:
        return print_error("interrupted before a verdict", ExitCode.HARNESS)
    except BrokenPipeError:
        _leave_stdout()
        return ExitCode.HARNESS
    except NamespaceNeededError as error:
        return _one(error) if otherwise is None else otherwise(arguments)
    except BaseExceptionGroup as group:
        return _group(group)
    except Exception as error:
        return _one(error)


def _open_standard_files() -> None:
    """Open /dev/null for standard files that are closed: else our files would get their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            assert handle == number, f"{name} is closed and has no number of its own"
            setattr(sys, name, open(handle, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it is open already and stays open


def _flushed(code: int) -> int:
    """Flush stdout and return the code: a verdict that could not be printed is none."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_stdout()
    except OSError as error:
        _leave_stdout()
        note_stdout_failure(error)
    if (why := take_stdout_failure()) is not None:
        return print_error(f"cannot write to stdout: {why}", ExitCode.HARNESS)
    return code


def _leave_stdout() -> None:
    """Send stdout to /dev/null, also for the flush at the interpreter's exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _start_in_namespace(arguments: Sequence[str]) -> int:
    """Exec the same command in a network namespace of its own; return only on failure."""
    from shaketable.harness import namespaces  # noqa: PLC0415 - see the module's docstring

    sys.stdout.flush()
    argv = namespaces.new([sys.executable, "-P", "-m", "shaketable", *arguments])
    try:
        os.execv(argv[0], argv)  # noqa: S606 - our own command again
    except OSError as error:
        return print_error(f"cannot start again in a network namespace: {error}", ExitCode.HARNESS)


def _command(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--version"]:  # what finds commands takes half of the time
        try:
            sys.stdout.write(f"{version()}\n")
        except BrokenPipeError:  # where Python does not buffer; else `_flushed` meets it
            _leave_stdout()
        return ExitCode.VALID
    try:
        tempfile.gettempdir()  # the imports below need it, too
    except OSError as error:
        raise HarnessError("cannot write any temporary file; TMPDIR names their folder") from error
    from cyclopts.exceptions import (  # noqa: PLC0415 - see the module's docstring
        CycloptsError,
        UnusedCliTokensError,
    )

    from shaketable.harness.terminal.commands import app_for, help_of  # noqa: PLC0415

    try:
        result = app_for(arguments)(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        # cyclopts appends the first few commands that exist
        message = one_line(error).partition(" Available commands:")[0].rstrip(".")
        if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
            message = f"unexpected argument {error.unused_tokens[0]}"
        see = " See" if message.endswith("?") else "; see"
        raise UsageError(f"{message}{see} {help_of(arguments)}") from error
    return result if isinstance(result, int) else ExitCode.VALID


def _group(group: BaseExceptionGroup) -> int:
    """Print the most useful error of a group: first of all what the user can act on."""
    leaves = list(_leaves(group))
    for kind in (UsageError, HarnessError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return _one(leaf)
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return print_error("interrupted before a verdict", ExitCode.HARNESS)
    return _crash(group)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for inner in error.exceptions:
        yield from _leaves(inner)


def _one(error: BaseException) -> int:
    if isinstance(error, UsageError | HarnessError):
        return print_harness_error(error)
    return _crash(error)


def _crash(error: BaseException) -> int:
    leaf = next(_leaves(error))
    what = f"{type(leaf).__name__}: {leaf}"
    try:
        handle, name = tempfile.mkstemp(prefix="shaketable-", suffix=".traceback.log")
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - it is open already
            traceback.print_exception(error, file=file)
        where = f"traceback: {Path(name)}"
    except OSError as full:
        where = f"no traceback: {full.strerror}"
    return print_error(f"a fault of the harness: {what}; {where}", ExitCode.HARNESS)


if __name__ == "__main__":
    main()
