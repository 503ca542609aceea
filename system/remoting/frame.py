"""Decodes RocketMQ's remoting frames from a byte stream, and encodes them.

A frame is `i32 length` (of the rest), `u8 serialize type`, `u24 header length`, header, body.
Source: RocketMQ's NettyDecoder and RemotingCommand; DLEDGER.md section A.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import msgspec

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


_PREFIX = struct.Struct(">iI")
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
        assert frame_bytes_max >= _PREFIX.size
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
        while end - start >= _PREFIX.size:
            length, word = _PREFIX.unpack_from(view, start)
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
            body = start + _PREFIX.size + header_bytes
            found.append(
                Frame(serialize_type, view[start + _PREFIX.size : body], view[body:frame_end])
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
    return b"".join((_PREFIX.pack(length, serialize_type << 24 | len(header)), header, *parts))
