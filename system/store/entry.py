"""DLedger entries: header format, verification, and iteration over encoded batches.

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

from shaketable.system.raft.batch import ENTRY_HEADER_BYTES, Batch, LogEnd
from shaketable.system.store.disk import StoreError
from shaketable.system.store.group_events import MEMBERSHIP_CHANNEL, MESSAGE_CHANNEL
from shaketable.system.store.message import BORN_HOST_V6, MAGIC_V1, STORE_HOST_V6, tags_code

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
_BODY_CRC_AT = 40
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
