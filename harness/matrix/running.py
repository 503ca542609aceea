"""Run the queue of a matrix: several cells at a time, each in a process of its own.

Everything happens in the main thread, since a cell's process dies with it (`harness.guard`). One
call of `Queue.end` stops the queue: running cells are terminated and count as not run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from shaketable.harness import guard
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.matrix.folder import Journal, MatrixFolder, Outcome

POLL_S: Final = 0.1
TERM_EVERY_S: Final = 1.0
"""A run tears down at the second SIGTERM, and abandons its check at the third."""
END_TIMEOUT_S: Final = 90.0
"""After this a run that was asked to end is killed; what it started ends with it."""


class Process(Protocol):
    """A cell's process."""

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        ...

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process."""
        ...

    def wait(self) -> int:
        """Wait until it exits; return its exit status."""
        ...


class Watcher(Protocol):
    """Observes the progress of the queue."""

    def began(self, cell: str) -> None:
        """A cell's run begins."""
        ...

    def ended(self, cell: str, outcome: Outcome) -> None:
        """A cell's run ended."""
        ...

    def tick(self) -> None:
        """Time passed; called often."""
        ...


@dataclass(slots=True)
class _Running:
    cell: str
    attempt: int
    process: Process
    began_s: float


@dataclass(slots=True)
class Queue:
    """The queue of waiting and running cells.

    Attributes:
        journal: their attempts and outcomes on disk.
        launch: starts an attempt at a cell.
        read: returns the outcome of (cell, attempt, exit status, seconds).
        watcher: is notified of the progress.
        is_ending: set by `end`.
    """

    journal: Journal
    launch: Callable[[str, int], Process]
    read: Callable[[str, int, int, float], Outcome]
    watcher: Watcher
    is_ending: bool = False
    _running: list[_Running] = field(default_factory=list)

    def end(self) -> None:
        """Start no more cells and end the running ones. May be called from a signal handler."""
        self.is_ending = True

    def run(self, cells: Sequence[str], jobs: int) -> bool:
        """Run cells in this order, `jobs` at a time; return whether all were run.

        No process of a cell is left, however this returns.

        Raises:
            HarnessError: the journal cannot be written, or a process cannot be started.
        """
        waiting = list(reversed(cells))
        try:
            while (waiting or self._running) and not self.is_ending:
                while waiting and len(self._running) < jobs and not self.is_ending:
                    self._start(waiting.pop())
                self._collect()
                self.watcher.tick()
                time.sleep(POLL_S)
        finally:
            self._end_all()
        return not self.is_ending

    def _start(self, cell: str) -> None:
        attempt = self.journal.began(cell, _now())
        process = self.launch(cell, attempt)
        self._running.append(_Running(cell, attempt, process, time.monotonic()))
        self.watcher.began(cell)

    def _collect(self) -> None:
        """Record the outcomes of cells that have ended."""
        for one in list(self._running):
            code = one.process.poll()
            if code is None:
                continue
            self._running.remove(one)
            outcome = self.read(one.cell, one.attempt, code, time.monotonic() - one.began_s)
            self.journal.ended(one.cell, _now(), outcome)
            self.watcher.ended(one.cell, outcome)

    def _end_all(self) -> None:
        """End the running cells: by SIGTERM until the timeout, then by SIGKILL."""
        deadline_s = time.monotonic() + END_TIMEOUT_S
        next_s = 0.0
        while self._running and time.monotonic() < deadline_s:
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + TERM_EVERY_S
                for one in self._running:
                    _send(one.process, signal.SIGTERM)
            self._running = [one for one in self._running if one.process.poll() is None]
            self.watcher.tick()
            time.sleep(POLL_S)
        for one in self._running:
            _send(one.process, signal.SIGKILL)
            one.process.wait()
        self._running.clear()


def launcher(folder: MatrixFolder) -> Callable[[str, int], subprocess.Popen[bytes]]:
    """Return a function that starts `run` for a cell. It must be called in the main thread.

    Each process has a session of its own, so that Ctrl-C reaches only the queue; its output goes to
    a file; it dies with this process.
    """

    def launch(cell: str, attempt: int) -> subprocess.Popen[bytes]:
        run = ["run", str(folder.campaign(cell)), "--store", str(folder.runs)]
        argv = guard.command([sys.executable, "-P", "-m", "shaketable", *run], os.getpid())
        try:
            with folder.output(cell, attempt).open("wb") as output:
                return subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise HarnessError(f"cannot start the run of {cell}: {error.strerror}") from error

    return launch


def _send(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
