"""Properties of stored messages as RocketMQ's dispatchers read them: tags code and keys.

Source: Java's String.hashCode, RocketMQ's MessageDecoder.string2messageProperties (a later
property replaces an earlier one, an empty value is none), MessageExtBrokerInner's
tagsString2tagsCode, CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

TAGS = b"TAGS"
KEYS = b"KEYS"
UNIQ_KEY = b"UNIQ_KEY"
_TAGS_CACHED_MAX = 4096


def java_hash(text: bytes, front_hash: int = 0) -> int:
    """Return String.hashCode of UTF-8 text: of its UTF-16 code units, as a signed i32.

    `front_hash` is that of the text in front, if this is the rest of a longer one.
    """
    units: Iterable[int] = text
    if not text.isascii():
        units = memoryview(text.decode(errors="replace").encode("utf-16-le")).cast("H")
    code = front_hash & 0xFFFFFFFF
    for unit in units:
        code = (code * 31 + unit) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def find_property(properties: bytes, name: bytes) -> bytes:
    """Return a property's value, empty if there is none."""
    name += b"\x01"
    behind = len(properties)
    while (at := properties.rfind(name, 0, behind)) >= 0:
        if at == 0 or properties[at - 1] == 2:
            start = at + len(name)
            end = properties.find(b"\x02", start)
            value = properties[start:] if end < 0 else properties[start:end]
            if value:
                return value
        behind = at
    return b""


def tags_code(data: bytes, start: int, behind: int) -> int:
    """Return the tags code of a consume queue's unit: the hash of TAGS, 0 without tags.

    The properties are bytes `start` to `behind` of `data`; for each message, so no copies.
    """
    at = data.rfind(b"TAGS\x01", start, behind)
    if at < 0:
        return 0
    end = data.find(b"\x02", at, behind)
    if end > at + 5 and (at == start or data[at - 1] == 2):
        return _cached_hash(data[at + 5 : end])
    tags = find_property(data[start:behind], TAGS)
    return _cached_hash(tags) if tags else 0


def tags_in(properties: bytes) -> int:
    """Return the tags code of a message with these properties."""
    return tags_code(properties, 0, len(properties)) if b"TAGS" in properties else 0


def keys_in(properties: bytes) -> list[bytes]:
    """Return what a message is found by: its UNIQ_KEY, then each of its KEYS."""
    unique = find_property(properties, UNIQ_KEY)
    keys = [key for key in find_property(properties, KEYS).split(b" ") if key]
    return [unique, *keys] if unique else keys


_cached_hash = lru_cache(_TAGS_CACHED_MAX)(java_hash)  # a topic has few tags
