"""Compiles the kernels of the search before a history has to wait for them.

On a new machine and after an update that takes about a minute of processor time, once: in a process
of its own, at the lowest priority, while Spark starts.

    python -m shaketable.checkers.engine.compiling
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pyarrow as pa

from shaketable.checkers.engine.judge import Progress
from shaketable.checkers.kernels.search import run
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.linearizability.model_choice import model_named
from shaketable.harness import guard
from shaketable.harness.budget_clock import uncounted
from shaketable.harness.compiled import is_cached, load_numba
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.promises import Promises
from shaketable.harness.history.schema import OPERATIONS

COMPILE_S_MAX: Final = 600.0
"""How long a check waits for it; after that each process compiles what it needs."""
NICEST: Final = 19
MODEL: Final = "cas-register"
"""Its search calls every kernel that the search of another model calls."""
COLUMNS: Final = ("f", "input", "expected", "output", "call_ns", "return_ns", "outcome")
HISTORIES: Final = (
    (
        ("write", 1, None, None, 0, None, "info"),
        ("write", 2, None, None, 1, 9, "ok"),
        ("cas", 3, 1, None, 10, 19, "ok"),
        ("read", None, None, 3, 20, 29, "ok"),
    ),
    (
        ("write", 1, None, None, 0, 9, "ok"),
        ("read", None, None, 2, 10, 19, "ok"),
        ("write", 2, None, None, 15, 29, "ok"),
        ("read", None, None, 1, 30, 39, "ok"),
    ),
)
"""One valid, with an operation of unknown outcome, and one that is not."""


def are_cached() -> bool:
    """Return whether the kernels need not be compiled. Loads numba, which takes a second or two."""
    return is_cached(run)


class Compiling:
    """A process that compiles the kernels, if none is cached; `wait` before they are needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not are_cached():
            command = [sys.executable, "-P", "-m", __name__]
            self._process = subprocess.Popen(
                guard.command(command, os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def is_running(self) -> bool:
        """Return whether it still compiles."""
        return self._process is not None and self._process.poll() is None

    def wait(self, progress: Progress) -> None:
        """Wait for its end, for COMPILE_S_MAX at most; no budget of time counts that."""
        if self._process is None or self._process.poll() is not None:
            return
        progress("compiling the kernels of the search, once for this version (a minute)")
        with uncounted():
            try:
                self._process.wait(COMPILE_S_MAX)
            except subprocess.TimeoutExpired:
                self.stop()

    def stop(self) -> None:
        """End the process; idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def compile_first(progress: Progress) -> None:
    """Compile them now if none is cached: before several processes would, each for itself."""
    compiling = Compiling()
    try:
        compiling.wait(progress)
    finally:
        compiling.stop()


def compile_kernels() -> None:
    """Search small histories, so that each kernel is called, and called compiled."""
    load_numba()
    for history in HISTORIES:
        rows = [
            {"op": n, "process": n, **dict(zip(COLUMNS, operation, strict=True))}
            for n, operation in enumerate(history)
        ]
        table = pa.Table.from_pylist(rows, OPERATIONS)
        checker = Linearizable(model_named(MODEL), use_special_cases=False)
        checker.check({"operations": table}, CheckContext((), {}, Promises()))


if __name__ == "__main__":
    os.nice(NICEST)
    compile_kernels()
