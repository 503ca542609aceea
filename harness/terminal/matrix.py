"""The command `matrix`: many campaigns from one file, and one table of their outcomes.

Source: ducktape (`--parallel`, `rerun-failed.yml`, `--deflake`).
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shaketable.harness.campaigns import built_in
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.error_output import print_error
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.matrix import folder as folders
from shaketable.harness.matrix import running
from shaketable.harness.matrix.folder import Journal, MatrixFolder, Outcome, pending
from shaketable.harness.matrix.plan import Plan
from shaketable.harness.matrix.running import (
    Queue,
    effects_text,
    launcher,
    read_outcome,
    recovery_text,
    verdict_of,
)
from shaketable.harness.terminal import completion, output
from shaketable.harness.terminal.output import Redrawn
from shaketable.reports.matrix_page import MatrixCell, MatrixView

JOBS_MAX: Final = 64
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def matrix(
    file: Annotated[
        Path | None,
        Parameter(name="FILE", show_default=False, completer=completion.one_of_or_file("matrices")),
    ] = None,
    /,
    *,
    jobs: Annotated[int, Parameter(metavar="N")] = 1,
    resume: Annotated[Path | None, Parameter(metavar="FOLDER", show_default=False)] = None,
    again: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    store: Annotated[Path, Parameter(metavar="FOLDER")] = Path("store"),
) -> int:
    """Run a campaign for each cell of a matrix of targets, workloads, faults, worlds, seeds.

    Ends with a table of all cells, and the worst of their exit codes. Ctrl-C ends it cleanly;
    `--resume` continues with the cells that are left.

    For example:
    ./shaketable matrix every-fault --jobs 2
    ./shaketable matrix --resume store/matrix-every-fault/latest --again

    Args:
        file: A matrix file, or the name of a built-in one (docs/campaigns.md).
        jobs: Runs at once; each takes about a core.
        resume: Folder of an interrupted matrix to continue, instead of a file.
        again: Run cells that were not valid once more; both results are kept.
        store: Where to create its folder.
    """
    if (file is None) == (resume is None):
        raise UsageError("matrix: give a matrix file, or --resume and the folder of one, not both")
    if not 1 <= jobs <= JOBS_MAX:
        raise UsageError(f"--jobs {jobs}: expected 1 to {JOBS_MAX}")
    if resume is not None:
        folder, plan = folders.open_existing(resume)
    else:
        assert file is not None, "one of them was given"
        folder, plan = _create(built_in.find(file, built_in.MATRICES, "matrix"), store)
    with Journal(folder.journal) as journal:
        return _run(folder, plan, journal, jobs, again=again, is_resumed=resume is not None)


def _create(file: Path, store: Path) -> tuple[MatrixFolder, Plan]:
    planned = running.load(file, output.out.print)
    folder = folders.create(store, planned.plan, planned.campaigns, file, datetime.now(UTC))
    return folder, planned.plan


def _run(
    folder: MatrixFolder, plan: Plan, journal: Journal, jobs: int, *, again: bool, is_resumed: bool
) -> int:
    """Run the remaining cells, show and write the outcomes; return the exit code."""
    from shaketable.reports.matrix_page import render_matrix  # noqa: PLC0415 - for those that run it

    ours = [cell.id for cell in plan.cells if not cell.skipped]
    todo = pending(ours, journal.attempts, again and is_resumed)
    shown = output.shown(folder.path)
    show_matrix_heading(output.out, plan, len(todo), jobs, shown)
    progress = make_progress(output.out, len(todo))

    def read(cell: str, attempt: int, code: int, took_s: float) -> Outcome:
        return read_outcome(folder, cell, attempt, code, took_s, plan.effects_min)

    queue = Queue(journal, launcher(folder), read, progress)
    with _ends_on_signals(queue):
        with progress.shown():
            is_done = queue.run(todo, jobs)
        if is_done and again and not is_resumed:
            failed = pending(todo, journal.attempts, again=True)
            progress = queue.watcher = make_progress(output.out, len(failed))
            with progress.shown():
                is_done = queue.run(failed, jobs)
    resume = f"{PROGRAM} matrix --resume {shown}"
    view = running.view(plan, journal.attempts, resume)
    text = json.dumps(running.to_json(plan, journal.attempts), indent=1)
    write_atomically(folder.results_json, text + "\n")
    write_atomically(folder.page, render_matrix(view))
    show_matrix(output.out, view, output.shown(folder.page))
    if not is_done:
        return print_error(f"interrupted; to go on: {resume}", ExitCode.HARNESS)
    return running.exit_code(plan, journal.attempts)


@contextmanager
def _ends_on_signals(queue: Queue) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end the queue in order for the body of `with`."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        queue.end()

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The progress of a matrix: a bar and the running cells on a terminal, and a line per ended cell.

BAR_WIDTH: Final = 36
WHY_LINE_CHARS_MAX: Final = 120


class MatrixProgress:
    """Tracks a queue of `total` cells, and prints a line for each that ends."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.total = total
        self.done = 0
        self.verdicts: Counter[str] = Counter()
        self.running: dict[str, float] = {}
        self.began_s = time.monotonic()

    def began(self, cell: str) -> None:
        """Record the start of a cell's run."""
        self.running[cell] = time.monotonic()

    def ended(self, cell: str, outcome: Outcome) -> None:
        """Count a cell's outcome and print it."""
        self.running.pop(cell, None)
        self.done += 1
        verdict = verdict_of(outcome.code)
        self.verdicts[verdict] += 1
        effects = effects_text(outcome)
        facts = [
            f"{effects} took effect" if effects else "",
            recovery_text(outcome),
            f"{outcome.took_s:.0f} s",
        ]
        line = Text(f"{self.done:>4} of {self.total}  {cell:<30} ")
        line.append(f"{verdict:<8}", style=STYLES.get(verdict, ""))
        line.append(f" {', '.join(fact for fact in facts if fact)}")
        self.console.print(line, soft_wrap=True)
        if outcome.why:
            why = outcome.why
            why = why if len(why) <= WHY_LINE_CHARS_MAX else f"{why[: WHY_LINE_CHARS_MAX - 1]}…"
            self.console.print(Text(f"{'':12}{why}", style="yellow"), soft_wrap=True)

    def tick(self) -> None:
        """Do nothing."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress for the body of `with`."""
        yield


class LiveProgress(Redrawn, MatrixProgress):
    """Adds a bar below these lines that is redrawn in place and vanishes at the end."""

    def panel(self) -> Group:
        """Render the current progress. Called from rich's refresh thread."""
        now_s = time.monotonic()
        head = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(
            total=max(1, self.total), completed=self.done, width=BAR_WIDTH, complete_style="cyan"
        )
        head.add_row(bar, Text(f"{self.done} of {self.total}{self._left(now_s)}"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim")
        grid.add_column(overflow="ellipsis", no_wrap=True)
        for cell, began_s in list(self.running.items()):
            grid.add_row("running", f"{cell}, {now_s - began_s:.0f} s")
        return Group(head, grid)

    def _left(self, now_s: float) -> str:
        if not self.done:
            return ""
        left_s = (now_s - self.began_s) / self.done * (self.total - self.done)
        return f", about {left_s / 60:.0f} min to go" if left_s >= 60 else ""


def make_progress(console: Console, total: int) -> MatrixProgress:
    """Return a live progress on a terminal, plain lines elsewhere."""
    is_live = console.is_terminal and not console.is_dumb_terminal
    return (LiveProgress if is_live else MatrixProgress)(console, total)


# The table of a matrix in the terminal: a column per world.

STYLES: Final[Mapping[str, str]] = {
    "VALID": "green",
    "INVALID": "bold red",
    "UNKNOWN": "bold yellow",
    "ERROR": "bold magenta",
    "OPEN": "cyan",
    "SKIPPED": "dim",
}
LABELS: Final = {"SKIPPED": "not here", "OPEN": "not run"}
ENDS: Final = {"OPEN": "NOT DONE"}
"""Labels of the whole matrix where they differ from those of a cell."""
WHY_CHARS_MAX: Final = 300


def show_matrix_heading(console: Console, plan: Plan, todo: int, jobs: int, folder: str) -> None:
    """Print what is about to be run."""
    runnable = sum(not cell.skipped for cell in plan.cells)
    text = Text("shaketable", style="bold")
    facts = [f"matrix {plan.name}", f"{todo} of {runnable} cells to run"]
    if len(plan.cells) > runnable:
        facts.append(f"{len(plan.cells) - runnable} not possible here")
    facts.append(f"{jobs} at once")
    text.append(f"  {' · '.join(facts)}", style="not bold default")
    console.print(text, soft_wrap=True)
    console.print(Text(folder, style="dim"), soft_wrap=True)


def show_matrix(console: Console, view: MatrixView, page: str) -> None:
    """Print the table, cells that are not valid with the reason, and cells that were not run."""
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
    counts = ", ".join(f"{count} {LABELS.get(name, name)}" for name, count in view.counts)
    console.print()
    verdict = Text(ENDS.get(view.verdict, view.verdict), style=STYLES.get(view.verdict, "bold"))
    verdict.append(f"  {counts}", style="not bold default")
    console.print(verdict, highlight=False)
    console.print(Text(page), soft_wrap=True, highlight=False)


def _cell_text(cell: MatrixCell | None) -> Text:
    """Return a cell in at most 22 characters: "10/10  0.41 s  VALID"."""
    if cell is None:
        return Text("")
    label = Text(LABELS.get(cell.verdict, cell.verdict), style=STYLES.get(cell.verdict, ""))
    if cell.verdict in LABELS:
        return label
    again = f" ({len(cell.attempts)})" if len(cell.attempts) > 1 else ""
    part = " in part" if cell.lacking else ""
    return Text.assemble(f"{cell.took_effect:>5} {cell.recovery:>7} ", label, again, part)


def _show_troubles(console: Console, cells: Iterable[MatrixCell], folder: str) -> None:
    """Print for each cell that is not valid why, and where its report or output is."""
    for cell in cells:
        if cell.verdict in ("VALID", *LABELS):
            continue
        line = Text(f"\n{cell.id}  ")
        line.append(cell.verdict, style=STYLES.get(cell.verdict, ""))
        console.print(line, highlight=False)
        why = cell.why if len(cell.why) <= WHY_CHARS_MAX else f"{cell.why[: WHY_CHARS_MAX - 1]}…"
        console.print(Text(f"  {why}"), highlight=False)
        for attempt in cell.attempts:
            where = f"{folder}/{attempt.report or attempt.output}"
            row = f"  {attempt.verdict:<8} {where}"
            console.print(Text(row, style="dim"), soft_wrap=True, highlight=False)


def _show_partly(console: Console, cells: Iterable[MatrixCell]) -> None:
    """Print which cells ran without some of their faults, grouped by fault and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        for lacking in cell.lacking:
            reasons.setdefault(lacking, []).append(cell.id)
    for (fault, why), ids in reasons.items():
        text = Text(f"\nin part, without {fault}: {', '.join(ids)}\n")
        text.append(f"  {why}", style="dim")
        console.print(text, highlight=False)


def _show_skipped(console: Console, view: MatrixView) -> None:
    """Print why cells were not run, grouped by reason."""
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
    """Print a table, without trailing blanks outside a terminal."""
    if console.is_terminal:
        console.print(rows, highlight=False)
        return
    with console.capture() as captured:
        console.print(rows, highlight=False)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)
