"""Child processes for code that may hang, print, or end Python. Nothing of them is left afterwards.

Each child leads its own session, and all processes that it started end with it: also those that it
left running when it ended by itself, and those that made a session of their own (Spark's JVM).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import trio

from shaketable.harness import guard, run_markers

END_POLL_S: Final = 0.01
ROUNDS_MAX: Final = 20
"""A killed process may have just started another: look again, but not forever."""
SAID_CHARS_MAX: Final = 300

Take = Callable[[bytes], float]
"""Takes each line that a child prints; returns the seconds within which the next one must come."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: it was late with its next line, or by itself, with this exit status."""

    is_late: bool
    status: int


@dataclass(frozen=True, slots=True)
class Answer(Ended):
    """What a child had printed to stdout and stderr when it ended."""

    output: bytes = b""
    errors: bytes = b""


async def run(argv: Sequence[str], log: Path, take: Take, start_timeout_s: float) -> Ended:
    """Run a child until it ends, or is late; its stderr goes to a file.

    Must be called in the main thread: the child dies with that thread.
    """
    with log.open("wb") as errors, _child(argv, subprocess.PIPE, errors) as process:
        assert process.stdout is not None
        with process.stdout, trio.CancelScope() as scope:
            scope.deadline = trio.current_time() + start_timeout_s
            rest = b""
            async with trio.lowlevel.FdStream(os.dup(process.stdout.fileno())) as stream:
                async for data in stream:
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        scope.deadline = trio.current_time() + take(line)
            while process.poll() is None:  # noqa: ASYNC110 - it closed its output, and exits
                await trio.sleep(END_POLL_S)
    return Ended(scope.cancelled_caught, process.returncode)


def ask(
    argv: Sequence[str], timeout_s: float, given: bytes = b"", add: Mapping[str, str] | None = None
) -> Answer:
    """Run a child until it ends, or is late; return what it printed. For the main thread.

    Uses files, not pipes: a process that the child left running may keep a pipe open.

    Args:
        argv: the program.
        timeout_s: the child is late after that.
        given: its standard input.
        add: additional environment variables.
    """
    with _file() as stdin, _file() as out, _file() as errors:
        stdin.write(given)
        stdin.seek(0)
        is_late = False
        with _child(argv, out, errors, stdin, add) as process:
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                is_late = True
        out.seek(0)
        errors.seek(0)
        return Answer(is_late, process.returncode, out.read(), errors.read())


def _file() -> IO[bytes]:
    """Return an empty file in memory: a heal has to work on a full disk, too."""
    return os.fdopen(os.memfd_create("shaketable"), "w+b")


@contextmanager
def _child(
    argv: Sequence[str],
    out: IO[bytes] | int,
    errors: IO[bytes],
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    add: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that dies with this thread, the main one; nothing of it is left behind."""
    process = subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=out,
        stderr=errors,
        env={**os.environ, **(add or {})},
        start_new_session=True,
    )
    try:
        yield process
    finally:  # also when interrupted
        _end_all_of(process.pid)
        process.wait()


def _end_all_of(session: int) -> None:
    """Kill all processes of a session, and their descendants.

    The session's number is not reused while one of them lives; if none does, there is nothing to
    kill.
    """
    for _ in range(ROUNDS_MAX):
        alive = members_of(session)
        if not alive:
            break
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(END_POLL_S)


def members_of(session: int) -> set[int]:
    """Return the live processes of a session, and their descendants."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for pid in run_markers.pids():
        fields = run_markers.proc_stat(pid)
        if fields is None or fields[0] in "ZX":
            continue
        parents[pid] = int(fields[1])
        if int(fields[3]) == session:
            found.add(pid)
    size = -1
    while size != len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def last_line(log: Path) -> str:
    """Return the last line of a child's stderr."""
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    last = text.rpartition("\n")[2] or "it ended without a word"
    return last if len(last) <= SAID_CHARS_MAX else f"{last[:SAID_CHARS_MAX]}..."


def begin(parent_pid: str) -> IO[str]:
    """Set up a child process: end with the parent; return the stream for answers.

    Anything else printed in this process, or in one that it starts, goes to stderr.
    """
    guard.die_with_parent(int(parent_pid))
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return out
