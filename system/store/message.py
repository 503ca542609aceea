"""RocketMQ's message format, as stored and as pulled (DLEDGER.md B.1).

Source: RocketMQ's MessageExtEncoder, MessageDecoder, MessageVersion.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from shaketable.system.store.disk import StoreError

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
"""For topics longer than 127 bytes, whose length takes two bytes."""
TOPIC_BYTES_MAX_V1 = 127
TOPIC_BYTES_MAX = 32_767
PROPERTIES_BYTES_MAX = 32_767
BORN_HOST_V6 = 1 << 4
STORE_HOST_V6 = 1 << 5

HEAD_FORMAT = "iiiiiqqiq8sq8siqi"
"""TOTALSIZE to BODYLEN with IPv4 hosts."""
HEAD = struct.Struct(">" + HEAD_FORMAT)
_TO_SYS_FLAG = struct.Struct(">iiiiiqqiq")
_AFTER_HOSTS = struct.Struct(">iqi")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_HOST_BYTES = {False: 8, True: 20}


class DamagedMessage(StoreError):  # noqa: N818 - a finding about the bytes
    """The bytes are not a valid stored message."""


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message. Hosts are 8 bytes (IPv4 + i32 port) or 20 (IPv6 + i32 port)."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = bytes(8)
    store_ms: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


def encode_message(message: Message) -> bytes:
    """Return the stored form. The sys flag's host bits must match the hosts' lengths."""
    assert len(message.born_host) == _HOST_BYTES[bool(message.sys_flag & BORN_HOST_V6)]
    assert len(message.store_host) == _HOST_BYTES[bool(message.sys_flag & STORE_HOST_V6)]
    tail = topic_and_properties(message.topic, message.properties)
    hosts_bytes = len(message.born_host) + len(message.store_host)
    total = HEAD.size - 16 + hosts_bytes + len(message.body) + len(tail)
    return b"".join(
        (
            _TO_SYS_FLAG.pack(
                total,
                magic_of(message.topic),
                zlib.crc32(message.body) & 0x7FFFFFFF,
                message.queue_id,
                message.flag,
                message.queue_offset,
                message.physical_offset,
                message.sys_flag,
                message.born_ms,
            ),
            message.born_host,
            _I64.pack(message.store_ms),
            message.store_host,
            _AFTER_HOSTS.pack(
                message.reconsume_times, message.prepared_transaction_offset, len(message.body)
            ),
            message.body,
            tail,
        )
    )


def magic_of(topic: bytes) -> int:
    """Return the magic of messages of this topic."""
    return MAGIC_V1 if len(topic) <= TOPIC_BYTES_MAX_V1 else MAGIC_V2


def topic_and_properties(topic: bytes, properties: bytes) -> bytes:
    """Return the bytes after the body: topic and properties, each after its length."""
    assert len(topic) <= TOPIC_BYTES_MAX
    assert len(properties) <= PROPERTIES_BYTES_MAX
    length = len(topic).to_bytes(1 if len(topic) <= TOPIC_BYTES_MAX_V1 else 2, "big")
    return b"".join((length, topic, len(properties).to_bytes(2, "big"), properties))


def decode_message(data: bytes | memoryview) -> Message:
    """Decode one message that fills `data`, and check its BODYCRC. Raises DamagedMessage."""
    message, size = _decode_at(memoryview(data), 0)
    if size != len(data):
        raise DamagedMessage(f"message of {size} bytes in {len(data)}")
    return message


def walk_messages(data: bytes | memoryview) -> Iterator[Message]:
    """Decode messages stored back to back (the body of a pull response).

    Raises DamagedMessage at the first invalid one.
    """
    view = memoryview(data)
    at = 0
    while at < len(view):
        message, size = _decode_at(view, at)
        yield message
        at += size


def _decode_at(data: memoryview, at: int) -> tuple[Message, int]:
    """Decode the message at byte `at`; also return its size."""
    try:
        message, size, crc = _fields_at(data[at:])
    except (struct.error, IndexError):
        raise DamagedMessage(f"message at byte {at} is cut off") from None
    if zlib.crc32(message.body) & 0x7FFFFFFF != crc:
        raise DamagedMessage(f"message at byte {at}: BODYCRC {crc} does not fit its body")
    return message, size


def _fields_at(data: memoryview) -> tuple[Message, int, int]:
    total, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = (
        _TO_SYS_FLAG.unpack_from(data)
    )
    if magic not in {MAGIC_V1, MAGIC_V2}:
        raise DamagedMessage(f"magic {magic & 0xFFFFFFFF:#010x} is not a message's")
    if not 0 < total <= len(data):
        raise DamagedMessage(f"message of {total} bytes where {len(data)} are left")
    at = _TO_SYS_FLAG.size
    born_host, at = _bytes(data, at, _HOST_BYTES[bool(sys_flag & BORN_HOST_V6)])
    (store_ms,) = _I64.unpack_from(data, at)
    store_host, at = _bytes(data, at + 8, _HOST_BYTES[bool(sys_flag & STORE_HOST_V6)])
    reconsume_times, prepared, body_bytes = _AFTER_HOSTS.unpack_from(data, at)
    body, at = _bytes(data, at + _AFTER_HOSTS.size, body_bytes)
    width = 1 if magic == MAGIC_V1 else 2
    topic, at = _bytes(data, at + width, int.from_bytes(data[at : at + width], "big"))
    properties, at = _bytes(data, at + 2, int.from_bytes(data[at : at + 2], "big"))
    if at != total:
        raise DamagedMessage(f"message's fields end at byte {at} of {total}")
    message = Message(
        topic,
        queue_id,
        queue_offset,
        physical_offset,
        body,
        properties,
        flag,
        sys_flag,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_times,
        prepared,
    )
    return message, total, crc


def _bytes(data: memoryview, at: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(data):
        raise DamagedMessage(f"a field of {size} bytes at byte {at} of {len(data)}")
    return bytes(data[at : at + size]), at + size


def encode_properties(properties: dict[str, str]) -> bytes:
    """Return name, 0x01, value, 0x02 for each property."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode()


def host_bytes(ip: str, port: int) -> bytes:
    """Return an IPv4 address and port as the 8 bytes of a stored host."""
    return ipaddress.IPv4Address(ip).packed + _I32.pack(port)


def offset_message_id(store_host: bytes, physical_offset: int) -> bytes:
    """Return the offset message id: 32 upper-case hex digits for an IPv4 host."""
    return (store_host + _I64.pack(physical_offset)).hex().upper().encode()


def decode_message_id(message_id: str) -> tuple[str, int]:
    """Decode an offset message id to the broker's "host:port" and the position in its log.

    Raises ValueError for anything but an id with an IPv4 host. Source:
    MessageDecoder.decodeMessageId.
    """
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(data) != 16:
        raise ValueError(f"no message id of 32 hex digits: {message_id[:64]!r}")
    (port,), (position,) = _I32.unpack_from(data, 4), _I64.unpack_from(data, 8)
    return f"{ipaddress.IPv4Address(data[:4])}:{port}", position


# Properties of stored messages as RocketMQ's dispatchers read them: tags code and keys.
#
# Source: Java's String.hashCode, RocketMQ's MessageDecoder.string2messageProperties (a later
# property replaces an earlier one, an empty value counts as none), MessageExtBrokerInner's
# tagsString2tagsCode, CommitLog.checkMessageAndReturnSize.

TAGS = b"TAGS"
KEYS = b"KEYS"
UNIQ_KEY = b"UNIQ_KEY"
_TAGS_CACHED_MAX = 4096


def java_hash(text: bytes, prefix_hash: int = 0) -> int:
    """Return Java's String.hashCode of UTF-8 text: over its UTF-16 code units, a signed i32.

    `prefix_hash` is the hash of the text before, if this continues a longer one.
    """
    units: Iterable[int] = text
    if not text.isascii():
        units = memoryview(text.decode(errors="replace").encode("utf-16-le")).cast("H")
    code = prefix_hash & 0xFFFFFFFF
    for unit in units:
        code = (code * 31 + unit) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def find_property(properties: bytes, name: bytes) -> bytes:
    """Return a property's value, empty if there is none."""
    name += b"\x01"
    stop = len(properties)
    while (at := properties.rfind(name, 0, stop)) >= 0:
        if at == 0 or properties[at - 1] == 2:
            start = at + len(name)
            end = properties.find(b"\x02", start)
            value = properties[start:] if end < 0 else properties[start:end]
            if value:
                return value
        stop = at
    return b""


def tags_code(data: bytes, start: int, stop: int) -> int:
    """Return the tags code of a consume queue's unit: the hash of TAGS, 0 without tags.

    The properties are bytes `start` to `stop` of `data`, not copied since this runs per message.
    """
    at = data.rfind(b"TAGS\x01", start, stop)
    if at < 0:
        return 0
    end = data.find(b"\x02", at, stop)
    if end > at + 5 and (at == start or data[at - 1] == 2):
        return _cached_hash(data[at + 5 : end])
    tags = find_property(data[start:stop], TAGS)
    return _cached_hash(tags) if tags else 0


def tags_in(properties: bytes) -> int:
    """Return the tags code of a message with these properties."""
    return tags_code(properties, 0, len(properties)) if b"TAGS" in properties else 0


def keys_in(properties: bytes) -> list[bytes]:
    """Return the keys that a message is indexed by: its UNIQ_KEY, then each of its KEYS."""
    unique = find_property(properties, UNIQ_KEY)
    keys = [key for key in find_property(properties, KEYS).split(b" ") if key]
    return [unique, *keys] if unique else keys


_cached_hash = lru_cache(_TAGS_CACHED_MAX)(java_hash)  # a topic has few tags
