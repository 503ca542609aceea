"""The line by which a process that ended told why: what tells a fault's end from a node's own.

A process may be refused something, get over it, and end of a planted bug later. So what it said
before its last words does not count, and less so what an earlier incarnation said.

Source: CPython's Objects/object.c (`_PyObject_Dump`) and Python/errors.c; Go's runtime/panic.go and
traceback.go; HotSpot's vmError.cpp (`VMError::report`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

TAIL_BYTES: Final = 64 * 1024
_OURS: Final = b"--- shaketable:"
_STARTS: Final = re.compile(rb"^--- shaketable: .*incarnation \d+ starts .*$", re.MULTILINE)
_FOLLOW: Final = (
    b"at ",
    b"... ",
    b"lost sys.stderr",
    b"Traceback (most recent call last):",
    b"Exception ignored in",
)
"""Lines behind the reason, and headings: a process without memory says these, and no more."""
_FRAMES: Final = b" |+-\t\r"
_PANICS: Final = (b"panic:", b"fatal error:")
_DUMP: Final = re.compile(
    rb"goroutine \d+\b.*:|runtime stack:|created by \S+.*|\[signal .*\]"
    rb"|\S+\.\S+\(.*\)|panic\(.*\)|\.\.\.\d+ frames elided\.\.\.|exit status \d+"
    rb"|[a-z]+[0-9]* +0x[0-9a-f]+"  # a register
)
"""The lines behind a panic of Go that are not indented, whole."""
_NO_MEMORY: Final = b"There is insufficient memory"
_CRASHED: Final = b"A fatal error has been detected by"
_VAGUE: Final = (b"Internal Error", b"Out of Memory Error")
"""How HotSpot begins where it says in the line behind what it is about."""


def crash_message(said: bytes) -> bytes:
    """Return the line by which a process told why it ended; b"" if it said nothing.

    The last one of the incarnation that spoke last, but for what follows such a line by itself: the
    frame of a group of exceptions, frames of Java, what Python says where it cannot write any more.
    Of a Go program that is the line of its panic, if only goroutines follow; of a JVM that crashed
    the line of its notice that gives the reason.
    """
    lines = [line.rstrip() for line in _own(said).split(b"\n") if not line.startswith(_OURS)]
    if panic := _panic(lines):
        return panic
    told = [line for each in lines if (line := each.strip(_FRAMES))]
    told = [line for line in told if not line.startswith(_FOLLOW)]
    notice = [*takewhile(_is_notice, reversed(told))][::-1]
    return _crash(notice) or next((line for line in reversed(told) if not _is_notice(line)), b"")


def _own(said: bytes) -> bytes:
    """What stands behind the last mark that an incarnation starts: above it spoke another one."""
    starts = [mark.end() for mark in _STARTS.finditer(said)]
    return said[starts[-1] :] if starts else said


def _panic(lines: Sequence[bytes]) -> bytes:
    """The last panic, if nothing but its dump follows: else the program recovered from it."""
    for line in reversed(lines):
        if (panic := line.strip(_FRAMES)).startswith(_PANICS):
            return panic
        if line and not line.startswith(b"\t") and _DUMP.fullmatch(line) is None:
            return b""
    return b""


def _is_notice(line: bytes) -> bool:
    return line.startswith(b"#")


def _crash(notice: Sequence[bytes]) -> bytes:
    """The reason that HotSpot's notice gives; b"" if it is none of its notices."""
    lines = [line for each in notice if (line := each.strip(b"# "))]
    for number, line in enumerate(lines):
        if line.startswith(_NO_MEMORY):
            return line
        if line.startswith(_CRASHED):
            reasons = lines[number + 1 : number + 3]
            return next((each for each in reasons if not each.startswith(_VAGUE)), line)
    return b""


def in_log(log: Path, since_bytes: int) -> bytes:
    """Return the last words that stand in a log behind its first `since_bytes`."""
    return crash_message(tail(log, since_bytes, TAIL_BYTES))


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
