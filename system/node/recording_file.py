"""The file of a recording: whole records behind a magic number, each with its length and CRC.

Records are appended and never changed, so what a killed process leaves is a readable recording
with, at most, one torn record at its end.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

MAGIC = b"shaketable recording 1\n"
RECORD_BYTES_MAX = 256 << 20
_HEAD = struct.Struct(">II")


class BadRecording(Exception):  # noqa: N818 - a finding about the file
    """A file is no recording: one line that says why."""


Record = list[Any]
"""A kind, and what belongs to it (see `system.node.recorder`)."""


def frame(payload: bytes) -> bytes:
    """Return a record as it stands in the file."""
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def read_records(path: Path) -> Iterator[Record]:
    """Yield a recording's records up to its end or its torn tail. Raises BadRecording."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise BadRecording(f"{path} is no recording of a node")
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                size, crc = _HEAD.unpack(head)
                payload = file.read(min(size, RECORD_BYTES_MAX))
                if len(payload) != size or zlib.crc32(payload) != crc:
                    return
                yield msgspec.msgpack.decode(payload)
    except OSError as error:
        raise BadRecording(f"{path} cannot be read: {error.strerror or error}") from None
