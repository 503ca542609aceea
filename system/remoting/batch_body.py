"""The body of SEND_BATCH_MESSAGE (320): messages of one topic and queue, one after the other.

Each is i32 size, i32 magic 0, i32 body CRC 0, i32 flag, i32 body length, body, i16 properties
length, properties. Source: RocketMQ's MessageDecoder.encodeMessage; DLEDGER.md A.2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from shaketable.system.remoting.command import CommandError

_HEAD = struct.Struct(">iiiii")  # size, magic, body CRC, flag, body length
_U16 = struct.Struct(">H")
_SEPARATOR = 2
"""The byte after each property."""


class BatchMessage(NamedTuple):
    """One message of a batch. The views of a decoded message are valid as long as its frame."""

    body: bytes | memoryview
    properties: bytes | memoryview = b""
    flag: int = 0


def encode_batch(messages: Sequence[BatchMessage]) -> bytes:
    """Encode the request's body. Raises CommandError if properties are too long."""
    parts: list[bytes | memoryview] = []
    for body, properties, flag in messages:
        if len(properties) > 0x7FFF:
            raise CommandError(f"properties of {len(properties)} bytes, at most 32767")
        size = _HEAD.size + len(body) + _U16.size + len(properties)
        parts += (
            _HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _U16.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(data: bytes | memoryview, count_max: int) -> list[BatchMessage]:
    """Decode the body.

    Raises CommandError if it is empty, malformed, or has more than `count_max` messages.
    """
    view = memoryview(data)
    found: list[BatchMessage] = []
    at = 0
    while at < len(view):
        if len(found) == count_max:
            raise CommandError(f"a batch of more than {count_max} messages")
        message, size = _decode_at(view[at:], len(found))
        found.append(message)
        at += size
    if not found:
        raise CommandError("a batch without a message")
    return found


def _decode_at(view: memoryview, ordinal: int) -> tuple[BatchMessage, int]:
    try:
        size, _, _, flag, body_bytes = _HEAD.unpack_from(view)
        properties_at = _HEAD.size + body_bytes + _U16.size
        if body_bytes < 0:
            raise CommandError(f"message {ordinal} of a batch has a body of {body_bytes} bytes")
        (properties_bytes,) = _U16.unpack_from(view, properties_at - _U16.size)
    except struct.error:
        raise CommandError(f"message {ordinal} of a batch is cut off") from None
    if size != properties_at + properties_bytes or size > len(view):
        raise CommandError(
            f"message {ordinal} of a batch has size {size}, its fields take "
            f"{properties_at + properties_bytes} of {len(view)} bytes"
        )
    body = view[_HEAD.size : _HEAD.size + body_bytes]
    return BatchMessage(body, view[properties_at:size], flag), size


def joined_properties(own: bytes | memoryview, batch_properties: bytes) -> bytes:
    """Return a message's properties followed by its batch's (RocketMQ's MessageExtEncoder)."""
    if not batch_properties:
        return bytes(own)
    separator = b"\x02" if own and own[-1] != _SEPARATOR else b""
    return b"".join((own, separator, batch_properties))
