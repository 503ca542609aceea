"""Batches of a plain commit log: whole messages and blanks, back to back.

Such a log has no numbered entries, so byte positions are used as indices: a log's end index is the
position of its last byte. An index is thus valid across restarts. Source: RocketMQ's CommitLog
(physical offsets).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from shaketable.system.raft.batch import Batch, LogEnd
from shaketable.system.raft.membership import Membership
from shaketable.system.store.disk import Buffer
from shaketable.system.store.entry import ENTRY_BYTES_MAX, EntryTooLarge
from shaketable.system.store.message import (
    BORN_HOST_V6,
    HEAD,
    HEAD_FORMAT,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    DamagedMessage,
    magic_of,
    tags_code,
    topic_and_properties,
)
from shaketable.system.store.plain.log import BLANK, BLANK_BYTES, BLANK_MAGIC

TERM = 0
"""A plain log has no terms: all of it is in this one."""
MESSAGE_BYTES_MAX = ENTRY_BYTES_MAX
MESSAGE_BYTES_MIN = HEAD.size + 3
"""No body, no topic, no properties: the lengths of the last two take three bytes."""

_MAGIC_V1 = MAGIC_V1 & 0xFFFFFFFF
_MAGIC_V2 = MAGIC_V2 & 0xFFFFFFFF
_BLANK_MAGIC = BLANK_MAGIC & 0xFFFFFFFF
_SIZE_AND_MAGIC = struct.Struct(">iI").unpack_from
_SIZE = struct.Struct(">i").unpack_from
_FIELDS = struct.Struct(">iI4xi4xq8xi16xq").unpack_from
"""Size, magic, queue, offset, sys flag, store time (of hosts with IPv4)."""
_CHECKED = struct.Struct(">8xI16xqi").unpack_from
"""Body CRC, physical offset, sys flag."""
_U16 = struct.Struct(">H").unpack_from
_I64 = struct.Struct(">q").unpack_from
_BODY_LENGTH_AT = 84
_STORE_TIME_AT = 56
_V6_BYTES = 12
_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6
_TRANSACTION_TYPE, _PREPARED, _ROLLED_BACK = 12, 4, 12
"""Bits of a message's sys flag (MessageSysFlag)."""


class PlainBatch(Batch, frozen=True):
    """Bytes `first_index` .. `last_index` of one file: whole messages, perhaps a final blank."""

    def last_chain_crc(self) -> int:
        """Return 0: a plain log's messages are not chained."""
        return 0

    def after(self, index: int) -> PlainBatch:
        """Return the part after byte `index`, the last byte of a message."""
        skip = index + 1 - self.position
        assert 0 <= skip < len(self.data), f"{index} leaves nothing of {self.position}"
        return plain_batch(self.position + skip, self.data[skip:])

    def until(self, index: int) -> PlainBatch:
        """Return the part up to and including byte `index`, the last byte of a message."""
        keep = index + 1 - self.position
        assert 0 < keep <= len(self.data), f"{index} leaves nothing of {self.position}"
        return plain_batch(self.position, self.data[:keep])


def plain_batch(position: int, data: bytes) -> PlainBatch:
    """Return the batch of these bytes at `position` of the log."""
    return PlainBatch(position, len(data), TERM, position, data)


def plain_end(position: int) -> LogEnd:
    """Return a plain log's end (or start) at a position."""
    return LogEnd(position - 1, TERM, position)


def whole_bytes(data: bytes | memoryview) -> int:
    """Return the length of the whole messages and blanks at the front of verified bytes."""
    at, stop = 0, len(data)
    while at + BLANK_BYTES <= stop:
        (size,) = _SIZE(data, at)
        if size < BLANK_BYTES or at + size > stop:
            break
        at += int(size)
    return at


def verified_size(data: Buffer, at: int, position: int, room: int) -> int:
    """Verify the message or blank at byte `at`; return its size, 0 if `data` ends within it.

    It is at `position` of the log, whose file has `room` bytes left. Checks its sizes, magic,
    position and body CRC. Of a blank, the first 8 bytes suffice. Raises DamagedMessage.
    """
    here = len(data) - at
    if here < BLANK_BYTES:
        return 0
    size: int
    size, magic = _SIZE_AND_MAGIC(data, at)
    if magic == _BLANK_MAGIC:
        if size != room:
            raise DamagedMessage(f"a blank of {size} bytes at {position}, where {room} are left")
        return room
    if magic not in (_MAGIC_V1, _MAGIC_V2):
        raise DamagedMessage(f"magic {magic:#010x} at {position} is not a message's")
    if not MESSAGE_BYTES_MIN <= size <= min(room - BLANK_BYTES, MESSAGE_BYTES_MAX):
        raise DamagedMessage(f"a message of {size} bytes at {position}, where {room} are left")
    if here < size:
        return 0
    _check_message(data, at, size, position, is_v1=magic == _MAGIC_V1)
    return size


def _check_message(data: Buffer, at: int, size: int, position: int, *, is_v1: bool) -> None:
    crc, physical_offset, sys_flag = _CHECKED(data, at)
    if physical_offset != position:
        raise DamagedMessage(f"PHYSICALOFFSET {physical_offset} is at {position}")
    body_at = at + _BODY_LENGTH_AT + 4 + _v6_bytes(sys_flag)
    stop = at + size
    if body_at >= stop:
        raise DamagedMessage(f"the message at {position} ends within its head")
    (body_bytes,) = _SIZE(data, body_at - 4)
    topic_at = body_at + body_bytes + (1 if is_v1 else 2)
    if body_bytes < 0 or topic_at > stop:
        raise DamagedMessage(f"a body of {body_bytes} bytes in the message at {position}")
    topic_bytes = data[topic_at - 1] if is_v1 else _U16(data, topic_at - 2)[0]
    properties_at = topic_at + topic_bytes + 2
    if properties_at > stop or properties_at + _U16(data, properties_at - 2)[0] != stop:
        raise DamagedMessage(f"the fields of the message at {position} do not fill it")
    if zlib.crc32(data[body_at : body_at + body_bytes]) & 0x7FFFFFFF != crc:
        raise DamagedMessage(f"the message at {position} has another BODYCRC than its body")


def iter_plain_dispatches(
    data: bytes, position: int
) -> Iterator[tuple[tuple[bytes, int], int, int, int, int, int, bytes]]:
    """Iterate over verified messages, as `system.store.entry.iter_dispatches` does over entries.

    Skips prepared and rolled-back transaction messages, which are not in a queue
    (CommitLogDispatcherBuildConsumeQueue).
    """
    at = 0
    while at + MESSAGE_BYTES_MIN <= len(data):
        size, magic, queue_id, queue_offset, sys_flag, store_ms = _FIELDS(data, at)
        if magic == _BLANK_MAGIC:
            return  # a blank is the last in its file
        body_length_at = at + _BODY_LENGTH_AT
        if sys_flag & _HOSTS_V6:
            body_length_at += _v6_bytes(sys_flag)
            if sys_flag & BORN_HOST_V6:
                (store_ms,) = _I64(data, at + _STORE_TIME_AT + _V6_BYTES)
        topic_at = body_length_at + 4 + _SIZE(data, body_length_at)[0]
        if magic == _MAGIC_V1:
            topic_end = topic_at + 1 + data[topic_at]
            topic = data[topic_at + 1 : topic_end]
        else:
            topic_end = topic_at + 2 + _U16(data, topic_at)[0]
            topic = data[topic_at + 2 : topic_end]
        topic_end += 2
        stop = at + size
        if sys_flag & _TRANSACTION_TYPE not in (_PREPARED, _ROLLED_BACK):
            properties = data[topic_end:stop]
            tags = tags_code(data, topic_end, stop) if properties else 0
            queue = (topic, queue_id)
            yield queue, queue_offset, position + at, size, tags, store_ms, properties
        at = stop


def blank(room: int) -> bytes:
    """Return the blank that fills the last `room` bytes of a file."""
    return BLANK.pack(room, BLANK_MAGIC) + bytes(room - BLANK_BYTES)


def _v6_bytes(sys_flag: int) -> int:
    """Return by how many bytes IPv6 hosts make the head longer."""
    return _V6_BYTES * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))


# Builds a plain commit log's messages at the master, joined into batches.
#
# Source: RocketMQ's CommitLog.DefaultAppendMessageCallback (doAppend).

_HEAD = struct.Struct(">" + HEAD_FORMAT)
_HOSTS_ARE_V4 = ~(BORN_HOST_V6 | STORE_HOST_V6)


class PlainBuilder:
    """Encodes messages after `end`, and a blank if the next one does not fit into its file."""

    end: LogEnd
    """The log's end after everything added so far."""

    def __init__(self, end: LogEnd, term: int, data_file_bytes: int, store_host: bytes) -> None:
        assert term == end.term, "a plain log knows one term"
        assert len(store_host) == 8, "an IPv4 host: 4 bytes and i32 port"
        self.end = end
        self._file_bytes = data_file_bytes
        self._message_bytes_max = min(MESSAGE_BYTES_MAX, data_file_bytes - BLANK_BYTES)
        self._store_host = store_host
        self._ready: list[Batch] = []
        self._data = bytearray()
        self._start = end.position
        self._position = end.position

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
    ) -> int:
        """Add one message; return its byte position.

        Hosts are IPv4, so the sys flag's two IPv6 bits are cleared. Raises EntryTooLarge, with
        nothing added.
        """
        if len(topic) > TOPIC_BYTES_MAX or len(properties) > PROPERTIES_BYTES_MAX:
            raise EntryTooLarge(
                f"topic of {len(topic)} or properties of {len(properties)} bytes:"
                f" at most {PROPERTIES_BYTES_MAX}"
            )
        tail = topic_and_properties(topic, properties)
        size = _HEAD.size + len(body) + len(tail)
        if size > self._message_bytes_max:
            raise EntryTooLarge(f"message of {size} bytes: at most {self._message_bytes_max}")
        room = self._file_bytes - self._position % self._file_bytes
        if size + BLANK_BYTES > room:
            self._data += blank(room)
            self._position += room
            self._close_batch()
        position = self._position
        data = self._data
        data += _HEAD.pack(
            size,
            magic_of(topic),
            zlib.crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            queue_offset,
            position,
            sys_flag & _HOSTS_ARE_V4,
            born_ms,
            born_host,
            store_ms,
            self._store_host,
            reconsume_times,
            0,
            len(body),
        )
        data += body
        data += tail
        self._position = position + size
        self.end = plain_end(self._position)
        return position

    def add_membership(self, membership: Membership, queue_offset: int, store_ms: int) -> int:
        """Refuse: a plain log has no group. Raises EntryTooLarge."""
        raise EntryTooLarge("a broker without a group has no members to change")

    def take(self) -> list[Batch]:
        """Return what was added since the last call, one Batch per data file."""
        self._close_batch()
        batches, self._ready = self._ready, []
        return batches

    def _close_batch(self) -> None:
        if self._data:
            self._ready.append(plain_batch(self._start, bytes(self._data)))
            self._data.clear()
        self._start = self._position
