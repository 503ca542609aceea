"""Shows how a matrix goes on: a bar and the cells under way on a terminal, else a line a cell."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shaketable.harness.matrix.journal import Outcome
from shaketable.harness.matrix.table import bit_text, recovery_text, verdict_of
from shaketable.harness.terminal.matrix_table import STYLES
from shaketable.harness.terminal.redrawn import Redrawn

BAR_WIDTH: Final = 36
SAID_CHARS_MAX: Final = 120


class MatrixProgress:
    """Keeps account of a queue of `total` cells, and tells each that ended in a line."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.total = total
        self.done = 0
        self.verdicts: Counter[str] = Counter()
        self.running: dict[str, float] = {}
        self.began_s = time.monotonic()

    def began(self, cell: str) -> None:
        """A cell's run begins."""
        self.running[cell] = time.monotonic()

    def ended(self, cell: str, outcome: Outcome) -> None:
        """A cell's run ended."""
        self.running.pop(cell, None)
        self.done += 1
        verdict = verdict_of(outcome.code)
        self.verdicts[verdict] += 1
        bit = bit_text(outcome)
        facts = [f"{bit} bit" if bit else "", recovery_text(outcome), f"{outcome.took_s:.0f} s"]
        line = Text(f"{self.done:>4} of {self.total}  {cell:<30} ")
        line.append(f"{verdict:<8}", style=STYLES.get(verdict, ""))
        line.append(f" {', '.join(fact for fact in facts if fact)}")
        self.console.print(line, soft_wrap=True)
        if outcome.why:
            why = outcome.why
            why = why if len(why) <= SAID_CHARS_MAX else f"{why[: SAID_CHARS_MAX - 1]}…"
            self.console.print(Text(f"{'':12}{why}", style="yellow"), soft_wrap=True)

    def tick(self) -> None:
        """Nothing happened."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress for the body of `with`."""
        yield


class LiveProgress(Redrawn, MatrixProgress):
    """With a bar below these lines, redrawn in place, that vanishes at the end."""

    def panel(self) -> Group:
        """Draw it as it is now. Called from rich's refreshing thread."""
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
    """Return the progress that fits: live on a terminal, plain lines elsewhere."""
    is_live = console.is_terminal and not console.is_dumb_terminal
    return (LiveProgress if is_live else MatrixProgress)(console, total)
