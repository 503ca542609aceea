"""Builds a native commit log's messages at the master, joined into batches.

Source: RocketMQ's CommitLog.DefaultAppendMessageCallback (doAppend).
"""

from __future__ import annotations

import struct
import zlib

from shaketable.system.raft.batch import Batch, LogEnd
from shaketable.system.raft.membership import Membership
from shaketable.system.store.entry import EntryTooLarge
from shaketable.system.store.message import (
    BORN_HOST_V6,
    HEAD_FORMAT,
    PROPERTIES_BYTES_MAX,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    magic_of,
    topic_and_properties,
)
from shaketable.system.store.native.batch import MESSAGE_BYTES_MAX, blank, native_batch, native_end
from shaketable.system.store.native.log import BLANK_BYTES

_HEAD = struct.Struct(">" + HEAD_FORMAT)
_HOSTS_ARE_V4 = ~(BORN_HOST_V6 | STORE_HOST_V6)


class NativeBuilder:
    """Encodes messages after `end`, and a blank if the next one does not fit into its file."""

    end: LogEnd
    """The log's end after everything added so far."""

    def __init__(self, end: LogEnd, term: int, data_file_bytes: int, store_host: bytes) -> None:
        assert term == end.term, "a native log knows one term"
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
        self.end = native_end(self._position)
        return position

    def add_membership(self, membership: Membership, queue_offset: int, store_ms: int) -> int:
        """Refuse: a native log has no group. Raises EntryTooLarge."""
        raise EntryTooLarge("a broker without a group has no members to change")

    def take(self) -> list[Batch]:
        """Return what was added since the last call, one Batch per data file."""
        self._close_batch()
        batches, self._ready = self._ready, []
        return batches

    def _close_batch(self) -> None:
        if self._data:
            self._ready.append(native_batch(self._start, bytes(self._data)))
            self._data.clear()
        self._start = self._position
