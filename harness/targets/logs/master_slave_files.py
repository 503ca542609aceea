"""Read the messages of a stopped broker's commit log, by an independent decoder.

Messages are stored back to back in files that are named by their first byte's position. A size of 0
ends the log; a blank fills the end of a file where the next message did not fit. This checks what
the broker wrote, so it shares no code with it. Positions serve as the rows' indices.

Source: RocketMQ's CommitLog and MessageDecoder; DLEDGER.md sections B.1 and B.2.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from shaketable.harness.history.schema import ENTRIES

BATCH_ROWS: Final = 65_536
PLACE_FILE: Final = "shaketable-place.json"
RESERVED_TOPICS: Final = ("RMQ_SYS_", "%RETRY%", "%DLQ%", "SCHEDULE_TOPIC_XXXX", "TBW102")
"""Prefixes of topics that no client of a campaign sends to."""

_NAME = re.compile(r"\d{20}")
_VALUE = re.compile(rb"-?[0-9]{1,18}")
_HEAD = struct.Struct(">iiiiiqqi")  # TOTALSIZE .. QUEUEID FLAG QUEUEOFFSET PHYSICALOFFSET SYSFLAG
_INT = struct.Struct(">i")
_MESSAGE, _MESSAGE_V2, _BLANK = -626843481, -626843477, -875286124
_V6_BITS = (16, 32)
_V6_MORE_BYTES = 12
_BODY_AT = 84  # BODYLEN, in a message whose hosts are IPv4
_SIZE_MIN = 91


@dataclass(frozen=True, slots=True)
class Place:
    """Which queues a node may have: those of broker name number `broker` of `masters`."""

    broker: int
    masters: int

    def encoded(self) -> str:
        """Return it as stored in the node's folder, as PLACE_FILE."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, directory: Path) -> Place:
        """Return the stored one.

        Raises:
            OSError: it cannot be read.
        """
        try:
            return cls(**json.loads((directory / PLACE_FILE).read_bytes()))
        except (ValueError, TypeError) as error:
            raise OSError(f"{directory / PLACE_FILE}: {error}") from error

    def key(self, topic: str, queue_id: int) -> str:
        """Return the campaign's key of that queue."""
        return f"{topic}/{queue_id * self.masters + self.broker}"


def read_messages(directory: Path, node: str) -> Iterator[pa.RecordBatch]:
    """Yield a node's messages as batches of schema ENTRIES, in log order.

    `directory` is the node's folder, which holds `store/commitlog`; a node that never wrote has no
    such folder and yields nothing.

    Raises:
        OSError: the node's folder does not exist, or a file cannot be read.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory}: no folder of node {node} here")
    place = Place.read(directory)
    folder = directory / "store" / "commitlog"
    files = sorted(path for path in folder.glob("*") if _NAME.fullmatch(path.name))
    rows: list[dict[str, Any]] = []
    for path in files:
        with path.open("rb") as file:
            if not path.stat().st_size:
                continue
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                for row in _messages(data, int(path.name), place):
                    rows.append({"node": node, "term": 0, **row})
                    if len(rows) == BATCH_ROWS:
                        yield pa.RecordBatch.from_pylist(rows, ENTRIES)
                        rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, ENTRIES)


def _messages(data: mmap.mmap, begin: int, place: Place) -> Iterator[dict[str, Any]]:
    """Yield the messages of one file, up to the first that is unreadable."""
    at = 0
    while at + 8 <= len(data):
        size, magic = struct.unpack_from(">ii", data, at)
        if size == 0 or magic == _BLANK:
            return
        if magic not in (_MESSAGE, _MESSAGE_V2) or not _SIZE_MIN <= size <= len(data) - at:
            what = f"neither a message nor the log's end: size {size}, magic {magic}"
            yield _row(begin + at, 0, 0, problem=what)
            return
        yield _message(data[at : at + size], begin + at, place, magic == _MESSAGE_V2)
        at += size


def _message(raw: bytes, position: int, place: Place, is_v2: bool) -> dict[str, Any]:
    size, _, body_crc, queue_id, _, offset, said, flags = _HEAD.unpack_from(raw)
    more = sum(_V6_MORE_BYTES for bit in _V6_BITS if flags & bit)
    at = _BODY_AT + more
    try:
        (length,) = _INT.unpack_from(raw, at)
        body = raw[at + 4 : at + 4 + length]
        at += 4 + length
        width = 2 if is_v2 else 1
        topic_length = int.from_bytes(raw[at : at + width], "big")
        topic = raw[at + width : at + width + topic_length].decode()
        at += width + topic_length
        whole = at + 2 + int.from_bytes(raw[at : at + 2], "big") == size
    except (struct.error, UnicodeDecodeError):
        whole, topic, body = False, "", b""
    problem = None
    if not whole:
        problem = "its parts do not add up to its size"
    elif said != position:
        problem = f"it names its own position as {said}"
    elif body_crc and body_crc & 0x7FFFFFFF != crc32(body) & 0x7FFFFFFF:
        problem = "its body does not match its CRC"
    row = _row(position, size, crc32(raw), problem=problem)
    if whole and not topic.startswith(RESERVED_TOPICS):
        row |= {"key": place.key(topic, queue_id), "offset": offset}
        row["value"] = int(body) if _VALUE.fullmatch(body) else None
    return row


def _row(position: int, size: int, crc: int, problem: str | None) -> dict[str, Any]:
    return {
        "index": position,
        "position": position,
        "size": size,
        "crc": crc,
        "key": None,
        "offset": None,
        "value": None,
        "problem": problem,
    }
