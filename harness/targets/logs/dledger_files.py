"""Read the entries of a stopped node's DLedger log, by an independent decoder.

It checks what the node wrote, so it shares no code with the node: a bug in a common codec could
hide. Damage does not end the reading. A damaged entry becomes a row with a `problem`, and reading
continues at the next entry or, if the entry's size cannot be trusted, at the next position that
certainly holds an entry.

Source: DLedger's DLedgerMmapFileStore and DLedgerEntryCoder; RocketMQ's MessageDecoder; DLEDGER.md
sections B.1 and B.3.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

import numpy as np
import pyarrow as pa

from shaketable.harness.history.schema import ENTRIES
from shaketable.harness.targets.dledger_members import last_member
from shaketable.harness.targets.logs.dledger_kernels import (
    ENTRY_BYTES_MIN,
    HAS_ENTRY,
    HAS_KEY,
    HAS_VALUE,
    Bytes,
    Ints,
    decode,
    find_key,
    hash_key,
    skim,
)

BATCH_ROWS = 65_536
"""Entries in a batch; bounds the reader's memory."""

RESERVED_TOPICS: Final = ("RMQ_SYS_", "SCHEDULE_TOPIC_XXXX", "%RETRY%", "%DLQ%")
"""Prefixes of topics that no client sends to: internal state of brokers, and copies of messages
that are delivered later or again."""

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
_FILE_NAME = re.compile(r"\d{20}")
_VALUE = re.compile(rb"(-?[0-9]{1,19})(?: |\Z)")
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

_User = tuple[str | None, int | None, int | None, str | None]  # key, offset, value, problem


# ---- batches of ENTRIES rows, built as columns that the compiled decoder fills -----------------
#
# `Keys` numbers the queues; `Rows` holds one batch.

# A row of ENTRIES without its node.
Row = tuple[
    int, int | None, int, int | None, int | None, str | None, int | None, int | None, str | None
]
_FREE = -1
_SLOTS_MIN = 64
_COLUMNS = 8  # index, term, position, size, crc, key, offset, value


class Keys:
    """The queues seen so far, by topic bytes: an open-addressing hash table for kernels.

    `slots` maps a hash (with linear probing) to a queue's number; `known` holds for each number
    (start in `arena`, length, queue id, is visible to users); `texts` holds its key, None for an
    internal topic.
    """

    def __init__(self) -> None:
        self.slots: Ints = np.full(_SLOTS_MIN, _FREE, dtype=np.int64)
        self.known: Ints = np.zeros((_SLOTS_MIN // 2, 4), dtype=np.int64)
        self.arena: Bytes = np.zeros(1024, dtype=np.uint8)
        self.texts: list[str | None] = []
        self._used_bytes = 0
        self._by_text: dict[str, int] = {}

    @property
    def table(self) -> tuple[Ints, Ints, Bytes]:
        """The arrays that `decode` searches."""
        return self.slots, self.known, self.arena

    def add(self, topic: bytes, queue_id: int, text: str | None) -> None:
        """Add a queue, unless it is known."""
        name = np.frombuffer(topic, dtype=np.uint8)
        if find_key(name, 0, len(name), queue_id, self.slots, self.known, self.arena) >= 0:
            return
        number = len(self.texts)
        if number == len(self.known):
            self._grow()
        while self._used_bytes + len(name) > len(self.arena):
            self.arena = np.concatenate((self.arena, np.zeros_like(self.arena)))
        self.arena[self._used_bytes : self._used_bytes + len(name)] = name
        self.known[number] = self._used_bytes, len(name), queue_id, text is not None
        self._used_bytes += len(name)
        self.texts.append(text)
        if text is not None:
            self._by_text.setdefault(text, number)
        self._place(number)

    def number_of(self, text: str) -> int:
        """Return the number of a queue that was added."""
        return self._by_text[text]

    def _place(self, number: int) -> None:
        start, length, queue_id = (int(n) for n in self.known[number, :3])
        slot = hash_key(self.arena, start, length, queue_id) & (len(self.slots) - 1)
        while self.slots[slot] != _FREE:
            slot = (slot + 1) & (len(self.slots) - 1)
        self.slots[slot] = number

    def _grow(self) -> None:
        """Double the capacity; half of the slots stay free, so that probes stay short."""
        self.known = np.concatenate((self.known, np.zeros_like(self.known)))
        self.slots = np.full(2 * len(self.slots), _FREE, dtype=np.int64)
        for number in range(len(self.texts)):
            self._place(number)


class Rows:
    """One batch of a node's rows: filled by the decoder from `count` on, or row by row."""

    def __init__(self, node: str, keys: Keys, rows_max: int) -> None:
        self.node = node
        self.keys = keys
        self.rows_max = rows_max
        self._empty()

    def _empty(self) -> None:
        # New arrays each time: the batch that was returned still refers to the old ones.
        self.out: Ints = np.zeros((_COLUMNS, self.rows_max), dtype=np.int64)
        self.flags: Bytes = np.zeros(self.rows_max, dtype=np.uint8)
        self.count = 0
        self._problems: dict[int, str] = {}

    @property
    def columns(self) -> tuple[Ints, Bytes]:
        """The arrays that `decode` fills."""
        return self.out, self.flags

    @property
    def is_full(self) -> bool:
        """True if there is no room for another row."""
        return self.count == self.rows_max

    def add(self, row: Row) -> None:
        """Add one row; there must be room."""
        index, term, position, size, crc, key, offset, value, problem = row
        n, flag = self.count, 0
        self.out[0, n], self.out[2, n] = index, position
        if term is not None and size is not None and crc is not None:
            self.out[1, n], self.out[3, n], self.out[4, n] = term, size, crc
            flag |= HAS_ENTRY
        if key is not None and offset is not None:
            self.out[5, n], self.out[6, n] = self.keys.number_of(key), offset
            flag |= HAS_KEY
        if value is not None:
            self.out[7, n] = value
            flag |= HAS_VALUE
        if problem is not None:
            self._problems[n] = problem
        self.flags[n] = flag
        self.count += 1

    def take(self) -> pa.RecordBatch:
        """Return the rows as a batch of ENTRIES, and start a new batch."""
        n, out, flags = self.count, self.out, self.flags[: self.count]

        def column(number: int, needs: int) -> pa.Array:
            is_null = (flags & needs) == 0
            return pa.array(out[number, :n], mask=is_null if is_null.any() else None)

        numbers = column(5, HAS_KEY).cast(pa.int32())
        texts = pa.array(self.keys.texts, pa.string())
        problems = pa.nulls(n, pa.string())
        if self._problems:
            problems = pa.array([self._problems.get(row) for row in range(n)], pa.string())
        columns = {
            "node": pa.repeat(pa.scalar(self.node, pa.string()), n),
            "index": pa.array(out[0, :n]),
            "term": column(1, HAS_ENTRY),
            "position": pa.array(out[2, :n]),
            "size": column(3, HAS_ENTRY),
            "crc": column(4, HAS_ENTRY),
            "key": texts.take(numbers),
            "offset": column(6, HAS_KEY),
            "value": column(7, HAS_VALUE),
            "problem": problems,
        }
        self._empty()
        return pa.RecordBatch.from_arrays([columns[name] for name in ENTRIES.names], schema=ENTRIES)


def read_entries(
    directory: Path, node: str, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of `node`'s log as batches of schema ENTRIES, in log order.

    `directory` is the node's folder, which holds `store/dledger-<id>/data`; a node that never wrote
    has no such folder and yields nothing. `index` and `position` are the entry's actual place in
    the log; if the stored ones differ, `problem` states it.

    Raises:
        OSError: the node's folder does not exist, or a file cannot be read.
    """
    yield from _read(_data_files(directory, node), _Walk(), node, batch_rows)


def log_segments(directory: Path, node: str) -> tuple[str, ...]:
    """Return the names of the node's data files, in log order.

    `read_segment` of each, in this order, gives the rows of `read_entries`.

    Raises:
        OSError: the node's folder does not exist.
    """
    return tuple(path.name for path in _data_files(directory, node))


def read_segment(
    directory: Path, node: str, segment: str, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one data file, as `read_entries` would, so files can be read in parallel.

    The checks of an entry depend on the entries before it, so the headers of the preceding file are
    walked first.

    Raises:
        OSError: the node's folder does not exist, or a file cannot be read.
    """
    files = _data_files(directory, node)
    at = next((n for n, path in enumerate(files) if path.name == segment), None)
    if at is None:
        raise FileNotFoundError(f"{directory}: node {node} has no data file {segment}")
    yield from _read(files[at : at + 1], _walk_before(files, at), node, batch_rows)


def _data_files(directory: Path, node: str) -> list[Path]:
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory}: no folder of node {node} here")
    data = directory / "store" / f"dledger-{last_member(directory, node)}" / "data"
    if not data.is_dir():
        return []
    return sorted(path for path in data.iterdir() if _FILE_NAME.fullmatch(path.name))


def _read(
    files: Sequence[Path], walk: _Walk, node: str, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    rows = Rows(node, walk.keys, batch_rows)
    for _ in _walk_files(files, walk, rows):
        yield rows.take()
    if rows.count:
        yield rows.take()


@dataclass(slots=True)
class _Walk:
    """The state of the walk through the log.

    Attributes:
        index: the next entry's index; after a hole (`is_sure` false) a lower bound.
        is_sure: whether `index` is exact.
        links: CRCs that the next entry's chainCrc may start from: of the last entry's chainCrc as
            stored, and as computed if that differs, which means damage; empty right after a hole,
            where the chain is unknown.
        tail: the position at which entries ended in zeros, if they did.
        expected: where the next file must start; None before the first.
        is_settled: the state is the same as if the walk had started at the log's first file.
        keys: the queues seen so far.
    """

    index: int = 0
    is_sure: bool = True
    links: tuple[int, ...] = (crc32(bytes(4)),)
    tail: int | None = None
    expected: int | None = None
    is_settled: bool = True
    keys: Keys = field(default_factory=Keys)

    def lose(self) -> None:
        """Forget the chain: the log is unknown here."""
        self.is_sure, self.links = False, ()

    def hole(self, position: int, problem: str) -> Row:
        """Return the row for an entry that cannot be read, and forget the chain."""
        self.lose()
        return (self.index, None, position, None, None, None, None, None, problem)


def _walk_before(files: Sequence[Path], at: int) -> _Walk:
    """Return the walk's state before file `at`, walking as few preceding files as needed.

    Two consecutive entries, of which the second chains to the first, settle the state: the chain
    CRC proves that they are neighbours in the log.
    """
    for first in reversed(range(at)):
        walk = _Walk()
        if first:
            walk.lose()
            walk.expected, walk.is_settled = int(files[first].name), False
        for _ in _walk_files(files[first:at], walk, None):
            pass
        if walk.is_settled:
            return walk
    return _Walk()


def _walk_files(files: Sequence[Path], walk: _Walk, rows: Rows | None) -> Iterator[None]:
    """Walk data files; report missing files, and data after the log's end.

    Yields whenever `rows` is full. Without `rows` only headers are checked.
    """
    for path in files:
        start, size = int(path.name), path.stat().st_size
        if walk.expected is None and start:
            walk.lose()  # the log's older files were deleted
        if walk.expected is not None and start != walk.expected:
            problem = f"the data files end at {walk.expected}, the next one is {path.name}"
            yield from _add(rows, walk.hole(walk.expected, problem))
        walk.expected = start + size
        if not size:
            continue
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if walk.tail is not None:
                if _is_zero(file, data, 0):
                    continue
                problem = f"the log ends here, but file {path.name} holds data"
                yield from _add(rows, walk.hole(walk.tail, problem))
                walk.tail = None
            yield from _walk_file(file, data, start, walk, rows)


def _add(rows: Rows | None, row: Row) -> Iterator[None]:
    """Add a row, if rows are wanted; yield if that fills them."""
    if rows is not None:
        rows.add(row)
        if rows.is_full:
            yield


def _walk_file(
    file: BinaryIO, data: mmap.mmap, start: int, walk: _Walk, rows: Rows | None
) -> Iterator[None]:
    """Walk one data file from its first entry to its blank, its end or its zero tail."""
    at, end = 0, len(data)
    # The view keeps the map open; it is unmapped with its last reference.
    content = np.frombuffer(data, dtype=np.uint8)
    while at < end:
        at = _sound_entries(content, at, start, walk, rows)
        if rows is not None and rows.is_full:
            _forget(data, at)
            yield
            continue
        if at == end:
            return
        magic, size = _BLANK.unpack_from(data, at) if end - at >= _BLANK.size else (0, 0)
        fits = magic == _MAGIC_ENTRY and ENTRY_BYTES_MIN <= size <= end - at
        if fits and _INT.unpack_from(data, at + _BODYSIZE_AT)[0] == size - _HEADER.size:
            row = _entry(data, at, start + at, walk, is_wanted=rows is not None)
            yield from _add(rows, row)
            at += size
            continue
        if magic == _MAGIC_BLANK and size == end - at:
            return
        if magic == 0 and _is_zero(file, data, at):
            walk.tail = start + at
            return
        yield from _add(rows, walk.hole(start + at, _header_problem(magic, size, end - at)))
        found = _next_entry(data, at + 1, start)
        if found is None:
            return
        at = found


def _sound_entries(content: Bytes, at: int, start: int, walk: _Walk, rows: Rows | None) -> int:
    """Decode entries by the compiled kernel, until one has a problem or the rows are full."""
    if not walk.is_sure or len(walk.links) != 1:
        return at
    before, link = at, walk.links[0]
    if rows is None:
        at, walk.index, link = skim(content, at, start, walk.index, link)
    else:
        at, walk.index, link, rows.count = decode(
            content, at, start, walk.index, link, rows.keys.table, rows.columns, rows.count
        )
    walk.links = (link,)
    walk.is_settled |= at > before
    return at


def _forget(data: mmap.mmap, at: int) -> None:
    """Drop the pages that were read, so that they do not count as this process's memory."""
    read = at // mmap.PAGESIZE * mmap.PAGESIZE
    if read and hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED, 0, read)


def _entry(data: mmap.mmap, at: int, position: int, walk: _Walk, *, is_wanted: bool) -> Row:
    """Decode and check the entry at `at`, whose size fits; advance the walk past it.

    If no row is wanted, only the header is checked.
    """
    _, size, index, term, pos, channel, chain_crc, body_crc, _ = _HEADER.unpack_from(data, at)
    body_at = at + _HEADER.size
    head = data[at : at + _CHAINED_BYTES] + data[at + 40 : at + 48]  # .. channel, bodyCrc, bodySize
    stored = chain_crc & 0xFFFFFFFF
    links: tuple[int, ...] = (crc32(stored.to_bytes(4, "big")),)
    problems = []
    computed = [crc32(head, link) for link in walk.links]
    if computed and stored not in computed:
        problems.append("chainCrc does not match")
        links += (crc32(computed[0].to_bytes(4, "big")),)
    elif computed and stored == computed[0]:
        walk.is_settled = True
    if index != walk.index and (walk.is_sure or index < walk.index):
        problems.append(f"index is {index}, not {walk.index}")
        if problems[0].startswith("chain"):
            index = walk.index  # the header is damaged, its index cannot be trusted
    walk.index, walk.is_sure, walk.links = index + 1, True, links
    if not is_wanted:
        return (index, term, position, size, None, None, None, None, None)
    if pos != position:
        problems.append(f"pos is {pos}, not {position}")
    if channel not in _CHANNELS:
        problems.append(f"channel is {channel}")
    body = data[body_at : at + size]
    crc = crc32(body)
    if crc != body_crc & 0xFFFFFFFF:
        problems.append("bodyCrc does not match")
    key, offset, value, problem = _message(body, position + _HEADER.size, walk.keys)
    if problem:
        problems.append(problem)
    return (
        index, term, position, size, crc, key, offset, value,
        "; ".join(problems) if problems else None,
    )  # fmt: skip


def _message(body: bytes, position: int, keys: Keys) -> _User:
    """Decode an entry's body as a message: (key, offset, value, problem)."""
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


def _key(topic: bytes, queue_id: int, keys: Keys) -> str | None:
    """Return "<topic>/<queueId>", None for internal topics; add the queue to `keys`."""
    text = topic.decode("utf-8", "backslashreplace")
    name = None if text.startswith(RESERVED_TOPICS) else f"{text}/{queue_id}"
    keys.add(topic, queue_id, name)
    return name


def _value(payload: bytes) -> int | None:
    """Return the decimal number at the start of `payload`, or None if there is none."""
    match = _VALUE.match(payload)
    if match is None:
        return None
    value = int(match[1])
    return value if _INT64_MIN <= value <= _INT64_MAX else None


def _header_problem(magic: int, size: int, left_bytes: int) -> str:
    """Return why the bytes here are neither an entry nor a blank."""
    if magic == _MAGIC_ENTRY:
        return (
            f"the entry's size of {size} does not fit its bodySize or the {left_bytes} bytes left"
        )
    if magic == _MAGIC_BLANK:
        return f"a blank of {size} bytes, {left_bytes} are left in the file"
    if magic == 0:
        return "zeros, and data after them"
    return f"no entry: the magic is {magic:#x}"


def _next_entry(data: mmap.mmap, at: int, start: int) -> int | None:
    """Return the position of the next entry from `at` on, one whose stored position is its own."""
    needle = _INT.pack(_MAGIC_ENTRY)
    end = len(data)
    while (at := data.find(needle, at)) >= 0:
        if end - at < _HEADER.size:
            return None
        _, size, index, _, pos, channel, _, _, body_size = _HEADER.unpack_from(data, at)
        fits = ENTRY_BYTES_MIN <= size <= end - at and body_size == size - _HEADER.size
        if fits and pos == start + at and index >= 0 and channel in _CHANNELS:
            return at
        at += 1
    return None


def _is_zero(file: BinaryIO, data: mmap.mmap, at: int, piece_bytes: int = 1 << 22) -> bool:
    """Return whether there are only zeros from `at` to the end of the file.

    Holes of a sparse file are skipped: the last data file consists mostly of them.
    """
    while at < len(data):
        try:
            at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            end = min(os.lseek(file.fileno(), at, os.SEEK_HOLE), at + piece_bytes)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                return True
            end = at + piece_bytes  # the file system does not support SEEK_DATA
        if np.frombuffer(data, np.uint8)[at:end].any():
            return False
        _forget(data, at)
        at = end
    return True
