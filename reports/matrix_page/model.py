"""What a matrix's table shows, in the terminal and on its page: pure data."""

from __future__ import annotations

from dataclasses import dataclass


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
