"""Find the line in which a process reported why it ended: it tells a fault's effect from a crash.

A process may be refused a resource, recover, and end of a planted bug later. So only its final
message counts, not earlier output, and not the output of an earlier incarnation.

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
"""Lines after the reason, and headings; a process out of memory may print only these."""
_FRAMES: Final = b" |+-\t\r"
_PANICS: Final = (b"panic:", b"fatal error:")
_DUMP: Final = re.compile(
    rb"goroutine \d+\b.*:|runtime stack:|created by \S+.*|\[signal .*\]"
    rb"|\S+\.\S+\(.*\)|panic\(.*\)|\.\.\.\d+ frames elided\.\.\.|exit status \d+"
    rb"|[a-z]+[0-9]* +0x[0-9a-f]+"  # a register
)
"""The unindented lines after a Go panic, each matched as a whole."""
_NO_MEMORY: Final = b"There is insufficient memory"
_CRASHED: Final = b"A fatal error has been detected by"
_VAGUE: Final = (b"Internal Error", b"Out of Memory Error")
"""How a HotSpot notice starts whose next line gives the reason."""


def crash_message(output: bytes) -> bytes:
    """Return the line in which a process reported why it ended; b"" if it wrote nothing.

    It is the last line of the last incarnation, ignoring what follows such a line: frames of
    exception groups and of Java, and what Python prints when it can no longer write. For a Go
    program it is the line of the panic, if only goroutines follow; for a crashed JVM the line of
    its notice that gives the reason.
    """
    lines = [line.rstrip() for line in _own(output).split(b"\n") if not line.startswith(_OURS)]
    if panic := _panic(lines):
        return panic
    messages = [line for each in lines if (line := each.strip(_FRAMES))]
    messages = [line for line in messages if not line.startswith(_FOLLOW)]
    notice = [*takewhile(_is_notice, reversed(messages))][::-1]
    return _crash(notice) or next(
        (line for line in reversed(messages) if not _is_notice(line)), b""
    )


def _own(output: bytes) -> bytes:
    """Return the output after the last start marker: before it wrote an earlier incarnation."""
    starts = [mark.end() for mark in _STARTS.finditer(output)]
    return output[starts[-1] :] if starts else output


def _panic(lines: Sequence[bytes]) -> bytes:
    """Return the last panic, if only its dump follows; otherwise the program recovered from it."""
    for line in reversed(lines):
        if (panic := line.strip(_FRAMES)).startswith(_PANICS):
            return panic
        if line and not line.startswith(b"\t") and _DUMP.fullmatch(line) is None:
            return b""
    return b""


def _is_notice(line: bytes) -> bool:
    return line.startswith(b"#")


def _crash(notice: Sequence[bytes]) -> bytes:
    """Return the reason in HotSpot's notice; b"" if it is not such a notice."""
    lines = [line for each in notice if (line := each.strip(b"# "))]
    for number, line in enumerate(lines):
        if line.startswith(_NO_MEMORY):
            return line
        if line.startswith(_CRASHED):
            reasons = lines[number + 1 : number + 3]
            return next((each for each in reasons if not each.startswith(_VAGUE)), line)
    return b""


def in_log(log: Path, since_bytes: int) -> bytes:
    """Return the crash message in a log after its first `since_bytes`."""
    return crash_message(tail(log, since_bytes, TAIL_BYTES))


def tail(log: Path, since_bytes: int, bytes_max: int) -> bytes:
    """Return the end of a log after its first `since_bytes`; b"" if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(since_bytes, file.seek(0, 2) - bytes_max))
            return file.read(bytes_max)
    except OSError:
        return b""


def size_bytes(log: Path) -> int:
    """Return the size of a log; 0 if there is none."""
    try:
        return log.stat().st_size
    except OSError:
        return 0
