"""The command `gate`: an exit code for stored runs by a policy, and the files that CI shows."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.text import Text

from shaketable.harness.errors import HarnessError, UsageError
from shaketable.harness.printable import printable
from shaketable.harness.telling import tell_error
from shaketable.harness.terminal import gate_files, output
from shaketable.harness.terminal.gate_files import GateOptions
from shaketable.harness.terminal.grid import show_rows
from shaketable.harness.terminal.output import Output
from shaketable.harness.verdict import ExitCode, worst_exit
from shaketable.reports.gating.model import GateResult, Ruling, RunRulings
from shaketable.reports.gating.policy import Policy

STYLES: Final[Mapping[int, str]] = {
    ExitCode.VALID: "bold green",
    ExitCode.INVALID: "bold red",
    ExitCode.UNKNOWN: "bold yellow",
}
NAMES: Final[Mapping[int, str]] = {
    ExitCode.VALID: "PASSED",
    ExitCode.INVALID: "FAILED",
    ExitCode.UNKNOWN: "UNKNOWN",
}
"""Exit codes in a word; all others are an error of the harness."""
ERROR: Final = "ERROR"
CHARS_MAX: Final = 300
"""Longer messages are cut on the terminal; the files have them whole."""
NOTES_MAX: Final = 10
RUNS_MAX: Final = 20
"""Runs of which the terminal tells; the files tell of all."""


def gate(*runs: Annotated[Path, Parameter(name="RUN")], options: GateOptions | None = None) -> int:
    """Tell CI whether stored runs are good enough: an exit code by a policy.

    RUN is the folder of a run or of a matrix, or a file of `check --json` or `simulate --table
    --json`. An invalid run always fails, and so do unknown and vacuous unless a policy allows
    them.

    Exit codes: 0 all holds, 1 a promise is broken or a ceiling exceeded, 2 not shown (unknown,
    vacuous, a floor missed, a number missing), 254 bad usage, 255 a run has no verdict as its
    harness failed.

    For example:
    ./shaketable gate store/latest
    ./shaketable gate store/latest --policy gate.toml --junit gate.xml
    ./shaketable gate store/matrix-every-fault/latest

    Args:
        runs: Folders of runs or matrices, or files that `check` or `simulate` wrote.
        options: What the command line says about the gate.
    """
    from shaketable.harness.gating import policy_file, reading  # noqa: PLC0415 - half a second, for others
    from shaketable.reports.gating.decide import decide  # noqa: PLC0415 - as above

    given = options or GateOptions()
    if not runs:
        raise UsageError("gate takes the RUN to judge; see ./shaketable gate --help")
    gate_files.require_writable(given, runs)
    today = datetime.now(UTC).date()
    policy = Policy() if given.policy is None else policy_file.load(given.policy, today)
    result = decide(policy, reading.read(runs, policy), today)
    codes = [
        result.code,
        *gate_files.write(result, given, importlib.metadata.version("shaketable")),
    ]
    named = "the default policy" if given.policy is None else str(given.policy)
    try:
        with gate_files.told_to_github(output.out, os.environ) as tell_github:
            _show(output.out, result, named)
            tell_github(result)
    except HarnessError as error:
        codes.append(tell_error(error))
    return worst_exit(codes)


def _show(out: Output, result: GateResult, policy: str) -> None:
    """Print what the gate came to: what fails it, run by run, then what it let pass."""
    name = NAMES.get(result.code, ERROR)
    verdict = Text(name, style=STYLES.get(result.code, "bold red"))
    verdict.append(f"  {_heading(result, policy)}", style="not bold default")
    out.print(verdict)
    alike: dict[tuple[tuple[str, str], ...], list[RunRulings]] = {}
    for run in result.runs:
        if told := _told(run):
            alike.setdefault(tuple((one.rule, one.message) for one in told), []).append(run)
    for runs in list(alike.values())[:RUNS_MAX]:
        _show_runs(out, runs)
    if (more := len(alike) - RUNS_MAX) > 0:
        out.print(Text(f"\n  and {more} more like these; files of results have all", style="dim"))
    if breaches := [ruling for ruling in result.overall if not ruling.holds]:
        out.print(Text("\n  all runs together", style="bold"))
        _show_rulings(out, breaches)
    lines = [("left out", printable(f"{one.name}: {one.skipped}")) for one in result.skipped]
    lines = lines[:NOTES_MAX]
    if (more := len(result.skipped) - NOTES_MAX) > 0:
        lines.append(("", f"and {more} more were left out"))
    lines += [("note", printable(note)) for note in result.notes[:NOTES_MAX]]
    if lines:
        out.print()
        show_rows(out, lines, "dim")


def _told(run: RunRulings) -> list[Ruling]:
    """What is worth a line: what does not hold, and what is let pass."""
    return [ruling for ruling in run.rulings if not ruling.holds or ruling.allowed is not None]


def _heading(result: GateResult, policy: str) -> str:
    runs = "1 run" if len(result.runs) == 1 else f"{len(result.runs)} runs"
    failed = sum(run.code != ExitCode.VALID for run in result.runs)
    rules = sum(len(run.rulings) for run in result.runs) + len(result.overall)
    if result.code == ExitCode.VALID:
        return printable(f"{runs}, {rules} rules, by {policy}")
    return printable(f"{len(result.breaches)} of {rules} rules, {failed} of {runs}, by {policy}")


def _show_runs(out: Output, runs: Sequence[RunRulings]) -> None:
    """Print what is said of a run, and which others the same is said of."""
    first = runs[0]
    out.print()
    title = Text(printable(f"  {first.facts.name}"), style="bold")
    if len(runs) > 1:
        title.append(f" and {len(runs) - 1} more", style="not bold")
    if first.facts.mutant is not None:
        title.append(printable(f"  with the planted bug {first.facts.mutant}"), style="not bold")
    out.print(title, soft_wrap=True)
    _show_rulings(out, _told(first))
    if first.breaches and first.facts.report:
        shown = Text("    report  ", style="dim").append(printable(first.facts.report), "not dim")
        out.print(shown, soft_wrap=True)


def _show_rulings(out: Output, rulings: Sequence[Ruling]) -> None:
    rows = [(f"  {printable(ruling.rule)}", _text(ruling)) for ruling in rulings]
    show_rows(out, rows)


def _text(ruling: Ruling) -> Text:
    said = printable(ruling.message)
    text = Text(said if len(said) <= CHARS_MAX else f"{said[: CHARS_MAX - 1]}…")
    if ruling.allowed is not None:
        text.append(
            printable(f"; allowed until {ruling.allowed.until}: {ruling.allowed.reason}"), "yellow"
        )
    return text
