"""Crash-safe recordings: append-only files of events, each readable after a SIGKILL.

A segment is `MAGIC`, then frames `kind u8 | length u32 | crc u32 | payload`, big-endian;
the CRC-32 covers kind, length and payload. An event's payload is the msgpack array of
`Event`; the payload of the closing frame, written by a clean close, is the number of
events as u64. A batch of events goes out in one write(2), without fsync: the kernel
holds what a killed process wrote, and a history need not survive a power cut.

Source: DESIGN.md section 3 ("Event"); etcd's wal and LevelDB's log for framing by CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

MAGIC = b"STSEG1\r\n"
NEMESIS = -1
"""The nemesis' process number (schema.NEMESIS_PROCESS, without its import of pyarrow)."""

PAYLOAD_BYTES_MAX = 1 << 20
"""Longest payload of a frame; a longer length can only be damage."""

_FRAME = struct.Struct(">BII")
_HEAD = struct.Struct(">BI")
_COUNT = struct.Struct(">Q")
_EVENT = 1
_CLOSE = 2
_CLOSE_BYTES = _FRAME.size + _COUNT.size


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event as recorded. What schema.EVENTS holds as JSON stands in columns here.

    `input`, `output` and `offset` are what the OPERATIONS columns of those names get;
    `extra` is JSON text (the whole value of a nemesis event). `time_ns` counts from the
    run's start.
    """

    time_ns: int
    process: int
    type: str
    f: str
    key: str | None = None
    input: int | None = None
    output: int | None = None
    offset: int | None = None
    error: str | None = None
    node: str | None = None
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """What a segment file holds.

    `torn` says in one line (file, byte, events kept) where the file stops being
    readable, if it does. `closed`: a closing frame ends the file. `events_expected` is
    its count. `damaged`: what is unreadable is not the mere tail that a SIGKILL may
    leave, so events that were recorded are missing.
    """

    path: Path
    events: tuple[Event, ...]
    torn: str | None = None
    closed: bool = False
    events_expected: int | None = None
    damaged: bool = False


class SegmentWriter:
    """Appends events to a new segment file.

    Raises:
        HarnessError: the file exists already or cannot be written (disk full).
    """

    def __init__(self, path: Path) -> None:
        raise NotImplementedError

    def write(self, events: Iterable[Event]) -> None:
        """Append a batch in one write(2)."""
        raise NotImplementedError

    def close(self) -> int:
        """Write the closing frame; return the number of events. Idempotent."""
        raise NotImplementedError


def read_segment(path: Path) -> Segment:
    """Read all events up to the first unreadable byte.

    Raises:
        HarnessError: there is no such file, or it cannot be read.
    """
    raise NotImplementedError
