"""The write-ahead ledger of faults: undos that survive the harness (faults.jsonl).

One JSON line an event, each one write(2) to a file opened for appending, so that the kernel has the
line before the next step, and SIGKILL of the harness loses none:

    {"event": "began",    "pid": 41, "started": 7311, "boot": "...", "at_ns": ...}  the harness
    {"event": "process",  "node": "n1", "pid": 47, "started": 7342, "at_ns": ...}   one it started
    {"event": "applying", "fault": 3, "name": "pause", "plan": {...}, "at_ns": ...}
                with "undo": {...} if the fault declares it (contracts.capabilities.UndoesAhead)
    {"event": "applied",  "fault": 3, "undo": {...}, "at_ns": ...}
    {"event": "failed",   "fault": 3, "error": "...", "at_ns": ...}
    {"event": "undone",   "fault": 3, "at_ns": ...}
    {"event": "stuck",    "fault": 3, "error": "...", "at_ns": ...}   it may still be in force:
                its undo failed, or its "apply" did, and what it did before is unknown
    {"event": "ended",    "at_ns": ...}                 the run has stopped all its processes
    {"event": "forgotten", "fault": 3, "by": "heal"}    a user repaired it by hand
    {"event": "healed",   "did": ["..."], "utc": "..."} by `heal`, after the harness was killed

`started` is in clock ticks since the machine's boot, as in /proc/PID/stat: pid and start time
identify a process, since pids are reused. What a heal undoes it records as "undone".

Source: DESIGN.md decision 12.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shaketable.harness import run_markers
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.run_markers import ProcessIdentity


class Lines:
    """A file of JSON lines for appending, each line by one write(2).

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
        if written != len(line):  # nothing may be written after half a line
            with suppress(OSError):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise HarnessError(f"cannot write {self._path}: the disk is full")

    def close(self) -> None:
        """Close the file (idempotent)."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Ledger:
    """Writes the ledger of one run. `now_ns` returns the time since the run's start."""

    def __init__(self, path: Path, now_ns: Callable[[], int]) -> None:
        self._lines = Lines(path)
        self._now_ns = now_ns
        self._is_closed = False
        here = run_markers.this_process()
        self._tell("began", pid=here.pid, started=here.started, boot=run_markers.boot_id())

    def process(self, node: str, pid: int) -> None:
        """Record a process that was just started; do nothing if it has ended already."""
        found = run_markers.identify(pid)
        if found is not None:
            self._tell("process", node=node, pid=pid, started=found.started)

    def applying(self, fault: int, name: str, plan: Json, undo: Json | None = None) -> None:
        """Record that a fault is about to be applied: from now on it may be in force.

        `undo` reverts it however far it gets, if the fault declares that (`UndoesAhead`).
        """
        ahead = {} if undo is None else {"undo": undo}
        self._write("applying", fault, name=name, plan=plan, **ahead)

    def applied(self, fault: int, undo: Json) -> None:
        """Record the undo. Call it as soon as the undo is known."""
        self._write("applied", fault, undo=undo)

    def failed(self, fault: int, error: str) -> None:
        """Record that the fault could not be applied, and that its partial effects were undone."""
        self._write("failed", fault, error=error)

    def undone(self, fault: int) -> None:
        """Record that the fault was undone."""
        self._write("undone", fault)

    def stuck(self, fault: int, error: str) -> None:
        """Record that the fault may still be in force and cannot be undone now: it stays open."""
        self._write("stuck", fault, error=error)

    def close(self) -> None:
        """Record the end of the run, and close the file (idempotent)."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(HarnessError):  # a full disk, say: then a heal finds nothing to do
            self._tell("ended")
        self._lines.close()

    def _write(self, event: str, fault: int, **more: object) -> None:
        self._tell(event, fault=fault, **more)

    def _tell(self, event: str, **more: object) -> None:
        self._lines.append({"event": event, **more, "at_ns": self._now_ns()})


@dataclass(frozen=True, slots=True)
class OpenFault:
    """A fault that may still be in force.

    `undo` is None if only its plan is known; `is_applied`: its `apply` returned.
    """

    fault: int
    name: str
    plan: Json
    undo: Json | None
    is_applied: bool = True


@dataclass(frozen=True, slots=True)
class Account:
    """The state of a run by its ledger.

    Attributes:
        harness: the process that wrote it, and the boot of the machine then; None: not recorded.
        processes: the processes that it started.
        open: the faults that may still be in force, the newest first: the order to undo them in.
        is_ended: the run ended by itself, and has stopped all its processes.
        is_healed: another process has cleaned up after it.
    """

    harness: ProcessIdentity | None
    boot: str
    processes: tuple[tuple[str, ProcessIdentity], ...]
    open: tuple[OpenFault, ...]
    is_ended: bool
    is_healed: bool


def open_faults(path: Path) -> tuple[OpenFault, ...]:
    """Read the faults that a run left in force, the newest first: the order to undo them in.

    Raises:
        HarnessError: as `read`.
    """
    return read(path).open


def read(path: Path) -> Account:
    """Read a ledger; a missing one is empty.

    A last line that was torn by the harness's death is ignored.

    Raises:
        HarnessError: the ledger cannot be read, or a line in the middle is no event.
    """
    opened: dict[int, OpenFault] = {}
    harness, boot = None, ""
    processes: list[tuple[str, ProcessIdentity]] = []
    rows = _rows(path)
    for row in rows:
        match row:
            case {"event": "began", "pid": pid, "started": started, "boot": boot}:
                harness = ProcessIdentity(pid, started)
            case {"event": "process", "node": node, "pid": pid, "started": started}:
                processes.append((node, ProcessIdentity(pid, started)))
            case {"event": "applying", "fault": number, "name": name, "plan": plan}:
                opened[number] = OpenFault(number, name, plan, row.get("undo"), is_applied=False)
            case {"event": "applied", "fault": number, "undo": undo}:
                if number not in opened:
                    raise HarnessError(f"{path}: fault {number} was applied, and never begun")
                known = opened[number]
                opened[number] = OpenFault(number, known.name, known.plan, undo)
            case {"event": "undone" | "failed" | "forgotten", "fault": number}:
                opened.pop(number, None)
    events = {row.get("event") for row in rows}
    still = tuple(reversed(opened.values()))
    return Account(
        harness, boot, tuple(processes), still, "ended" in events, "healed" in events
    )  # fmt: skip


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
            row = json.loads(line)
        except ValueError as error:
            raise HarnessError(f"{path}: line {number} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise HarnessError(f"{path}: line {number} is no event of a run")
        rows.append(row)
    return rows
