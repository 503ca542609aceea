"""A matrix -> ONE self-contained HTML page: its table, and why what is not valid is not."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment

from shaketable.reports import templating
from shaketable.reports.matrix_page.model import MatrixView

TEMPLATES: Final = Path(__file__).parents[1] / "templates"
BADGES: Final = {"VALID": "VALID", "INVALID": "INVALID"}
"""Of the page's three colours, those that are not for doubt."""
WORDS: Final = {"SKIPPED": "not here", "OPEN": "not run"}
ENDS: Final = {"OPEN": "NOT DONE"}


def render_matrix(view: MatrixView) -> str:
    """Render the page of a matrix."""
    troubles = [
        cell
        for row in view.rows
        for cell in row.cells
        if cell is not None and cell.verdict not in ("VALID", *WORDS)
    ]
    partly = [cell for row in view.rows for cell in row.cells if cell is not None and cell.lacking]
    skipped: dict[tuple[str, str], list[str]] = {}
    for row in view.rows:
        for column, cell in zip(view.columns, row.cells, strict=True):
            if cell is not None and cell.verdict == "SKIPPED":
                skipped.setdefault((column, cell.why), []).append(row.label)
    return (
        _environment()
        .get_template("matrix.html.j2")
        .render(
            view=view,
            badges=BADGES,
            words=WORDS,
            ends=ENDS,
            troubles=troubles,
            partly=partly,
            skipped=list(skipped.items()),
        )
    )


@cache
def _environment() -> Environment:
    return templating.environment(TEMPLATES)
