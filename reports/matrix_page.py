"""Render a matrix as one self-contained HTML page: its table, and the reason for each failure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment

from shaketable.reports import templating

# A matrix's table as shown in the terminal and on its page. Pure data.


@dataclass(frozen=True, slots=True)
class MatrixAttempt:
    """One attempt at a cell: its verdict, the reason, and the run's page (relative path, or "")."""

    verdict: str
    why: str
    report: str
    output: str


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One cell: `verdict` is VALID, INVALID, UNKNOWN, ERROR, SKIPPED, OPEN or RUNNING.

    `took_effect` is how many of its faults took effect ("9 of 10"), `recovery` how soon the group
    served again; `lacking` are faults that were requested and not available, with the reasons.
    """

    id: str
    verdict: str
    took_effect: str
    recovery: str
    why: str
    attempts: tuple[MatrixAttempt, ...] = ()
    operations: int = 0
    lacking: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """The cells that differ only in their column; None where there is no such cell."""

    label: str
    family: str
    cells: tuple[MatrixCell | None, ...]


@dataclass(frozen=True, slots=True)
class MatrixView:
    """A matrix: its rows, in which each column is a world, and how many cells have each verdict."""

    name: str
    verdict: str
    counts: tuple[tuple[str, int], ...]
    row_head: str
    columns: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    effects_min: int
    resume: str


TEMPLATES: Final = Path(__file__).parent / "templates"
BADGES: Final = {"VALID": "VALID", "INVALID": "INVALID"}
"""The verdicts with a colour of their own on the page; others have the colour of doubt."""
LABELS: Final = {"SKIPPED": "not here", "OPEN": "not run"}
ENDS: Final = {"OPEN": "NOT DONE"}


def render_matrix(view: MatrixView) -> str:
    """Render the page of a matrix."""
    troubles = [
        cell
        for row in view.rows
        for cell in row.cells
        if cell is not None and cell.verdict not in ("VALID", *LABELS)
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
            labels=LABELS,
            ends=ENDS,
            troubles=troubles,
            partly=partly,
            skipped=list(skipped.items()),
        )
    )


@cache
def _environment() -> Environment:
    return templating.environment(TEMPLATES)
