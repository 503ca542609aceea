"""Builds entries from messages at the leader, joined into batches (THROUGHPUT.md rules 3, 4)."""

from __future__ import annotations

import struct
import zlib

from shaketable.system.raft.batch import ENTRY_HEADER_BYTES, Batch, LogEnd
from shaketable.system.raft.membership import Membership
from shaketable.system.store.entry import (
    BLANK_BYTES,
    CHAINED_BYTES,
    ENTRY_BYTES_MAX,
    ENTRY_MAGIC,
    HEADER_FORMAT,
    EntryTooLarge,
    next_position,
)
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
    PROPERTIES_BYTES_MAX,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    magic_of,
    topic_and_properties,
)

_HEADS = struct.Struct(">" + HEADER_FORMAT + HEAD_FORMAT)
"""Entry header and message up to BODYLEN in one."""
_U32_AT = struct.Struct(">I").pack_into
_CHAIN_CRC_AT = CHAINED_BYTES
_BODY_CRC_AT = CHAINED_BYTES + 4
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
