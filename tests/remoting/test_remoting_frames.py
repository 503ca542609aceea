"""Frames: chunked delivery equals whole delivery, and garbage raises only FrameError."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shaketable.system.remoting.command import (
    FrameBuffer,
    FrameError,
    SerializeType,
    encode_frame,
    watched_frames,
)

FRAME = st.tuples(
    st.binary(max_size=200), st.binary(max_size=2000), st.sampled_from(list(SerializeType))
)


def cut(stream: bytes, sizes: list[int], buffer: FrameBuffer) -> list[tuple[int, bytes, bytes]]:
    """Deliver `stream` in pieces of the given sizes, over and over."""
    found = []
    at, turn = 0, 0
    while at < len(stream):
        space = buffer.writable()
        assert len(space) > 0
        piece = stream[at : at + min(sizes[turn % len(sizes)], len(space))]
        space[: len(piece)] = piece
        buffer.received(len(piece))
        at += len(piece)
        turn += 1
        found += [(f.serialize_type, bytes(f.header), bytes(f.body)) for f in buffer.frames()]
    return found


@settings(deadline=None)
@given(st.lists(FRAME, max_size=8), st.lists(st.integers(1, 700), min_size=1, max_size=9))
def test_chunked_delivery_equals_whole_delivery(frames, sizes):
    stream = b"".join(encode_frame(*frame) for frame in frames)
    expected = [(int(kind), header, body) for header, body, kind in frames]
    assert cut(stream, sizes, FrameBuffer()) == expected
    assert cut(stream, [1 << 20], FrameBuffer()) == expected


@settings(deadline=None)
@given(st.lists(FRAME, max_size=5), st.lists(st.integers(1, 5000), min_size=1, max_size=9))
def test_a_buffer_as_small_as_the_frame_limit_is_enough(frames, sizes):
    stream = b"".join(encode_frame(*frame) for frame in frames)
    assert len(cut(stream, sizes, FrameBuffer(frame_bytes_max=2208))) == len(frames)


def test_grows_for_a_large_frame_and_shrinks_back():
    buffer = FrameBuffer()
    large = encode_frame(b"{}", bytes(3_000_000))
    assert [len(body) for _, _, body in cut(large, [65_536], buffer)] == [3_000_000]
    assert len(buffer.writable()) > 262_144, "another large one may follow"
    small = encode_frame(b"{}", b"small")
    for _ in range(100):
        assert [bytes(body) for _, _, body in cut(small, [65_536], buffer)] == [b"small"]
    assert len(buffer.writable()) <= 262_144


def test_a_claimed_length_alone_costs_no_memory():
    buffer = FrameBuffer()
    assert cut(struct.pack(">iI", 16_000_000, 100) + bytes(200_000), [65_536], buffer) == []
    assert len(buffer.writable()) <= 262_144


def test_frames_outlive_growth_of_the_buffer():
    """Views given out point at the old buffer; the new one must not change them."""
    buffer = FrameBuffer()
    first = encode_frame(b"h", b"first")
    start = encode_frame(b"h", bytes(400_000))[: 262_144 - len(first)]
    space = buffer.writable()
    space[:] = first + start
    buffer.received(len(space))
    (frame,) = buffer.frames()
    assert bytes(frame.body) == b"first"


@pytest.mark.parametrize(
    ("head", "line"),
    [
        (struct.pack(">iI", -1, 0), "length -1"),
        (struct.pack(">iI", 3, 0), "length 3"),
        (struct.pack(">iI", 16_777_213, 0), "length 16777213"),
        (struct.pack(">iI", 100, 2 << 24), "serialize type 2"),
        (struct.pack(">iI", 100, 97), "header of 97 bytes in a frame of 100"),
        (struct.pack(">iI", 1_000_000, 262_145), "header of 262145 bytes is longer than 262144"),
        (b"GET / HTTP/1.1\r\n\r\n", "length 1195725856"),
    ],
)
def test_garbage_is_one_clear_line(head, line):
    with pytest.raises(FrameError, match=line) as caught:
        cut(head, [100], FrameBuffer())
    assert "\n" not in str(caught.value)


def test_good_frames_in_front_of_garbage_are_given_out_first():
    buffer = FrameBuffer()
    stream = encode_frame(b"{}", b"good") + b"\xff" * 8
    assert cut(stream, [len(stream)], buffer) == [(0, b"{}", b"good")]
    with pytest.raises(FrameError):
        buffer.frames()


@settings(deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_arbitrary_bytes_raise_nothing_but_frame_error(stream, sizes):
    with suppress(FrameError):
        cut(stream, sizes, FrameBuffer())


def test_a_frame_over_the_limit_is_not_sent():
    with pytest.raises(FrameError, match="longer than"):
        encode_frame(b"{}", bytes(16_777_216))


def receive(buffer: FrameBuffer, stream: bytes) -> None:
    buffer.writable()[: len(stream)] = stream
    buffer.received(len(stream))


def test_watched_frames_are_overwritten_when_their_life_ends():
    buffer = FrameBuffer()
    with watched_frames(pytest.fail):
        receive(buffer, encode_frame(b"head", b"first"))
        (first,) = buffer.frames()
        assert bytes(first.body) == b"first"
        receive(buffer, encode_frame(b"head", b"second"))
        assert b"first" not in bytes(first.body)
        (second,) = buffer.frames()
        assert bytes(second.body) == b"second"


def test_who_watches_is_told_of_garbage():
    told, garbage = [], b"\xff" * 8
    with watched_frames(told.append), suppress(FrameError):
        cut(garbage, [8], FrameBuffer())
    with suppress(FrameError):
        cut(garbage, [8], FrameBuffer())
    assert len(told) == 1
