"""Encodes responses: send responses from a template (THROUGHPUT.md rule 5), others generically."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from shaketable.system.remoting.command import (
    RESPONSE_FLAG,
    VERSION,
    Command,
    decode_command,
    encode_command,
)
from shaketable.system.remoting.frame import Frame, SerializeType

_PREFIX = struct.Struct(">II")
_JSON_TEMPLATE = (
    b'{"code":0,"extFields":{"msgId":"%%b","queueId":"%%d","queueOffset":"%%d"},"flag":%d,'
    b'"language":"PYTHON","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
) % (RESPONSE_FLAG, VERSION)
_ROCKETMQ_TYPE = SerializeType.ROCKETMQ << 24
_ROCKETMQ_HEAD = struct.Struct(">hBhiiII")  # the fixed part, no remark, length of the ext fields
_PYTHON = 3


def send_response(
    opaque: int,
    message_id: bytes,
    queue_id: int,
    queue_offset: int,
    serialize_type: int = SerializeType.JSON,
) -> bytes:
    """Return the frame that acknowledges a send. `message_id` is 32 hex digits (ASCII)."""
    if serialize_type == SerializeType.JSON:
        header = _JSON_TEMPLATE % (message_id, queue_id, queue_offset, opaque)
        return _PREFIX.pack(4 + len(header), len(header)) + header
    ext = b"".join(
        (
            _field(b"msgId", message_id),
            _field(b"queueId", b"%d" % queue_id),
            _field(b"queueOffset", b"%d" % queue_offset),
        )
    )
    head = _ROCKETMQ_HEAD.pack(0, _PYTHON, VERSION, opaque, RESPONSE_FLAG, 0, len(ext))
    length = len(head) + len(ext)
    return b"".join((_PREFIX.pack(4 + length, _ROCKETMQ_TYPE | length), head, ext))


def response(
    opaque: int,
    code: int,
    remark: str | None = None,
    ext: dict[str, str] | None = None,
    body: bytes | memoryview | Sequence[bytes | memoryview] = b"",
    *,
    serialize_type: int = SerializeType.JSON,
) -> bytes:
    """Return the frame of any response; `serialize_type` must be the request's."""
    return encode_command(
        Command(
            code,
            opaque,
            RESPONSE_FLAG,
            remark=remark,
            ext=ext or {},
            body=body if isinstance(body, bytes | memoryview) else b"".join(body),
            serialize_type=serialize_type,
        )
    )


def with_code(frame: bytes, code: int) -> bytes:
    """Return a response's frame with another code, otherwise unchanged."""
    (_, word) = _PREFIX.unpack_from(frame)
    header_end = _PREFIX.size + (word & 0xFFFFFF)
    view = memoryview(frame)
    command = decode_command(Frame(word >> 24, view[_PREFIX.size : header_end], view[header_end:]))
    command.code = code
    return encode_command(command)


def _field(key: bytes, value: bytes) -> bytes:
    return b"%b%b%b%b" % (len(key).to_bytes(2, "big"), key, len(value).to_bytes(4, "big"), value)
