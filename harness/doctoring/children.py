"""Processes in which a doctor tries what may hang, print, or end Python. They end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import trio

from harness.runtime import guard

END_POLL_S: Final = 0.01
SAID_CHARS_MAX: Final = 300

Take = Callable[[bytes], float]
"""Told of each line that a child prints; returns within how many seconds the next one must come."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: it was late with its next word, or by itself, with this exit status."""

    is_late: bool
    status: int


async def run(argv: Sequence[str], log: Path, take: Take, start_timeout_s: float) -> Ended:
    """Run a child until it ends, or is late; what it says on stderr goes to a file.

    Must be called in the main thread: the child dies with that.
    """
    process = _started(argv, log)
    assert process.stdout is not None
    try:
        with trio.CancelScope(deadline=trio.current_time() + start_timeout_s) as scope:
            rest = b""
            async with trio.lowlevel.FdStream(os.dup(process.stdout.fileno())) as stream:
                async for data in stream:
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        scope.deadline = trio.current_time() + take(line)
            while process.poll() is None:  # noqa: ASYNC110 - it has said all, and ends
                await trio.sleep(END_POLL_S)
    finally:  # also when somebody interrupts
        process.stdout.close()
        if process.returncode is None:  # with it what it started in its session
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Ended(scope.cancelled_caught, process.returncode)


def _started(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that dies with this thread: the main one."""
    with log.open("wb") as errors:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )


def last_line(log: Path) -> str:
    """Return what a child said last on stderr."""
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    last = text.rpartition("\n")[2] or "it ended without a word"
    return last if len(last) <= SAID_CHARS_MAX else f"{last[:SAID_CHARS_MAX]}..."


def begin(parent_pid: str) -> IO[str]:
    """Be a child: end with the parent; return where to say something.

    What anybody else prints in this process, or in one that it starts, goes to stderr.
    """
    guard.die_with_parent(int(parent_pid))
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return out
