"""Stdout as the commands use it: who stops reading, or a full disk, changes no verdict."""

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
    """Stdout. It keeps still once nobody reads on (`| head`), and the command goes on.

    rich's own answer to a closed pipe is exit code 1, which is ours for "invalid". Where a disk
    is full the command goes on as well, so that its page and files are written; the command
    line's entry tells of it (`harness.cli`).
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
        """Write text as it is: lines of a trace, or JSON for programs."""
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
"""Where results and progress go: stdout."""


def shown(path: Path) -> str:
    """Return the path as a person in this working directory would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


# Two aligned columns: what help, lists and the summary are made of.

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
    with console.capture() as captured:  # rich fills columns with spaces: not into files
        console.print(shown, highlight=False)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


# Progress that is redrawn in place on a terminal, and vanishes at the end.

REFRESH_HZ: Final = 4


class Redrawn(ABC):
    """What has a panel that is drawn anew `REFRESH_HZ` times a second on `console`."""

    console: Console

    @abstractmethod
    def panel(self) -> RenderableType:
        """Draw it as it is now. Called from rich's refreshing thread."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Redraw the panel for the body of `with`."""
        with Live(
            console=self.console,
            refresh_per_second=REFRESH_HZ,
            transient=True,
            get_renderable=self.panel,
        ):
            yield
