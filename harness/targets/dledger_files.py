"""Reads the entries of a stopped node's DLedger log, written from the format's facts alone.

It judges what the node wrote, so it shares no code with the node: a bug in a common
codec could not hide. Nothing that is wrong with the files ends the reading. An entry
that is damaged comes out as a row that says so, and reading goes on at the next entry,
or, where its size cannot be trusted, at the next place that is certainly an entry.

Source: DLedger's DLedgerMmapFileStore and DLedgerEntryCoder; RocketMQ's
MessageDecoder; DLEDGER.md sections B.1 and B.3.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa

from harness.history.schema import ENTRIES

BATCH_ROWS = 65_536
"""Entries in a batch: what bounds the reader's memory."""

INTERNAL_TOPIC = "RMQ_SYS_DLEDGER_EVENT"
"""Topic of the entries that are not user messages (term starts and the like)."""

_HEADER = struct.Struct(">iiqqqiiii")
_CHANNELS = (0, 1)  # messages; changes of the group's membership
_CHAINED_BYTES = 36  # of the header: magic .. channel
_BODYSIZE_AT = 44
_BLANK = struct.Struct(">ii")
_MESSAGE = struct.Struct(">iiiiiqqi")  # TOTALSIZE .. SYSFLAG
_INT = struct.Struct(">i")
_MAGIC_ENTRY, _MAGIC_BLANK = 1, -1
_MAGIC_MESSAGE, _MAGIC_MESSAGE_V2 = -626843481, -626843477
_SYSFLAG_BORNHOST_V6, _SYSFLAG_STOREHOST_V6 = 16, 32
_HOST_V6_MORE_BYTES = 12
_BODYLEN_AT = 84  # in a message whose hosts are IPv4
_MESSAGE_BYTES_MIN = 91
_ENTRY_BYTES_MIN = _HEADER.size + _MESSAGE_BYTES_MIN
_FILE_NAME = re.compile(r"\d{20}")
_VALUE = re.compile(rb"(-?[0-9]{1,19})(?: |\Z)")
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

# A row of ENTRIES without its node.
_Row = tuple[
    int, int | None, int, int | None, int | None, str | None, int | None, int | None, str | None
]
_User = tuple[str | None, int | None, int | None, str | None]  # key, offset, value, problem


def read_entries(
    directory: Path, node: str, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of `node`'s log as batches of schema ENTRIES, in the log's order.

    `directory` is the node's folder, which holds `store/dledger-<node>/data`; a node
    that never wrote has no such folder and yields nothing. `index` and `position` are
    the entry's true place in the log; where the stored ones differ, `problem` says so.

    Raises:
        OSError: the node's folder is not there, or a file cannot be read.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory}: no folder of node {node} here")
    data = directory / "store" / f"dledger-{node}" / "data"
    rows: list[_Row] = []
    if data.is_dir():
        for row in _walk_files(data):
            rows.append(row)
            if len(rows) >= batch_rows:
                yield _batch(node, rows)
                rows = []
    if rows:
        yield _batch(node, rows)


def _batch(node: str, rows: list[_Row]) -> pa.RecordBatch:
    columns = [[node] * len(rows), *(list(column) for column in zip(*rows, strict=True))]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, ENTRIES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRIES)


@dataclass(slots=True)
class _Walk:
    """Where the walk through the log stands.

    `index` is the next entry's; behind a hole (`is_sure` false) it is a lower bound.
    `links` are the CRCs with which the next entry's chainCrc may begin: of the last entry's
    chainCrc as stored, and as computed if that differs, which only damage can bring about;
    empty right behind a hole, where the chain is not known. `tail` is the position at
    which entries ended in zeros, once they did.
    """

    index: int = 0
    is_sure: bool = True
    links: tuple[int, ...] = (crc32(bytes(4)),)
    tail: int | None = None
    keys: dict[bytes, str | None] = field(default_factory=dict)

    def hole(self, position: int, problem: str) -> _Row:
        """Return the row for an entry that cannot be read, and forget the chain."""
        self.is_sure, self.links = False, ()
        return (self.index, None, position, None, None, None, None, None, problem)


def _walk_files(data: Path) -> Iterator[_Row]:
    """Walk all data files; say where one is missing or the log goes on behind its end."""
    files = sorted(path for path in data.iterdir() if _FILE_NAME.fullmatch(path.name))
    walk = _Walk()
    expected: int | None = None
    for path in files:
        start, size = int(path.name), path.stat().st_size
        if expected is None and start:
            walk.is_sure, walk.links = False, ()  # the log's older files were deleted
        if expected is not None and start != expected:
            problem = f"the data files end at {expected}, the next one is {path.name}"
            yield walk.hole(expected, problem)
        expected = start + size
        if not size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data_:
            if walk.tail is not None:
                if _is_zero(data_, 0):
                    continue
                yield walk.hole(walk.tail, f"the log ends here, but file {path.name} holds data")
                walk.tail = None
            yield from _walk_file(data_, start, walk)


def _walk_file(data: mmap.mmap, start: int, walk: _Walk) -> Iterator[_Row]:
    """Walk one data file from its first entry to its blank, its end or its zero tail."""
    at, end = 0, len(data)
    while at < end:
        magic, size = _BLANK.unpack_from(data, at) if end - at >= _BLANK.size else (0, 0)
        fits = magic == _MAGIC_ENTRY and _ENTRY_BYTES_MIN <= size <= end - at
        if fits and _INT.unpack_from(data, at + _BODYSIZE_AT)[0] == size - _HEADER.size:
            yield _entry(data, at, start + at, walk)
            at += size
            continue
        if magic == _MAGIC_BLANK and size == end - at:
            return
        if magic == 0 and _is_zero(data, at):
            walk.tail = start + at
            return
        yield walk.hole(start + at, _header_problem(magic, size, end - at))
        found = _next_entry(data, at + 1, start)
        if found is None:
            return
        at = found


def _entry(data: mmap.mmap, at: int, position: int, walk: _Walk) -> _Row:
    """Decode and check the entry at `at`, whose size fits; move the walk behind it."""
    _, size, index, term, pos, channel, chain_crc, body_crc, _ = _HEADER.unpack_from(data, at)
    body_at = at + _HEADER.size
    head = data[at : at + _CHAINED_BYTES] + data[at + 40 : at + 48]  # .. channel, bodyCrc, bodySize
    body = data[body_at : at + size]
    crc = crc32(body)
    stored = chain_crc & 0xFFFFFFFF
    links: tuple[int, ...] = (crc32(stored.to_bytes(4, "big")),)
    problems = []
    computed = [crc32(head, link) for link in walk.links]
    if computed and stored not in computed:
        problems.append("chainCrc does not match")
        links += (crc32(computed[0].to_bytes(4, "big")),)
    if index != walk.index and (walk.is_sure or index < walk.index):
        problems.append(f"index is {index}, not {walk.index}")
        if problems[0].startswith("chain"):
            index = walk.index  # the header is damaged: its index says nothing
    if pos != position:
        problems.append(f"pos is {pos}, not {position}")
    if channel not in _CHANNELS:
        problems.append(f"channel is {channel}")
    if crc != body_crc & 0xFFFFFFFF:
        problems.append("bodyCrc does not match")
    key, offset, value, problem = _message(body, position + _HEADER.size, walk.keys)
    if problem:
        problems.append(problem)
    walk.index, walk.is_sure, walk.links = index + 1, True, links
    return (
        index, term, position, size, crc, key, offset, value,
        "; ".join(problems) if problems else None,
    )  # fmt: skip


def _message(body: bytes, position: int, keys: dict[bytes, str | None]) -> _User:
    """Decode the message that an entry's body is: (key, offset, value, problem)."""
    total, magic, payload_crc, queue_id, _, queue_offset, physical, sysflag = _MESSAGE.unpack_from(
        body
    )
    if total != len(body) or magic not in (_MAGIC_MESSAGE, _MAGIC_MESSAGE_V2):
        return None, None, None, f"the body is no message (size {total}, magic {magic:#x})"
    length_at = _BODYLEN_AT
    if sysflag & _SYSFLAG_BORNHOST_V6:
        length_at += _HOST_V6_MORE_BYTES
    if sysflag & _SYSFLAG_STOREHOST_V6:
        length_at += _HOST_V6_MORE_BYTES
    payload_at = length_at + 4
    topic_len_bytes = 1 if magic == _MAGIC_MESSAGE else 2
    length = _INT.unpack_from(body, length_at)[0] if payload_at <= total else -1
    topic_at = payload_at + length + topic_len_bytes
    if length < 0 or topic_at > total:
        return None, None, None, f"the message's payload of {length} bytes does not fit"
    payload = body[payload_at : payload_at + length]
    topic_end = topic_at + int.from_bytes(body[topic_at - topic_len_bytes : topic_at], "big")
    properties = int.from_bytes(body[topic_end : topic_end + 2], "big")
    if topic_end + 2 + properties != total:
        return None, None, None, "the message's topic and properties do not fill it"
    key = _key(body[topic_at:topic_end], queue_id, keys)
    problem = None
    if crc32(payload) & 0x7FFFFFFF != payload_crc:
        problem = "the message's BODYCRC does not match"
    elif physical != position:
        problem = f"PHYSICALOFFSET is {physical}, not {position}"
    elif queue_offset < 0:
        problem = f"QUEUEOFFSET is {queue_offset}"
    if key is None:
        return None, None, None, problem
    return key, queue_offset, _value(payload), problem


def _key(topic: bytes, queue_id: int, keys: dict[bytes, str | None]) -> str | None:
    """Return "<topic>/<queueId>", or None for the internal topic; `keys` remembers them."""
    name = b"%s/%d" % (topic, queue_id)
    if name not in keys:
        text = topic.decode("utf-8", "backslashreplace")
        keys[name] = None if text == INTERNAL_TOPIC else f"{text}/{queue_id}"
    return keys[name]


def _value(payload: bytes) -> int | None:
    """Return the decimal number at the start of `payload`, or None if there is none."""
    match = _VALUE.match(payload)
    if match is None:
        return None
    value = int(match[1])
    return value if _INT64_MIN <= value <= _INT64_MAX else None


def _header_problem(magic: int, size: int, left_bytes: int) -> str:
    """Say why what stands here can be neither an entry nor a blank."""
    if magic == _MAGIC_ENTRY:
        return (
            f"the entry's size of {size} does not fit its bodySize or the {left_bytes} bytes left"
        )
    if magic == _MAGIC_BLANK:
        return f"a blank of {size} bytes, {left_bytes} are left in the file"
    if magic == 0:
        return "zeros, and data behind them"
    return f"no entry: the magic is {magic:#x}"


def _next_entry(data: mmap.mmap, at: int, start: int) -> int | None:
    """Return where the next entry that knows its own position is, from `at` on."""
    needle = _INT.pack(_MAGIC_ENTRY)
    end = len(data)
    while (at := data.find(needle, at)) >= 0:
        if end - at < _HEADER.size:
            return None
        _, size, index, _, pos, channel, _, _, body_size = _HEADER.unpack_from(data, at)
        fits = _ENTRY_BYTES_MIN <= size <= end - at and body_size == size - _HEADER.size
        if fits and pos == start + at and index >= 0 and channel in _CHANNELS:
            return at
        at += 1
    return None


def _is_zero(data: mmap.mmap, at: int, piece_bytes: int = 1 << 22) -> bool:
    """True if only zeros follow from `at` to the end of the file."""
    return all(
        not np.frombuffer(data[here : here + piece_bytes], np.uint8).any()
        for here in range(at, len(data), piece_bytes)
    )
