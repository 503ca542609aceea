"""DLedger entries: header format, building, verification, iteration over encoded batches.

Header, 48 bytes big-endian: magic 1, size, index, term, pos, channel (0, or 1 for a membership
entry), chainCrc, bodyCrc, bodySize. bodyCrc is the CRC-32 of the body; chainCrc that of the
previous entry's chainCrc (4 bytes, 0 for the first entry), the first 36 header bytes, bodyCrc and
bodySize.
Source: DLedger's DLedgerEntryCoder, where both CRCs are always 0; DLEDGER.md B.3 and DESIGN.md
decision 3.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise, repeat
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import ENTRY_HEADER_BYTES, Batch, LogEnd
from shaketable.system.store.disk import StoreError
from shaketable.system.store.group_events import (
    EVENT_TOPIC,
    MEMBERSHIP_CHANNEL,
    MEMBERSHIP_PROPERTIES,
    MEMBERSHIP_QUEUE,
    MESSAGE_CHANNEL,
    encode_membership,
)
from shaketable.system.store.message import (
    BORN_HOST_V6,
    HEAD_FORMAT,
    MAGIC_V1,
    PROPERTIES_BYTES_MAX,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    magic_of,
    tags_code,
    tags_in,
    topic_and_properties,
)

ENTRY_MAGIC = 1
BLANK_MAGIC = -1
BLANK_BYTES = 8
"""A blank is i32 -1, i32 remaining bytes. Every entry leaves room for one after it."""
ENTRY_BYTES_MAX = 4 * 1024 * 1024
"""DLedger's entry buffer."""

HEADER_FORMAT = "iiqqqiIIi"
HEADER = struct.Struct(">" + HEADER_FORMAT)
BLANK = struct.Struct(">ii")
CHAINED_BYTES = 36
"""magic .. channel, the part of the header before the CRCs."""
_BODY_CRC_AT = CHAINED_BYTES + 4
_CHANNELS = (MESSAGE_CHANNEL, MEMBERSHIP_CHANNEL)

_MESSAGE_AT = ENTRY_HEADER_BYTES


class DamagedEntry(StoreError):  # noqa: N818 - a finding about the bytes
    """An entry contradicts its header, its CRCs or its position."""


class EntryTooLarge(StoreError):  # noqa: N818 - a definite refusal
    """The message's entry would exceed ENTRY_BYTES_MAX or a data file: definitely not appended."""


def next_position(position: int, size: int, file_bytes: int) -> int:
    """Return where an entry of `size` goes: `position`, or the start of the next data file.

    An entry never spans two files.
    """
    if position % file_bytes + size + BLANK_BYTES <= file_bytes:
        return position
    return (position // file_bytes + 1) * file_bytes


def chain_crc(previous: int, header: bytes | memoryview) -> int:
    """Return the chainCrc of an entry from its 48 header bytes (whose own field is not read)."""
    crc = zlib.crc32(header[:CHAINED_BYTES], zlib.crc32(previous.to_bytes(4, "big")))
    return zlib.crc32(header[_BODY_CRC_AT:ENTRY_HEADER_BYTES], crc)


def verify_entry(data: memoryview, at: int, end: LogEnd | None, position: int) -> LogEnd:
    """Verify the entry at byte `at` of `data`, stored at `position` of the log.

    `end` is the log's end before it; if it is None (unknown), index, term and chain are not
    checked. Returns the log's end after it. Raises DamagedEntry with the reason.
    """
    left = len(data) - at
    if left < ENTRY_HEADER_BYTES:
        raise DamagedEntry("the header is cut off")
    magic, size, index, term, stored_position, channel, stored_chain, body_crc, body_size = (
        HEADER.unpack_from(data, at)
    )
    if magic != ENTRY_MAGIC:
        raise DamagedEntry(f"magic is {magic}, not {ENTRY_MAGIC}")
    if size != ENTRY_HEADER_BYTES + body_size or body_size < 0:
        raise DamagedEntry(f"size is {size} for a body of {body_size}")
    if size > left:
        raise DamagedEntry(f"{size} bytes do not fit where {left} are left")
    if stored_position != position:
        raise DamagedEntry(f"pos is {stored_position}, not {position}")
    if channel not in _CHANNELS:
        raise DamagedEntry(f"channel is {channel}, not 0 or 1")
    if end is not None:
        if index != end.index + 1:
            raise DamagedEntry(f"index is {index}, not {end.index + 1}")
        if term < end.term:
            raise DamagedEntry(f"term is {term}, below {end.term}")
        if stored_chain != chain_crc(end.chain_crc, data[at : at + ENTRY_HEADER_BYTES]):
            raise DamagedEntry("chainCrc does not fit the header and the entry before")
    if body_crc != zlib.crc32(data[at + ENTRY_HEADER_BYTES : at + size]):
        raise DamagedEntry("bodyCrc does not fit the body")
    return LogEnd(index, term, position + size, stored_chain)


def sound_messages(data: memoryview, at: int, end: LogEnd, position: int) -> Iterator[LogEnd]:
    """Yield the log's end after each message of the term of `end`, while one follows another.

    The first is at byte `at` of `data`, stored at `position` of the log. Ends before the first
    entry that is anything else, or damaged, or not wholly in `data`: `verify_entry` says what it
    is. Most of a log is such messages, and this is what a recovery spends its time on.
    """
    unpack_from, crc32 = HEADER.unpack_from, zlib.crc32
    index, term, chain, stop = end.index, end.term, end.chain_crc, len(data)
    while (body_at := at + ENTRY_HEADER_BYTES) <= stop:
        magic, size, found_index, found_term, found_position, channel, found_chain, crc, body = (
            unpack_from(data, at)
        )
        after, index = at + size, index + 1
        if (
            magic != ENTRY_MAGIC
            or size != ENTRY_HEADER_BYTES + body
            or not body_at <= after <= stop
            or (found_index, found_term, found_position) != (index, term, position)
            or channel != MESSAGE_CHANNEL
        ):
            return
        # As in chain_crc, without a slice for the header.
        chain = crc32(data[at : at + CHAINED_BYTES], crc32(chain.to_bytes(4, "big")))
        chain = crc32(data[at + _BODY_CRC_AT : body_at], chain)
        if found_chain != chain or crc != crc32(data[body_at:after]):
            return
        position, at = position + size, after
        yield LogEnd(index, term, position, chain)


def verify_batch(batch: Batch, end: LogEnd | None) -> LogEnd:
    """Verify every entry of a batch; return the log's end after it.

    Checks magic, sizes, indices, terms, positions, all CRCs, and the chain from `end` (if that is
    None, the first entry's chainCrc is not checked). The first entry is at `end`, or after it at
    the start of a data file. Raises DamagedEntry.
    """
    data = memoryview(batch.data)
    at, count = 0, 0
    current = end
    if end is not None and batch.position < end.position:
        raise DamagedEntry(f"batch at position {batch.position}, before {end.position}")
    while at < len(data):
        try:
            current = verify_entry(data, at, current, batch.position + at)
        except DamagedEntry as error:
            index = batch.first_index + count
            raise DamagedEntry(f"entry {index} at byte {at} of a batch: {error}") from None
        if current.term != batch.term:
            raise DamagedEntry(
                f"entry {current.index} of term {current.term} in {batch.term}'s batch"
            )
        at = current.position - batch.position
        count += 1
        if current.index != batch.first_index + count - 1:
            raise DamagedEntry(f"entry {current.index} is at {batch.first_index + count - 1}")
    if current is None or count != batch.count or not count:
        raise DamagedEntry(f"batch of {count} entries is announced as {batch.count}")
    return current


_ENTRY_FIELDS = struct.Struct(">4xiqq").unpack_from
_MESSAGE_FIELDS = struct.Struct(">iI4xi4xq8xi").unpack_from  # size magic queue offset sysFlag
_U16 = struct.Struct(">H").unpack_from
_I32 = struct.Struct(">i").unpack_from
_MAGIC_V1 = MAGIC_V1 & 0xFFFFFFFF
_I64 = struct.Struct(">q").unpack_from
_STORE_TIME_AT = 56
_BODY_LENGTH_AT = 84


def iter_messages(
    data: bytes | memoryview, position: int
) -> Iterator[tuple[int, int, int, int, bytes, int, int]]:
    """Iterate over the messages of verified entries.

    Yields (index, term, message position, message size, topic, queue id, queue offset).
    """
    at = 0
    while at < len(data):
        entry_bytes, index, term = _ENTRY_FIELDS(data, at)
        start = at + _MESSAGE_AT
        size, magic, queue_id, queue_offset, sys_flag = _MESSAGE_FIELDS(data, start)
        body_length_at = start + _BODY_LENGTH_AT
        if sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
            body_length_at += 12 * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
        topic_at = body_length_at + 4 + _I32(data, body_length_at)[0]
        if magic == _MAGIC_V1:
            topic_bytes = data[topic_at]
            topic_at += 1
        else:
            (topic_bytes,) = _U16(data, topic_at)
            topic_at += 2
        topic = bytes(data[topic_at : topic_at + topic_bytes])
        yield index, term, position + start, size, topic, queue_id, queue_offset
        at += entry_bytes


_DISPATCH_FIELDS = struct.Struct(">4xi40xiI4xi4xq8xi16xq28x").unpack_from
"""Of an entry: its size; of its message: size, magic, queue, offset, sysFlag, store time."""
_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6


def iter_dispatches(
    data: bytes, position: int
) -> Iterator[tuple[tuple[bytes, int], int, int, int, int, int, bytes]]:
    """Iterate over verified entries, with what consume queues and the key index need.

    Yields ((topic, queue id), queue offset, message position, message size, tags code, store
    time in ms, properties). Source: RocketMQ's DispatchRequest.
    """
    at = 0
    while at < len(data):
        entry_bytes, size, magic, queue_id, queue_offset, sys_flag, store_ms = _DISPATCH_FIELDS(
            data, at
        )
        start = at + _MESSAGE_AT
        body_length_at = start + _BODY_LENGTH_AT
        if sys_flag & _HOSTS_V6:
            body_length_at += 12 * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
            if sys_flag & BORN_HOST_V6:
                (store_ms,) = _I64(data, start + _STORE_TIME_AT + 12)
        topic_at = body_length_at + 4 + _I32(data, body_length_at)[0]
        if magic == _MAGIC_V1:
            topic_end = topic_at + 1 + data[topic_at]
            topic = data[topic_at + 1 : topic_end]
        else:
            topic_end = topic_at + 2 + _U16(data, topic_at)[0]
            topic = data[topic_at + 2 : topic_end]
        topic_end += 2
        stop = start + size
        properties = data[topic_end:stop]
        tags = tags_code(data, topic_end, stop) if properties else 0
        yield (topic, queue_id), queue_offset, position + start, size, tags, store_ms, properties
        at += entry_bytes


# Builds entries from messages at the leader, joined into batches (THROUGHPUT.md rules 3, 4).

_HEADS = struct.Struct(">" + HEADER_FORMAT + HEAD_FORMAT)
"""Entry header and message up to BODYLEN in one."""
_U32_AT = struct.Struct(">I").pack_into
_CHAIN_CRC_AT = CHAINED_BYTES
_MESSAGE_HEAD_BYTES = _HEADS.size - ENTRY_HEADER_BYTES
_HOSTS_ARE_V4 = ~(BORN_HOST_V6 | STORE_HOST_V6)


class EntryBuilder:
    """Encodes messages as entries after `end`. Copies its arguments at once."""

    end: LogEnd
    """The log's end after everything added so far."""

    def __init__(self, end: LogEnd, term: int, data_file_bytes: int, store_host: bytes) -> None:
        assert term >= end.term
        assert len(store_host) == 8, "an IPv4 host: 4 bytes and i32 port"
        self.end = end
        self._term = term
        self._file_bytes = data_file_bytes
        self._entry_bytes_max = min(ENTRY_BYTES_MAX, data_file_bytes - BLANK_BYTES)
        self._store_host = store_host
        self._ready: list[Batch] = []
        self._memberships: list[tuple[int, Membership]] = []
        self._data = bytearray()
        self._start = end  # the log's end before the entries in _data
        self._start_position = end.position
        self._heads = bytearray(_HEADS.size)
        view = memoryview(self._heads)
        self._chained = view[:CHAINED_BYTES]
        self._crc_and_size = view[_BODY_CRC_AT:ENTRY_HEADER_BYTES]
        self._message_head = view[ENTRY_HEADER_BYTES:]

    def add(  # noqa: PLR0913 - a stored message has that many fields; no object a call, for speed
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        body: bytes | memoryview,
        properties: bytes = b"",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = bytes(8),
        store_ms: int = 0,
        reconsume_times: int = 0,
        channel: int = MESSAGE_CHANNEL,
    ) -> int:
        """Add one message; return its byte position (the entry's + 48).

        Hosts are IPv4, so the sys flag's two IPv6 bits are cleared. Raises EntryTooLarge, with
        nothing added.
        """
        tail, message_bytes = self._fit(topic, body, properties)
        size = ENTRY_HEADER_BYTES + message_bytes
        end = self.end
        position = next_position(end.position, size, self._file_bytes)
        _HEADS.pack_into(
            self._heads,
            0,
            ENTRY_MAGIC,
            size,
            end.index + 1,
            self._term,
            position,
            channel,
            0,
            0,
            message_bytes,
            message_bytes,
            magic_of(topic),
            zlib.crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            queue_offset,
            position + ENTRY_HEADER_BYTES,
            sys_flag & _HOSTS_ARE_V4,
            born_ms,
            born_host,
            store_ms,
            self._store_host,
            reconsume_times,
            0,
            len(body),
        )
        body_crc = zlib.crc32(tail, zlib.crc32(body, zlib.crc32(self._message_head)))
        _U32_AT(self._heads, _BODY_CRC_AT, body_crc)
        chain = zlib.crc32(self._chained, zlib.crc32(end.chain_crc.to_bytes(4, "big")))
        chain = zlib.crc32(self._crc_and_size, chain)
        _U32_AT(self._heads, _CHAIN_CRC_AT, chain)
        if position != end.position:
            self._close_batch()
            self._start_position = position
        data = self._data
        data += self._heads
        data += body
        data += tail
        self.end = LogEnd(end.index + 1, self._term, position + size, chain)
        return position + ENTRY_HEADER_BYTES

    def add_membership(self, membership: Membership, queue_offset: int, store_ms: int) -> int:
        """Add a membership entry; return its byte position."""
        position = self.add(
            EVENT_TOPIC,
            MEMBERSHIP_QUEUE,
            queue_offset,
            encode_membership(membership),
            MEMBERSHIP_PROPERTIES,
            born_ms=store_ms,
            store_ms=store_ms,
            channel=MEMBERSHIP_CHANNEL,
        )
        self._memberships.append((self.end.index, membership))
        return position

    def _fit(self, topic: bytes, body: bytes | memoryview, properties: bytes) -> tuple[bytes, int]:
        """Return the bytes after the body, and the message's size. Raises EntryTooLarge."""
        if len(topic) > TOPIC_BYTES_MAX or len(properties) > PROPERTIES_BYTES_MAX:
            raise EntryTooLarge(
                f"topic of {len(topic)} or properties of {len(properties)} bytes:"
                f" at most {PROPERTIES_BYTES_MAX}"
            )
        tail = topic_and_properties(topic, properties)
        message_bytes = _MESSAGE_HEAD_BYTES + len(body) + len(tail)
        size = ENTRY_HEADER_BYTES + message_bytes
        if size > self._entry_bytes_max:
            raise EntryTooLarge(f"entry of {size} bytes: at most {self._entry_bytes_max}")
        return tail, message_bytes

    def take(self) -> list[Batch]:
        """Return what was added since the last call, one Batch per data file."""
        self._close_batch()
        self._start_position = self.end.position
        batches, self._ready = self._ready, []
        return batches

    def _close_batch(self) -> None:
        if not self._data:
            return
        first = self._start.index + 1
        self._ready.append(
            Batch(
                first,
                self.end.index + 1 - first,
                self._term,
                self._start_position,
                bytes(self._data),
                tuple(self._memberships),
            )
        )
        self._memberships.clear()
        self._start = self.end
        self._data.clear()


# Vectorized verification and iteration of whole batches, with numpy arrays.
#
# The same as entry by entry above, which is most of a follower's work under load
# (docs/throughput.md). Batches that these arrays cannot represent, damaged ones above all, are left
# to the functions above, which can report what is wrong.

CHECKED_MIN = 32
WALKED_MIN = 64
"""With fewer entries the arrays cost more than they save."""

_I64_MAX = 2**63 - 1
_SIZE_AT_4 = Struct(">4xi").unpack_from
_HEADER = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("position", ">i8"),
        ("channel", ">i4"),
        ("chain_crc", ">u4"),
        ("body_crc", ">u4"),
        ("body_size", ">i4"),
    ]
)
_HEADERS = Struct(f"{ENTRY_HEADER_BYTES}s").iter_unpack
_CHAIN_CRC = slice(CHAINED_BYTES, CHAINED_BYTES + 4)
_AFTER_CHAIN_CRC = slice(CHAINED_BYTES + 4, ENTRY_HEADER_BYTES)

_HEAD_BYTES = 88
"""A message up to its BODYLEN, with IPv4 hosts."""
_HEAD = np.dtype(
    {
        "names": ["size", "magic", "queue_id", "offset", "sys_flag", "store_ms", "body_bytes"],
        "formats": [">i4", ">i4", ">i4", ">i8", ">i4", ">i8", ">i4"],
        "offsets": [0, 4, 12, 20, 36, 56, 84],
        "itemsize": _HEAD_BYTES,
    }
)
_UNIT = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8")])


def is_valid_batch(batch: Batch) -> bool:
    """True only if the batch passes `verify_batch(batch, None)`.

    False proves nothing: the batch may be too small, or contain a membership entry.
    """
    data, count = batch.data, batch.count
    if max(batch.last_index, batch.end_position) > _I64_MAX:  # numbers would wrap
        return False
    starts = _starts(data, count) if count >= CHECKED_MIN else None
    if starts is None:
        return False
    at = np.array(starts)
    rows = sliding_window_view(np.frombuffer(data, np.uint8), ENTRY_HEADER_BYTES)[at]
    table = rows.view(_HEADER).reshape(-1)
    if (
        (table["magic"] != ENTRY_MAGIC).any()
        or (table["size"] != table["body_size"] + ENTRY_HEADER_BYTES).any()
        or (table["position"] != at + batch.position).any()
        or (table["channel"] != MESSAGE_CHANNEL).any()
        or (table["index"] != np.arange(batch.first_index, batch.last_index + 1)).any()
        or (table["term"] != batch.term).any()
    ):
        return False
    view = memoryview(data)
    starts.append(len(data))
    bodies = [crc32(view[start + ENTRY_HEADER_BYTES : stop]) for start, stop in pairwise(starts)]
    return bodies == table["body_crc"].tolist() and _is_chained(rows, table["chain_crc"].tolist())


def _is_chained(rows: NDArray[np.uint8], chain_crcs: list[int]) -> bool:
    """Whether each chainCrc but the first matches the previous one and its own header."""
    covered = np.empty_like(rows[1:])
    covered[:, :4] = rows[:-1, _CHAIN_CRC]
    covered[:, 4 : 4 + CHAINED_BYTES] = rows[1:, :CHAINED_BYTES]
    covered[:, 4 + CHAINED_BYTES :] = rows[1:, _AFTER_CHAIN_CRC]
    return [crc32(row) for (row,) in _HEADERS(covered.tobytes())] == chain_crcs[1:]


class QueueRun(NamedTuple):
    """Messages of one queue with consecutive offsets, and their encoded units."""

    queue: tuple[bytes, int]
    first_offset: int
    message_count: int
    units: memoryview


class MessageTable:
    """The messages of verified entries in columns, for consume queues and the key index.

    Attributes:
        topic: the topic of all messages.
        properties: each message's properties, in log order.
        positions: each message's start position in the log.
        store_ms: when each message was stored.
    """

    def __init__(self, columns: _Columns, topic: bytes, properties: list[bytes]) -> None:
        self.topic = topic
        self.properties = properties
        self.positions = columns.positions
        self.store_ms = columns.heads["store_ms"]
        self._heads = columns.heads

    def key_items(self, needle: bytes) -> list[tuple[bytes, bytes, int, int]]:
        """Return (topic, properties, position, store ms) where the properties hold `needle`."""
        rows = zip(
            repeat(self.topic),
            self.properties,
            self.positions.tolist(),
            self.store_ms.tolist(),
            strict=False,
        )
        return [row for row in rows if needle in row[1]]

    def runs(self) -> list[QueueRun] | None:
        """Return the messages by queue, each queue's in log order.

        None if a queue's offsets are not consecutive.
        """
        heads = self._heads
        units = np.empty(len(heads), _UNIT)
        units["position"], units["size"] = self.positions, heads["size"]
        units["tags"] = [tags_in(properties) for properties in self.properties]
        order = np.argsort(heads["queue_id"], kind="stable")
        queue_ids = heads["queue_id"][order].astype(np.int64)
        offsets = heads["offset"][order].astype(np.int64)
        is_other = np.diff(queue_ids) != 0
        if (np.diff(offsets)[~is_other] != 1).any():
            return None
        bounds = [0, *(np.flatnonzero(is_other) + 1).tolist(), len(heads)]
        encoded = memoryview(units[order].tobytes())
        found = []
        for start, stop in pairwise(bounds):
            run = encoded[start * _UNIT.itemsize : stop * _UNIT.itemsize]
            queue = (self.topic, int(queue_ids[start]))
            found.append(QueueRun(queue, int(offsets[start]), stop - start, run))
        return found


class _Columns(NamedTuple):
    """Messages' fixed fields, and their start positions in the log."""

    heads: NDArray[np.void]
    positions: NDArray[np.int64]


def message_table(data: bytes, position: int, count: int) -> MessageTable | None:
    """Return the messages of `count` verified entries in columns, if they are of one topic.

    None if they are not, if they are too few, or if the columns cannot represent them.
    """
    starts = _starts(data, count) if count >= WALKED_MIN else None
    if starts is None:
        return None
    raw = np.frombuffer(data, np.uint8)
    at = np.array(starts) + ENTRY_HEADER_BYTES
    heads = sliding_window_view(raw, _HEAD_BYTES)[at].view(_HEAD).reshape(-1)
    if (heads["magic"] != MAGIC_V1).any() or (heads["sys_flag"] & _HOSTS_V6).any():
        return None
    topic_at = at + (_HEAD_BYTES + 1) + heads["body_bytes"]
    lengths = raw[topic_at - 1]
    topic_bytes = int(lengths[0])
    if (lengths != topic_bytes).any():
        return None
    topics = sliding_window_view(raw, topic_bytes)[topic_at]
    if (topics != topics[0]).any():
        return None
    property_starts = (topic_at + (topic_bytes + 2)).tolist()
    properties = [
        data[start:end]
        for start, end in zip(property_starts, (at + heads["size"]).tolist(), strict=True)
    ]
    return MessageTable(_Columns(heads, at + position), topics[0].tobytes(), properties)


def _starts(data: bytes, count: int) -> list[int] | None:
    """Return the entries' start offsets, None if their sizes do not add up to the data."""
    starts: list[int] = []
    at, last = 0, len(data) - ENTRY_HEADER_BYTES
    while at <= last:
        starts.append(at)
        (size,) = _SIZE_AT_4(data, at)
        if size < ENTRY_HEADER_BYTES:
            return None
        at += size
    return starts if at == len(data) and len(starts) == count else None
