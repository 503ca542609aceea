"""The commands `gate` and `compare`: stored runs by a policy, or two of them side by side.

A gate is an exit code, and result files for CI.
"""

from __future__ import annotations

import importlib.metadata
import json as json_format
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Group, Parameter
from rich.text import Text

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import ExitCode, worst_exit
from shaketable.harness.error_output import print_harness_error
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.terminal import output
from shaketable.harness.terminal.output import Output, show_rows
from shaketable.harness.untrusted_text import printable
from shaketable.reports.gating.policy import Policy
from shaketable.reports.gating.rulings import GateResult, Ruling, RunRulings, decide

if TYPE_CHECKING:
    from shaketable.reports.comparing.comparison import Comparison, Difference


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
"""Labels of exit codes; any other code is an error of the harness."""
ERROR: Final = "ERROR"
CHARS_MAX: Final = 300
"""Longer messages are cut on the terminal, not in the files."""
NOTES_MAX: Final = 10
RUNS_MAX: Final = 20
"""Most runs shown on the terminal; the files have all."""


def gate(*runs: Annotated[Path, Parameter(name="RUN")], options: GateOptions | None = None) -> int:
    """Gate CI on stored runs: a policy decides the exit code.

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
    from shaketable.harness import gating  # noqa: PLC0415 - half a second, for others

    given = options or GateOptions()
    if not runs:
        raise UsageError(f"gate takes the RUN to judge; see {PROGRAM} gate --help")
    require_writable(given, runs)
    today = datetime.now(UTC).date()
    policy = Policy() if given.policy is None else gating.load_policy(given.policy, today)
    result = decide(policy, gating.read(runs, policy), today)
    codes = [
        result.code,
        *write_files(result, given, importlib.metadata.version("shaketable")),
    ]
    named = "the default policy" if given.policy is None else str(given.policy)
    try:
        with github_job_output(output.out, os.environ) as write_to_github:
            _show(output.out, result, named)
            write_to_github(result)
    except HarnessError as error:
        codes.append(print_harness_error(error))
    return worst_exit(codes)


def _show(out: Output, result: GateResult, policy: str) -> None:
    """Print the gate's result: failed rules run by run, then what was left out, and notes."""
    name = NAMES.get(result.code, ERROR)
    verdict = Text(name, style=STYLES.get(result.code, "bold red"))
    verdict.append(f"  {_heading(result, policy)}", style="not bold default")
    out.print(verdict)
    alike: dict[tuple[tuple[str, str], ...], list[RunRulings]] = {}
    for run in result.runs:
        if rulings := _noteworthy(run):
            alike.setdefault(tuple((one.rule, one.message) for one in rulings), []).append(run)
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


def _noteworthy(run: RunRulings) -> list[Ruling]:
    """Return the rulings worth a line: broken rules, and allowed ones."""
    return [ruling for ruling in run.rulings if not ruling.holds or ruling.allowed is not None]


def _heading(result: GateResult, policy: str) -> str:
    runs = "1 run" if len(result.runs) == 1 else f"{len(result.runs)} runs"
    failed = sum(run.code != ExitCode.VALID for run in result.runs)
    rules = sum(len(run.rulings) for run in result.runs) + len(result.overall)
    if result.code == ExitCode.VALID:
        return printable(f"{runs}, {rules} rules, by {policy}")
    return printable(f"{len(result.breaches)} of {rules} rules, {failed} of {runs}, by {policy}")


def _show_runs(out: Output, runs: Sequence[RunRulings]) -> None:
    """Print the rulings of a run, and how many other runs have the same."""
    first = runs[0]
    out.print()
    title = Text(printable(f"  {first.facts.name}"), style="bold")
    if len(runs) > 1:
        title.append(f" and {len(runs) - 1} more", style="not bold")
    if first.facts.mutant is not None:
        title.append(printable(f"  with the planted bug {first.facts.mutant}"), style="not bold")
    out.print(title, soft_wrap=True)
    _show_rulings(out, _noteworthy(first))
    if first.breaches and first.facts.report:
        shown = Text("    report  ", style="dim").append(printable(first.facts.report), "not dim")
        out.print(shown, soft_wrap=True)


def _show_rulings(out: Output, rulings: Sequence[Ruling]) -> None:
    rows = [(f"  {printable(ruling.rule)}", _text(ruling)) for ruling in rulings]
    show_rows(out, rows)


def _text(ruling: Ruling) -> Text:
    message = printable(ruling.message)
    text = Text(message if len(message) <= CHARS_MAX else f"{message[: CHARS_MAX - 1]}…")
    if ruling.allowed is not None:
        text.append(
            printable(f"; allowed until {ruling.allowed.until}: {ruling.allowed.reason}"), "yellow"
        )
    return text


# Outputs of a gate besides the terminal: files, and GitHub annotations and step summary.

OUTPUT: Final = Group("Where results go", sort_key=2)
STEP_SUMMARY: Final = "GITHUB_STEP_SUMMARY"
ACTIONS: Final = "GITHUB_ACTIONS"
"""Variables of GitHub's runner: the file of the step summary, and "true" in a job."""


def _option() -> Parameter:
    return Parameter(group=OUTPUT, metavar="FILE", show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What the command line says about a gate.

    Attributes:
        policy: A policy file (docs/gate.md); default: each run valid, and its faults took effect.
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
        """The result files to write."""
        return tuple(path for path in (self.junit, self.sarif, self.markdown) if path is not None)


def require_elsewhere(path: Path, runs: Sequence[Path]) -> None:
    """Refuse to write a result into a judged run's folder, which is evidence.

    Raises:
        UsageError: one line.
    """
    for run in runs:
        if run.is_dir() and path.resolve().is_relative_to(run.resolve()):
            raise UsageError(f"{path}: lies in {run}, which is judged; write it somewhere else")


def require_writable(options: GateOptions, runs: Sequence[Path]) -> None:
    """Check first that all results can be written and overwrite no other file.

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


def write_files(result: GateResult, options: GateOptions, version: str) -> list[int]:
    """Write the requested files, each even if another fails; return the exit codes of failures."""
    from shaketable.reports import junit  # noqa: PLC0415 - only where asked for
    from shaketable.reports.gating import formats  # noqa: PLC0415 - only where asked for

    renderers: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (options.junit, lambda: junit.render_gate(result)),
        (options.sarif, lambda: formats.render_sarif(result, version)),
        (options.markdown, lambda: formats.render_markdown(result)),
    )
    codes: list[int] = []
    for path, render in renderers:
        if path is None:
            continue
        try:
            write_atomically(path, render().encode(errors="replace"))
        except HarnessError as error:
            codes.append(print_harness_error(error))
    return codes


@contextmanager
def github_job_output(
    out: Output, environ: Mapping[str, str]
) -> Iterator[Callable[[GateResult], None]]:
    """In a GitHub job, keep the runner from parsing commands out of what the body of `with` prints.

    Yields a function that reports a result to GitHub: by annotations, and in the step's summary.
    """
    if environ.get(ACTIONS) != "true":
        yield lambda result: _summarise(result, environ)
        return
    token = secrets.token_hex(16)
    results: list[GateResult] = []
    out.write(f"::stop-commands::{token}\n")
    try:
        yield results.append
    finally:
        out.write(f"::{token}::\n")
    for result in results:
        from shaketable.reports.gating import formats  # noqa: PLC0415 - as above

        for line in formats.render_annotations(result):
            out.write(f"{line}\n")
        _summarise(result, environ)


def _summarise(result: GateResult, environ: Mapping[str, str]) -> None:
    """Append to the step's summary, if there is one, as much as fits.

    Raises:
        HarnessError: it cannot be written.
    """
    if not (name := environ.get(STEP_SUMMARY)):
        return
    from shaketable.reports.gating import formats  # noqa: PLC0415 - as above

    try:
        with Path(name).open("ab") as file:
            left = formats.SUMMARY_BYTES_MAX - file.tell()
            file.write(formats.render_markdown(result, max(0, left)).encode(errors="replace"))
    except OSError as error:
        raise HarnessError(f"cannot write ${STEP_SUMMARY} {name}: {error.strerror}") from error


# Two runs side by side.

DIFFERENCE_STYLES: Final = {
    "worse": "bold red",
    "better": "bold green",
    "same": "dim",
    "unsure": "dim",
}
ERRORS_SHOWN: Final = 4
VALUE_WIDTH: Final = 9
NONE: Final = "none"
NOTES_SHOWN: Final = 6


def compare(
    a: Annotated[Path, Parameter(name="A")],
    b: Annotated[Path, Parameter(name="B")],
    /,
    *,
    html: Annotated[Path | None, Parameter(metavar="FILE", show_default=False)] = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Compare two runs: what got worse from A to B, by how much, and how sure is that?

    Time without faults is compared with time without faults, and time under a fault with time under
    the same fault. A difference is reported only if it is large and significant (docs/store.md).
    Exit codes: 0 nothing got worse, 1 something did, 2 too little was measured to tell.

    For example:
    ./shaketable compare store/quick/20261122T101500.000Z store/latest

    Args:
        a: Folder of the run to compare with: the older one, or the healthy one.
        b: Folder of the run in question.
        html: Write a page there as well.
        json: Print everything as JSON, for programs.
    """
    from shaketable.reports.comparing.page import (  # noqa: PLC0415 - half a second, for others
        compare_folders,
        render_comparison,
        to_json,
    )

    folders = [run_folder.open_existing(path) for path in (a, b)]
    if html is not None and html.is_dir():
        raise UsageError(f"--html {html}: a folder; give the name of a file")
    if html is not None and not html.resolve().parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {html.parent} to write it to")
    if html is not None:
        require_elsewhere(html, [folder.path for folder in folders])
    compared = compare_folders(*(folder.path for folder in folders))
    if html is not None:
        write_atomically(html, render_comparison(compared))
    if json:
        output.out.write(json_format.dumps(to_json(compared), indent=1, allow_nan=False) + "\n")
    else:
        show(compared, None if html is None else output.shown(html))
    return exit_code(compared)


def exit_code(compared: Comparison) -> int:
    """Return the exit code: whether anything got worse."""
    if compared.worse:
        return ExitCode.INVALID
    return ExitCode.VALID if compared.is_conclusive else ExitCode.UNKNOWN


def show(compared: Comparison, page: str | None) -> None:
    """Print a comparison: the differences first, then the numbers of both."""
    from shaketable.reports.comparing import comparison  # noqa: PLC0415 - see above

    out = output.out
    verdict = "worse" if compared.worse else "better" if compared.better else "same"
    line = Text(verdict.upper() if verdict != "same" else "ALIKE", style=_style(verdict))
    if not compared.is_conclusive:
        line = Text("UNKNOWN", style="bold yellow")
    line.append(f"  {comparison.headline(compared)}", style="not bold default")
    out.print(line)
    out.print()
    show_rows(out, [(letter, _run(compared, letter)) for letter in "AB"], "dim")
    if compared.worse or compared.better:
        out.print()
        show_rows(
            out, [_difference_row(each) for each in (*compared.worse, *compared.better)], "bold"
        )
    for heading, rows in (
        ("Numbers (A, B)", [_row(each) for each in compared.differences if _is_number(each)]),
        ("Ends of a thousand operations (A, B)", _errors(compared)),
        (
            "The campaigns differ (A; B)",
            [(n, f"{x or NONE}; {y or NONE}") for n, x, y in compared.settings],
        ),
    ):
        if rows:
            out.print()
            out.print(Text(heading, style="bold"))
            show_rows(out, [(printable(label), printable(text)) for label, text in rows], "dim")
    if compared.notes or page:
        out.print()
        notes = [("note", printable(note)) for note in compared.notes[:NOTES_SHOWN]]
        show_rows(out, [*notes, *([("page", page)] if page else [])], "dim")


def _difference_row(each: Difference) -> tuple[str, Text]:
    text = Text(printable(each.text))
    text.append(f"; {each.sure}", style="dim")
    return each.judgement, text


def _style(judgement: str) -> str:
    return (
        DIFFERENCE_STYLES["same"]
        if judgement not in DIFFERENCE_STYLES
        else DIFFERENCE_STYLES[judgement]
    )


def _run(compared: Comparison, letter: str) -> str:
    run = compared.a if letter == "A" else compared.b
    where = output.shown(Path(run.folder))
    return printable(f"{run.verdict}  {where}: {run.operations:,} operations")


def _is_number(each: Difference) -> bool:
    return each.what != "verdict" and (each.a is not None or each.b is not None)


def _row(each: Difference) -> tuple[str, str]:
    from shaketable.reports.comparing import comparison  # noqa: PLC0415 - see above
    from shaketable.reports.comparing.comparison import EVERYWHERE  # noqa: PLC0415 - see above

    values = _both(comparison.number(each.a, each.unit), comparison.number(each.b, each.unit))
    mark = f"  {each.judgement}" if each.judgement in ("worse", "better", "unsure") else ""
    return each.what if each.where == EVERYWHERE else f"{each.what} {each.where}", values + mark


def _errors(compared: Comparison) -> list[tuple[str, str]]:
    rows = [(f"{a:.1f}", f"{b:.1f}", text) for text, a, b in compared.errors[:ERRORS_SHOWN]]
    return [(f"{a:>6}  {b:>6}", text) for a, b, text in rows]


def _both(a: str, b: str) -> str:
    return f"{a or '-':>{VALUE_WIDTH}}  {b or '-':>{VALUE_WIDTH}}"
