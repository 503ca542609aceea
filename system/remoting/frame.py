"""RocketMQ's remoting frames: cut out of a stream of bytes, and put together.

A frame is `i32 length` (of what follows), `u8 serialize type`, `u24 header length`, header,
body. Source: RocketMQ's NettyDecoder and RemotingCommand; DLEDGER.md section A.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

FRAME_BYTES_MAX = 16_777_216
HEADER_BYTES_MAX = 262_144


class FrameError(Exception):
    """The bytes are no remoting frame. One clear line; the connection must be closed."""


class SerializeType(IntEnum):
    """How a frame's header is written (RocketMQ's SerializeType)."""

    JSON = 0
    ROCKETMQ = 1


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One complete frame. The views are valid until the buffer's next `writable()`."""

    serialize_type: int
    header: memoryview
    body: memoryview


class FrameBuffer:
    """Cuts a byte stream into frames, in one reusable buffer (THROUGHPUT.md rules 1 and 2)."""

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = HEADER_BYTES_MAX
    ) -> None: ...

    def writable(self) -> memoryview:
        """Return where to receive the next bytes (never empty); ends the life of older frames."""
        raise NotImplementedError

    def received(self, count: int) -> None:
        """Say that `count` bytes were received into `writable()`."""
        raise NotImplementedError

    def frames(self) -> list[Frame]:
        """Return all complete frames received; raises FrameError for what is no frame.

        Good frames in front of the garbage are returned first; the next call raises.
        """
        raise NotImplementedError


def encode_frame(
    header: bytes,
    body: bytes | memoryview | Sequence[bytes | memoryview],
    serialize_type: int = SerializeType.JSON,
) -> bytes:
    """Return the frame of `header` and `body` (one buffer, or a list that is joined)."""
    raise NotImplementedError
