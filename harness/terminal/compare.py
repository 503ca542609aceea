"""The command `compare`: compare two stored runs."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from rich.text import Text

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.terminal import output
from shaketable.harness.terminal.gate import require_elsewhere
from shaketable.harness.terminal.output import show_rows
from shaketable.harness.untrusted_text import printable

if TYPE_CHECKING:
    from shaketable.reports.comparing.comparison import Comparison, Difference

STYLES: Final = {"worse": "bold red", "better": "bold green", "same": "dim", "unsure": "dim"}
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
    return STYLES["same"] if judgement not in STYLES else STYLES[judgement]


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
