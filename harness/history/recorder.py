"""Records what clients and the nemesis do, as they do it, into one segment.

The invoke is in the kernel's hands before the operation is sent, so it survives
SIGKILL of the worker: an operation that may have taken effect is always in the history.

Source: Jepsen's interpreter; jepsen.generator.interpreter for process ids.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Any


def next_process(process: int, clients: int) -> int:
    """Return the id under which a client goes on after `info` (Jepsen: process += concurrency)."""
    return process + clients


class Recorder:
    """Writes the events of one OS process into one segment, in order of time.

    Args:
        path: the segment to create.
        start_ns: the run's start on CLOCK_MONOTONIC; times are recorded from there.
        clock_ns: the clock, for tests.

    Raises:
        HarnessError: the segment cannot be written.
    """

    def __init__(
        self, path: Path, start_ns: int, clock_ns: Callable[[], int] = monotonic_ns
    ) -> None:
        raise NotImplementedError

    def invoke(
        self,
        process: int,
        f: str,
        key: str | None,
        *,
        value: int | None = None,
        offset: int | None = None,
    ) -> None:
        """Record that `process` is about to do this. Call before the operation is sent."""
        raise NotImplementedError

    def complete(
        self,
        process: int,
        type: str,  # noqa: A002 - the event's column is named so
        f: str,
        key: str | None,
        *,
        output: int | None = None,
        offset: int | None = None,
        error: str | None = None,
        node: str | None = None,
    ) -> None:
        """Record how it ended: type ok, fail or info."""
        raise NotImplementedError

    def nemesis(self, f: str, value: dict[str, Any]) -> None:
        """Record a nemesis event (info, process -1): at a fault's start and at its stop."""
        raise NotImplementedError

    def close(self) -> int:
        """Write the closing record; return the number of events. Idempotent."""
        raise NotImplementedError
