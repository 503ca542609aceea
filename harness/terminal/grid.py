"""Two aligned columns: what help, lists and the summary are made of."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

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
