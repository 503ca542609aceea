"""A generic remoting command: any request or response, in both header serializations.

Most responses are encoded from a template.

Source: RocketMQ's RemotingCommand, RocketMQSerializable, LanguageCode; DLEDGER.md A.1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec

from shaketable.system.remoting.frame import Frame, SerializeType, encode_frame

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
VERSION = 409
"""V4_9_8 in MQVersion: the version that we announce."""

I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_LANGUAGES = (
    "JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST NODE_JS".split()  # noqa: SIM905 - the enum, in its order
)
_LANGUAGE_BYTES = {name: number for number, name in enumerate(_LANGUAGES)}
_OTHER = _LANGUAGE_BYTES["OTHER"]

_FIXED = struct.Struct(">hBhii")  # code, language, version, opaque, flag
_U32 = struct.Struct(">I")
_KEY_LENGTH = struct.Struct(">H")


class CommandError(Exception):
    """The frame is complete, but its header or a required field is malformed."""


class Command(msgspec.Struct, gc=False):
    """A request or a response. The `body` of a decoded one is valid as long as its frame."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: str = "PYTHON"
    version: int = VERSION
    remark: str | None = None
    ext: dict[str, str] = msgspec.field(default_factory=dict)
    body: bytes | memoryview = b""
    serialize_type: int = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        """Whether this is the response to our request with the same `opaque`."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no response."""
        return bool(self.flag & ONEWAY_FLAG)


class _JsonHeader(msgspec.Struct, gc=False):
    """The JSON header as clients send it; unknown keys are ignored."""

    code: I32
    opaque: I32 = 0
    flag: I32 = 0
    language: str | None = None
    version: I32 = 0
    remark: str | None = None
    ext: dict[str, str | int | float | bool | None] | None = msgspec.field(
        default=None, name="extFields"
    )


class _JsonHeaderOut(msgspec.Struct, gc=False, omit_defaults=True):
    """The JSON header as we send it: null fields are omitted, as fastjson does."""

    code: I32
    flag: I32
    language: str
    opaque: I32
    version: I32
    ext: dict[str, str] | None = msgspec.field(default=None, name="extFields")
    remark: str | None = None
    serialize_type: str = msgspec.field(default="", name="serializeTypeCurrentRPC")


_JSON_DECODER = msgspec.json.Decoder(_JsonHeader)
_JSON_ENCODER = msgspec.json.Encoder()


def decode_command(frame: Frame) -> Command:
    """Decode any frame. Raises only CommandError."""
    if frame.serialize_type == SerializeType.JSON:
        return _decode_json(frame)
    try:
        return _decode_rocketmq(frame)
    except (struct.error, UnicodeDecodeError) as error:
        raise CommandError(f"bad ROCKETMQ header: {error}") from None


def encode_command(command: Command) -> bytes:
    """Encode a frame, its header in `command.serialize_type`.

    Raises CommandError if a field does not fit its wire format, FrameError if the frame is too
    long.
    """
    try:
        is_json = command.serialize_type == SerializeType.JSON
        header = _encode_json(command) if is_json else _encode_rocketmq(command)
    except (struct.error, UnicodeEncodeError) as error:
        raise CommandError(f"command {command.code} does not fit the wire: {error}") from None
    return encode_frame(header, command.body, command.serialize_type)


def _decode_json(frame: Frame) -> Command:
    try:
        header = _JSON_DECODER.decode(frame.header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CommandError(f"bad JSON header: {error}") from None
    fields = header.ext
    ext = {} if fields is None else {k: _text(v) for k, v in fields.items() if v is not None}
    return Command(
        header.code,
        header.opaque,
        header.flag,
        header.language or "OTHER",
        header.version,
        header.remark,
        ext,
        frame.body,
        SerializeType.JSON,
    )


def _text(value: str | float | bool) -> str:
    """Return a JSON value as a string, as in Java's Map<String, String>."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _decode_rocketmq(frame: Frame) -> Command:
    header = frame.header
    code, language, version, opaque, flag = _FIXED.unpack_from(header)
    remark, at = _take(header, _FIXED.size, _U32)
    fields, at = _take(header, at, _U32)
    if at != len(header):
        raise CommandError(f"bad ROCKETMQ header: {len(header) - at} bytes after the ext fields")
    ext: dict[str, str] = {}
    at = 0
    while at < len(fields):
        key, at = _take(fields, at, _KEY_LENGTH)
        value, at = _take(fields, at, _U32)
        ext[str(key, "utf-8")] = str(value, "utf-8")
    return Command(
        code,
        opaque,
        flag,
        _LANGUAGES[language] if language < len(_LANGUAGES) else "OTHER",
        version,
        str(remark, "utf-8") if remark else None,
        ext,
        frame.body,
        SerializeType.ROCKETMQ,
    )


def _take(data: memoryview, at: int, length_field: struct.Struct) -> tuple[memoryview, int]:
    """Return the length-prefixed bytes at `at` and where the next field starts."""
    (length,) = length_field.unpack_from(data, at)
    start = at + length_field.size
    if length > len(data) - start:
        raise CommandError(
            f"bad ROCKETMQ header: a field of {length} bytes where {len(data) - start} are left"
        )
    return data[start : start + length], start + length


def _encode_json(command: Command) -> bytes:
    return _JSON_ENCODER.encode(
        _JsonHeaderOut(
            command.code,
            command.flag,
            command.language,
            command.opaque,
            command.version,
            command.ext or None,
            command.remark,
            "JSON",
        )
    )


def _encode_rocketmq(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    fields = b"".join([_encode_field(*field) for field in command.ext.items()])
    return b"".join(
        (
            _FIXED.pack(
                command.code,
                _LANGUAGE_BYTES.get(command.language, _OTHER),
                command.version,
                command.opaque,
                command.flag,
            ),
            _U32.pack(len(remark)),
            remark,
            _U32.pack(len(fields)),
            fields,
        )
    )


def _encode_field(key: str, value: str) -> bytes:
    key_bytes, value_bytes = key.encode(), value.encode()
    return b"".join(
        (
            _KEY_LENGTH.pack(len(key_bytes)),
            key_bytes,
            _U32.pack(len(value_bytes)),
            value_bytes,
        )
    )


# Responses: send responses from a template (THROUGHPUT.md rule 5), others generically.

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
