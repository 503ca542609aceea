"""The write-ahead ledger of faults: what is to be undone survives the harness (faults.jsonl).

One JSON line an event, each one write(2) to a file opened for appending, so that a line is
in the kernel's hands before the next step happens and SIGKILL of the harness loses none:

    {"event": "applying", "fault": 3, "name": "pause", "plan": {...}, "at_ns": ...}
    {"event": "applied",  "fault": 3, "undo": {...}, "at_ns": ...}
    {"event": "failed",   "fault": 3, "error": "...", "at_ns": ...}
    {"event": "undone",   "fault": 3, "at_ns": ...}
    {"event": "stuck",    "fault": 3, "error": "...", "at_ns": ...}   the undo failed

Source: DESIGN.md decision 12.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError
from harness.plugins import Json


class Lines:
    """A file of JSON lines that is appended to, each line by one write(2).

    Raises:
        HarnessError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise HarnessError(f"cannot write {path}: {error.strerror}") from error

    def append(self, row: Json) -> None:
        """Append one row."""
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise HarnessError(f"cannot write {self._path}: {error.strerror}") from error
        if written != len(line):
            raise HarnessError(f"cannot write {self._path}: the disk is full")

    def close(self) -> None:
        """Close the file (idempotent)."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Ledger:
    """Writes the ledger of one run. `now_ns` is the time since the run's start."""

    def __init__(self, path: Path, now_ns: Callable[[], int]) -> None:
        self._lines = Lines(path)
        self._now_ns = now_ns

    def applying(self, fault: int, name: str, plan: Json) -> None:
        """Call before a fault is applied: from here on it may be in force."""
        self._write("applying", fault, name=name, plan=plan)

    def applied(self, fault: int, undo: Json) -> None:
        """Call as soon as the undo is known."""
        self._write("applied", fault, undo=undo)

    def failed(self, fault: int, error: str) -> None:
        """The fault could not be applied, and undid what it had begun."""
        self._write("failed", fault, error=error)

    def undone(self, fault: int) -> None:
        """The fault was undone."""
        self._write("undone", fault)

    def stuck(self, fault: int, error: str) -> None:
        """The fault could not be undone: it stays open."""
        self._write("stuck", fault, error=error)

    def close(self) -> None:
        """Close the file (idempotent)."""
        self._lines.close()

    def _write(self, event: str, fault: int, **more: object) -> None:
        self._lines.append({"event": event, "fault": fault, **more, "at_ns": self._now_ns()})


@dataclass(frozen=True, slots=True)
class OpenFault:
    """A fault that may still be in force. `undo` is None if only its plan is known."""

    fault: int
    name: str
    plan: Json
    undo: Json | None


def open_faults(path: Path) -> tuple[OpenFault, ...]:
    """Read which faults a run left in force, the newest first: the order to undo them in.

    A last line that was torn by the harness's death is left out.

    Raises:
        HarnessError: the ledger cannot be read, or a line in the middle is no JSON.
    """
    opened: dict[int, OpenFault] = {}
    for row in _rows(path):
        number = row["fault"]
        match row["event"]:
            case "applying":
                opened[number] = OpenFault(number, row["name"], row["plan"], None)
            case "applied":
                known = opened[number]
                opened[number] = OpenFault(number, known.name, known.plan, row["undo"])
            case "undone" | "failed":
                opened.pop(number, None)
    return tuple(reversed(opened.values()))


def _rows(path: Path) -> list[Json]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HarnessError(f"cannot read {path}: {error.strerror}") from error
    rows = []
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline was torn
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise HarnessError(f"{path}: line {number} is no JSON: {error}") from error
    return rows
