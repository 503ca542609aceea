"""How far a simulation has come: a progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from shaketable.harness.simulation import Size

LINE_EVERY_S: Final = 10.0
"""Without a terminal, how often a line is printed."""


class SeedBar:
    """Shows what is done of `total`; `virtual_s`: what each is worth in its own time, if known."""

    def __init__(self, console: Console, total: int, virtual_s: float | None) -> None:
        self._console = console
        self._total = total
        self._virtual_s = virtual_s
        self._began = self._told = time.monotonic()
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                BarColumn(36, complete_style="cyan"),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> SeedBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def done(self, count: int, violations: int) -> None:
        """So many are done."""
        now = time.monotonic()
        text = self._text(count, now - self._began, violations)
        if self._progress is not None:
            self._progress.update(self._task, completed=count, description=text)
        elif now - self._told >= LINE_EVERY_S:
            self._told = now
            self._console.print(f"{count:,} of {self._total:,}  {text}", highlight=False)

    def _text(self, count: int, lasted_s: float, violations: int) -> str:
        rate_hz = count / max(lasted_s, 1e-9)
        text = f"{rate_hz:.1f}/s"
        if self._virtual_s is not None:
            text = f"{rate_hz:.1f} seeds/s, {rate_hz * self._virtual_s:,.0f} virtual s/s"
        return f"{text}, {violations} violations" if violations else text


class ShrinkBar:
    """Shows how small a failing run has become, and how much of the time for it has passed."""

    def __init__(self, console: Console, seconds_max: float) -> None:
        self._console = console
        self._seconds_max = seconds_max
        self._began = self._told = time.monotonic()
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                BarColumn(16, complete_style="cyan"),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("the first run", total=seconds_max)

    def __enter__(self) -> ShrinkBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def done(self, runs: int, left: Size) -> None:
        """So many runs are done, and so much is left of the one that is made small."""
        now = time.monotonic()
        lasted_s = now - self._began
        text = f"{'1 run' if runs == 1 else f'{runs:,} runs'}, {left} left"
        if self._progress is not None:
            self._progress.update(self._task, completed=lasted_s, description=text)
        elif now - self._told >= LINE_EVERY_S:
            self._told = now
            text = f"{lasted_s:.0f} s of {self._seconds_max:g} s: {text}"
            self._console.print(text, highlight=False)
