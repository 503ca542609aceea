"""The line by which a process that ended told why: what tells a fault's end from a node's own.

A process may be refused something, get over it, and end of a planted bug later. So what it said
before its last words does not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

TAIL_BYTES: Final = 64 * 1024
_OURS: Final = b"--- shaketable:"
_PANICS: Final = (b"panic:", b"fatal error:")
_FOLLOW: Final = (b"at ", b"... ", b"lost sys.stderr")


def last_words(said: bytes) -> bytes:
    """Return the line by which a process told why it ended; b"" if it said nothing.

    The last one, but for what follows such a line by itself: the frame of a group of exceptions,
    frames of Java, what Python says where it cannot write any more; of a Go program the line of its
    panic, which goroutines follow.
    """
    lines = [line.strip(b" |+-\t\r") for line in said.split(b"\n") if not line.startswith(_OURS)]
    panics = [line for line in lines if line.startswith(_PANICS)]
    if panics:
        return panics[-1]
    told = (line for line in reversed(lines) if line and not line.startswith(_FOLLOW))
    return next(told, b"")


def in_log(log: Path, since_bytes: int) -> bytes:
    """Return the last words that stand in a log behind its first `since_bytes`."""
    return last_words(tail(log, since_bytes, TAIL_BYTES))


def tail(log: Path, since_bytes: int, bytes_max: int) -> bytes:
    """Return what stands at the end of a log behind its first `since_bytes`; b"" if nothing."""
    try:
        with log.open("rb") as file:
            file.seek(max(since_bytes, file.seek(0, 2) - bytes_max))
            return file.read(bytes_max)
    except OSError:
        return b""


def size_bytes(log: Path) -> int:
    """How long a log is by now; 0 if there is none."""
    try:
        return log.stat().st_size
    except OSError:
        return 0
