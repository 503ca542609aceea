"""Remoting frames, and the generic command in them: requests and responses, both serializations.

Most responses are encoded from a template.

Source: RocketMQ's RemotingCommand, RocketMQSerializable, LanguageCode; DLEDGER.md A.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Annotated

import msgspec

# Decodes RocketMQ's remoting frames from a byte stream, and encodes them.
#
# A frame is `i32 length` (of the rest), `u8 serialize type`, `u24 header length`, header, body.
# Source: RocketMQ's NettyDecoder and RemotingCommand; DLEDGER.md section A.1.

FRAME_BYTES_MAX = 16_777_216
"""Frame size with its length field: RocketMQ's com.rocketmq.remoting.frameMaxLength."""
HEADER_BYTES_MAX = 262_144
"""Fits properties of 32,767 bytes even if JSON escapes each byte as six."""


class FrameError(Exception):
    """The bytes are not a remoting frame: close the connection. The message is one line."""


class SerializeType(IntEnum):
    """The serialization of a frame's header (RocketMQ's SerializeType)."""

    JSON = 0
    ROCKETMQ = 1


_SERIALIZE_TYPES = frozenset(SerializeType)
_HEADER_LENGTH_MAX = 0xFFFFFF


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One complete frame. The views are valid until the buffer's next `writable()`."""

    serialize_type: int
    header: memoryview
    body: memoryview


_FRAME_PREFIX = struct.Struct(">iI")
_BASE_BYTES = 262_144
OVERWRITTEN = b"\xdb"
_WATCHERS: list[Callable[[str], None]] = []
"""Called with each malformed frame's problem; see `watched_frames`."""
_SMALL_READS_MAX = 64
"""Small reads in a row before a large buffer is released: large frames often come in runs."""


class FrameBuffer:
    """Splits a byte stream into frames, in one reusable buffer (THROUGHPUT.md rules 1 and 2).

    The buffer has 256 KiB. It doubles while a frame needs more, so that a forged length costs no
    memory, and shrinks again after _SMALL_READS_MAX small reads.
    """

    __slots__ = (
        "_buffer",
        "_end",
        "_frame_max",
        "_handed_out",
        "_header_max",
        "_small_reads",
        "_start",
        "_view",
    )

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = HEADER_BYTES_MAX
    ) -> None:
        assert frame_bytes_max >= _FRAME_PREFIX.size
        self._frame_max = frame_bytes_max
        self._header_max = header_bytes_max
        self._allocate(min(_BASE_BYTES, frame_bytes_max))
        self._small_reads = 0  # reads in a row for which a small buffer sufficed
        self._start = 0  # bytes before it were returned as frames
        self._handed_out = 0  # bytes from here to `_start` were returned since `writable`
        self._end = 0  # bytes after it are free

    def writable(self) -> memoryview:
        """Return the space for the next bytes (never empty); invalidates all earlier frames.

        Call `frames` after each `received`, or the buffer may be full.
        """
        if _WATCHERS:
            self._view[self._handed_out : self._start] = OVERWRITTEN * (
                self._start - self._handed_out
            )
        base = min(_BASE_BYTES, self._frame_max)
        pending = self._end - self._start
        if len(self._buffer) > base:
            self._small_reads = self._small_reads + 1 if pending <= base // 2 else 0
        if self._small_reads > _SMALL_READS_MAX:
            self._small_reads = 0
            self._move_to(base)
        elif self._start and len(self._buffer) - self._end < len(self._buffer) // 2:
            self._move_to(len(self._buffer))
        if self._end == len(self._buffer):
            assert pending < self._frame_max, "frames() was not called"
            self._move_to(min(2 * len(self._buffer), self._frame_max))
        self._handed_out = self._start
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Note that `count` bytes were received into `writable()`."""
        assert 0 <= count <= len(self._buffer) - self._end
        self._end += count

    def frames(self) -> list[Frame]:
        """Return all complete frames received. Raises FrameError for a malformed frame.

        Frames before the malformed one are returned first; the next call raises.
        """
        found: list[Frame] = []
        view, end, start = self._view, self._end, self._start
        while end - start >= _FRAME_PREFIX.size:
            length, word = _FRAME_PREFIX.unpack_from(view, start)
            serialize_type, header_bytes = word >> 24, word & 0xFFFFFF
            problem = self._problem(length, serialize_type, header_bytes)
            if problem:
                if found:
                    break
                for watcher in _WATCHERS:
                    watcher(problem)
                raise FrameError(problem)
            frame_end = start + 4 + length
            if frame_end > end:
                break
            body = start + _FRAME_PREFIX.size + header_bytes
            found.append(
                Frame(serialize_type, view[start + _FRAME_PREFIX.size : body], view[body:frame_end])
            )
            start = frame_end
        self._start = start
        return found

    def _problem(self, length: int, serialize_type: int, header_bytes: int) -> str | None:
        """Return what is wrong with a frame's first 8 bytes, None if nothing is."""
        if not 4 <= length <= self._frame_max - 4:
            return f"not a remoting frame: length {length} is outside 4..{self._frame_max - 4}"
        if serialize_type not in _SERIALIZE_TYPES:
            return f"not a remoting frame: serialize type {serialize_type} is neither 0 nor 1"
        if header_bytes > length - 4:
            return f"not a remoting frame: header of {header_bytes} bytes in a frame of {length}"
        if header_bytes > self._header_max:
            return f"header of {header_bytes} bytes is longer than {self._header_max}"
        return None

    def _allocate(self, size: int) -> None:
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)

    def _move_to(self, size: int) -> None:
        """Move the pending bytes to the front of a buffer of `size` bytes."""
        old = self._view[self._start : self._end]
        if size != len(self._buffer):
            self._allocate(size)
        self._view[: len(old)] = old
        self._start, self._end = 0, len(old)


@contextmanager
def watched_frames(watcher: Callable[[str], None]) -> Iterator[None]:
    """Check all frame buffers of a simulated world for use after invalidation.

    Frames are overwritten as soon as they are invalid. Otherwise their bytes survive for another
    128 KiB, and code that reads a stale frame nearly always gets the right bytes. `watcher` is
    called with each malformed frame's problem.
    """
    _WATCHERS.append(watcher)
    try:
        yield
    finally:
        _WATCHERS.remove(watcher)


def encode_frame(
    header: bytes,
    body: bytes | memoryview | Sequence[bytes | memoryview] = b"",
    serialize_type: int = SerializeType.JSON,
) -> bytes:
    """Encode a frame. `body` is one buffer, or several that are joined. Raises FrameError."""
    parts = (body,) if isinstance(body, bytes | memoryview) else body
    length = 4 + len(header) + sum(map(len, parts))
    if length > FRAME_BYTES_MAX - 4 or len(header) > _HEADER_LENGTH_MAX:
        raise FrameError(f"frame of {length} bytes is longer than {FRAME_BYTES_MAX - 4}")
    return b"".join(
        (_FRAME_PREFIX.pack(length, serialize_type << 24 | len(header)), header, *parts)
    )


# Commands, in both header serializations.

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
