"""Stdout for the commands: a closed pipe or a full disk changes no verdict."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shaketable.harness.error_output import note_stdout_failure


class Output(Console):
    """Stdout. It becomes silent when its pipe is closed (`| head`), and the command goes on.

    rich would exit with code 1, which means "invalid" here. On a full disk the command goes on as
    well, so that its page and files are written; `harness.cli` reports the error at the end.
    """

    _is_given_up = False

    def print(self, *objects: Any, **how: Any) -> None:
        """Print as rich does."""
        try:
            super().print(*objects, **how)
        except BrokenPipeError:
            self.on_broken_pipe()
        except OSError as error:
            self._give_up(error)

    def write(self, text: str) -> None:
        """Write text unformatted: lines of a trace, or JSON for programs."""
        if self._is_given_up:
            return
        try:
            self.file.write(text)
        except BrokenPipeError:
            self.on_broken_pipe()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.quiet = self._is_given_up = True
        note_stdout_failure(error)

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = self._is_given_up = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


out: Final = Output(highlight=False)
"""Stdout, for results and progress."""


def shown(path: Path) -> str:
    """Return a path relative to the working directory, if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


# Two aligned columns, for help, lists and the summary.

LABEL_WIDTH_MAX = 33
"""Longer labels are folded, so that the second column keeps room at 80 columns."""
INDENT = 2


def show_rows(
    console: Console,
    rows: Sequence[tuple[str, str | Text]],
    label_style: str = "",
    label_width: int = 0,
) -> None:
    """Print rows of label and text, the text wrapped in its column; nothing for no rows.

    The label column is at least `label_width` characters wide.
    """
    if not rows:
        return
    width = max(label_width, min(LABEL_WIDTH_MAX, max(len(label) for label, _ in rows)))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=width, style=label_style, overflow="fold")
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(Text(label), Text(text) if isinstance(text, str) else text)
    shown = Padding(grid, (0, 0, 0, INDENT), expand=False)
    if console.is_terminal:
        console.print(shown, highlight=False)
        return
    with console.capture() as captured:
        # rich pads columns with spaces: strip them outside a terminal
        console.print(shown, highlight=False)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


# A progress panel that is redrawn in place on a terminal and vanishes at the end.

REFRESH_HZ: Final = 4


class Redrawn(ABC):
    """Base of progress displays: a panel on `console`, redrawn `REFRESH_HZ` times a second."""

    console: Console

    @abstractmethod
    def panel(self) -> RenderableType:
        """Render the current state. Called from rich's refresh thread."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show and refresh the panel for the body of `with`."""
        with Live(
            console=self.console,
            refresh_per_second=REFRESH_HZ,
            transient=True,
            get_renderable=self.panel,
        ):
            yield
