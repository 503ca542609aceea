"""The table of a matrix in the terminal: worlds side by side, each cell in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shaketable.harness.matrix.plan import Plan
from shaketable.reports.matrix_page.model import MatrixCell, MatrixView

STYLES: Final[Mapping[str, str]] = {
    "VALID": "green",
    "INVALID": "bold red",
    "UNKNOWN": "bold yellow",
    "ERROR": "bold magenta",
    "OPEN": "cyan",
    "SKIPPED": "dim",
}
WORDS: Final = {"SKIPPED": "not here", "OPEN": "not run"}
ENDS: Final = {"OPEN": "NOT DONE"}
"""What the whole is called, where it is not what one cell is called."""
WHY_CHARS_MAX: Final = 300


def show_heading(console: Console, plan: Plan, todo: int, jobs: int, folder: str) -> None:
    """Say what is about to be run."""
    runnable = sum(not cell.skipped for cell in plan.cells)
    text = Text("shaketable", style="bold")
    facts = [f"matrix {plan.name}", f"{todo} of {runnable} cells to run"]
    if len(plan.cells) > runnable:
        facts.append(f"{len(plan.cells) - runnable} not possible here")
    facts.append(f"{jobs} at once")
    text.append(f"  {' · '.join(facts)}", style="not bold default")
    console.print(text, soft_wrap=True)
    console.print(Text(folder, style="dim"), soft_wrap=True)


def show(console: Console, view: MatrixView, page: str) -> None:
    """Print the table, what is not valid with its reason, and what could not be run."""
    console.print()
    rows = Table(
        box=None, padding=(0, 2, 0, 0), header_style="bold", show_edge=False, pad_edge=False
    )
    rows.add_column(view.row_head, overflow="fold")
    for world in view.columns:
        rows.add_column(world, no_wrap=True)
    family = None
    for row in view.rows:
        if family is not None and row.family != family:
            rows.add_row()
        family = row.family
        rows.add_row(row.label, *(_cell_text(cell) for cell in row.cells))
    _print(console, rows)
    cells = [cell for row in view.rows for cell in row.cells if cell is not None]
    _show_troubles(console, cells, folder=page.rpartition("/")[0])
    _show_partly(console, cells)
    _show_skipped(console, view)
    counts = ", ".join(f"{count} {WORDS.get(name, name)}" for name, count in view.counts)
    console.print()
    verdict = Text(ENDS.get(view.verdict, view.verdict), style=STYLES.get(view.verdict, "bold"))
    verdict.append(f"  {counts}", style="not bold default")
    console.print(verdict, highlight=False)
    console.print(Text(page), soft_wrap=True, highlight=False)


def _cell_text(cell: MatrixCell | None) -> Text:
    """A cell in at most 22 signs: "10/10  0.41 s  VALID"."""
    if cell is None:
        return Text("")
    word = Text(WORDS.get(cell.verdict, cell.verdict), style=STYLES.get(cell.verdict, ""))
    if cell.verdict in WORDS:
        return word
    again = f" ({len(cell.attempts)})" if len(cell.attempts) > 1 else ""
    part = " in part" if cell.lacking else ""
    return Text.assemble(f"{cell.bit:>5} {cell.recovery:>7} ", word, again, part)


def _show_troubles(console: Console, cells: Iterable[MatrixCell], folder: str) -> None:
    """Say of each cell that is not valid why, and where its report or its output is."""
    for cell in cells:
        if cell.verdict in ("VALID", *WORDS):
            continue
        line = Text(f"\n{cell.id}  ")
        line.append(cell.verdict, style=STYLES.get(cell.verdict, ""))
        console.print(line, highlight=False)
        why = cell.why if len(cell.why) <= WHY_CHARS_MAX else f"{cell.why[: WHY_CHARS_MAX - 1]}…"
        console.print(Text(f"  {why}"), highlight=False)
        for attempt in cell.attempts:
            where = f"{folder}/{attempt.report or attempt.output}"
            told = f"  {attempt.verdict:<8} {where}"
            console.print(Text(told, style="dim"), soft_wrap=True, highlight=False)


def _show_partly(console: Console, cells: Iterable[MatrixCell]) -> None:
    """Say which cells were run without some of their faults, once for each fault and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        for lacking in cell.lacking:
            reasons.setdefault(lacking, []).append(cell.id)
    for (fault, why), ids in reasons.items():
        text = Text(f"\nin part, without {fault}: {', '.join(ids)}\n")
        text.append(f"  {why}", style="dim")
        console.print(text, highlight=False)


def _show_skipped(console: Console, view: MatrixView) -> None:
    """Say why cells were not run, once for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in view.rows:
        for world, cell in zip(view.columns, row.cells, strict=True):
            if cell is not None and cell.verdict == "SKIPPED":
                reasons.setdefault((world, cell.why), []).append(row.label)
    for (world, why), labels in reasons.items():
        text = Text(f"\nnot on {world}: {', '.join(labels)}\n")
        text.append(f"  {why}", style="dim")
        console.print(text, highlight=False)


def _print(console: Console, rows: Table) -> None:
    """Print a table; without a terminal no spaces at the ends of its lines."""
    if console.is_terminal:
        console.print(rows, highlight=False)
        return
    with console.capture() as captured:
        console.print(rows, highlight=False)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)
