"""Where a gate's results go beside the terminal: files, and what GitHub's runner shows."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Group, Parameter

from shaketable.harness.errors import HarnessError, UsageError
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.telling import tell_error
from shaketable.harness.terminal.output import Output
from shaketable.reports.gating.model import GateResult

OUTPUT: Final = Group("Where results go", sort_key=2)
STEP_SUMMARY: Final = "GITHUB_STEP_SUMMARY"
ACTIONS: Final = "GITHUB_ACTIONS"
"""What GitHub's runner sets: the file of the step's summary, and "true" for where it runs."""


def _option() -> Parameter:
    return Parameter(group=OUTPUT, metavar="FILE", show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What the command line says about a gate.

    Attributes:
        policy: A policy file (docs/gate.md); default: each run valid, and its faults bit.
        junit: Write JUnit XML there, a test case for each rule on each run.
        sarif: Write SARIF 2.1.0 there, for code scanning.
        markdown: Write Markdown there; GitHub's step summary gets it in any case.
    """

    policy: Annotated[Path | None, Parameter(metavar="FILE", show_default=False)] = None
    junit: Annotated[Path | None, _option()] = None
    sarif: Annotated[Path | None, _option()] = None
    markdown: Annotated[Path | None, _option()] = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that are to be written."""
        return tuple(path for path in (self.junit, self.sarif, self.markdown) if path is not None)


def require_elsewhere(path: Path, runs: Sequence[Path]) -> None:
    """Refuse to write a result among the files that it is about: they are evidence.

    Raises:
        UsageError: one line.
    """
    for run in runs:
        if run.is_dir() and path.resolve().is_relative_to(run.resolve()):
            raise UsageError(f"{path}: lies in {run}, which is judged; write it somewhere else")


def require_writable(options: GateOptions, runs: Sequence[Path]) -> None:
    """Notice before anything is read that a result could not be written, or would destroy another.

    Raises:
        UsageError: one line.
    """
    taken = {path.resolve() for path in (*runs, options.policy) if path is not None}
    for path in options.files:
        if path.is_dir():
            raise UsageError(f"{path}: a folder; give the name of a file in it")
        if not path.parent.is_dir():
            raise UsageError(f"{path}: no folder {path.parent}")
        if not os.access(path.parent, os.W_OK):
            raise UsageError(f"{path}: nothing can be written to the folder {path.parent}")
        require_elsewhere(path, runs)
        if path.resolve() in taken:
            raise UsageError(f"{path}: given twice: a result would be written over another file")
        taken.add(path.resolve())


def write(result: GateResult, options: GateOptions, version: str) -> list[int]:
    """Write what was asked for, each file though another could not be; return exit codes."""
    from shaketable.reports.gating import junit, markdown, sarif  # noqa: PLC0415 - only where asked for

    renderers: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (options.junit, lambda: junit.render(result)),
        (options.sarif, lambda: sarif.render(result, version)),
        (options.markdown, lambda: markdown.render(result)),
    )
    codes: list[int] = []
    for path, render in renderers:
        if path is None:
            continue
        try:
            write_atomically(path, render().encode(errors="replace"))
        except HarnessError as error:
            codes.append(tell_error(error))
    return codes


@contextmanager
def told_to_github(
    out: Output, environ: Mapping[str, str]
) -> Iterator[Callable[[GateResult], None]]:
    """In a job of GitHub: let nothing that is printed in `with` be taken for a command of it.

    Yields what tells it a result: annotations, and the step's summary.
    """
    if environ.get(ACTIONS) != "true":
        yield lambda result: _summarise(result, environ)
        return
    token = secrets.token_hex(16)
    told: list[GateResult] = []
    out.write(f"::stop-commands::{token}\n")
    try:
        yield told.append
    finally:
        out.write(f"::{token}::\n")
    for result in told:
        from shaketable.reports.gating import annotations  # noqa: PLC0415 - as above

        for line in annotations.render(result):
            out.write(f"{line}\n")
        _summarise(result, environ)


def _summarise(result: GateResult, environ: Mapping[str, str]) -> None:
    """Append to the step's summary, where there is one, what still fits.

    Raises:
        HarnessError: it cannot be written.
    """
    if not (name := environ.get(STEP_SUMMARY)):
        return
    from shaketable.reports.gating import markdown  # noqa: PLC0415 - as above

    try:
        with Path(name).open("ab") as file:
            left = markdown.SUMMARY_BYTES_MAX - file.tell()
            file.write(markdown.render(result, max(0, left)).encode(errors="replace"))
    except OSError as error:
        raise HarnessError(f"cannot write ${STEP_SUMMARY} {name}: {error.strerror}") from error
