"""A matrix -> ONE self-contained HTML page: its table, and why what is not valid is not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment

from shaketable.reports import templating

# What a matrix's table shows, in the terminal and on its page: pure data.


@dataclass(frozen=True, slots=True)
class MatrixAttempt:
    """One attempt at a cell: its verdict in a word, why, and the run's page (relative; or "")."""

    verdict: str
    why: str
    report: str
    output: str


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One cell: `verdict` is VALID, INVALID, UNKNOWN, ERROR, SKIPPED, OPEN or RUNNING.

    `bit` says how often its faults bit ("9 of 10"), `recovery` how soon the group served again;
    `lacking` are faults that were asked for and could not be done there, each with the reason.
    """

    id: str
    verdict: str
    bit: str
    recovery: str
    why: str
    attempts: tuple[MatrixAttempt, ...] = ()
    operations: int = 0
    lacking: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """The cells that differ in their column alone; None where there is no such cell."""

    label: str
    family: str
    cells: tuple[MatrixCell | None, ...]


@dataclass(frozen=True, slots=True)
class MatrixView:
    """A matrix: its rows, in which each column is a world, and how many cells came to what."""

    name: str
    verdict: str
    counts: tuple[tuple[str, int], ...]
    row_head: str
    columns: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    bites_min: int
    resume: str


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
