"""RocketMQ's remoting frames: cut out of a stream of bytes, and put together.

A frame is `i32 length` (of what follows), `u8 serialize type`, `u24 header length`, header,
body. Source: RocketMQ's NettyDecoder and RemotingCommand; DLEDGER.md section A.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import msgspec

FRAME_BYTES_MAX = 16_777_216
"""Whole frame with its length field: RocketMQ's com.rocketmq.remoting.frameMaxLength."""
HEADER_BYTES_MAX = 262_144
"""Properties of 32,767 bytes fit, even if JSON escapes each one as six."""


class FrameError(Exception):
    """The bytes are no remoting frame. One clear line; the connection must be closed."""


class SerializeType(IntEnum):
    """How a frame's header is written (RocketMQ's SerializeType)."""

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
"""Told of what is no frame; see `watched_frames`."""
_SMALL_READS_MAX = 64
"""After so many a large buffer is given up: large frames often come one behind the other."""


class FrameBuffer:
    """Cuts a byte stream into frames, in one reusable buffer (THROUGHPUT.md rules 1 and 2).

    The buffer holds 256 KiB, doubles while one frame needs more (so a length that is only
    claimed costs no memory), and falls back once no such frame has come for some time.
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
        self._small_reads = 0  # how often in a row a smaller buffer would have done
        self._start = 0  # what lies before was given out as frames
        self._handed_out = 0  # and since then by the last calls of `frames`
        self._end = 0  # what lies behind is free

    def writable(self) -> memoryview:
        """Return where to receive the next bytes (never empty); ends the life of older frames.

        Call `frames` after each `received`: a full buffer that was not cut cannot take more.
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
        """Say that `count` bytes were received into `writable()`."""
        assert 0 <= count <= len(self._buffer) - self._end
        self._end += count

    def frames(self) -> list[Frame]:
        """Return all complete frames received; raises FrameError for what is no frame.

        Good frames in front of the garbage are returned first; the next call raises.
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
            behind = start + 4 + length
            if behind > end:
                break
            body = start + _PREFIX.size + header_bytes
            found.append(
                Frame(serialize_type, view[start + _PREFIX.size : body], view[body:behind])
            )
            start = behind
        self._start = start
        return found

    def _problem(self, length: int, serialize_type: int, header_bytes: int) -> str | None:
        """Say what is wrong with a frame's first 8 bytes, as soon as they are there."""
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
        """Put what is pending at the front of a buffer of `size` bytes."""
        old = self._view[self._start : self._end]
        if size != len(self._buffer):
            self._allocate(size)
        self._view[: len(old)] = old
        self._start, self._end = 0, len(old)


@contextmanager
def watched_frames(watcher: Callable[[str], None]) -> Iterator[None]:
    """Watch all buffers of a simulated world: whoever uses them wrongly is to be found out.

    Frames are overwritten at the end of their life: otherwise that is after 128 KiB more, and who
    reads on in one finds what he expects, nearly always. `watcher` is told of what is no frame.
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
    """Return the frame of `header` and `body` (one buffer, or a list that is joined)."""
    parts = (body,) if isinstance(body, bytes | memoryview) else body
    length = 4 + len(header) + sum(map(len, parts))
    if length > FRAME_BYTES_MAX - 4 or len(header) > _HEADER_LENGTH_MAX:
        raise FrameError(f"frame of {length} bytes is longer than {FRAME_BYTES_MAX - 4}")
    return b"".join((_PREFIX.pack(length, serialize_type << 24 | len(header)), header, *parts))
