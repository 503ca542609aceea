"""Messages and entries: the documented layout, and every damage found."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shaketable.system.raft.protocol import Batch, LogEnd
from shaketable.system.store.entry import (
    DamagedEntry,
    EntryBuilder,
    EntryTooLarge,
    iter_messages,
    next_position,
    verify_batch,
)
from shaketable.system.store.message import (
    DamagedMessage,
    Message,
    decode_message,
    decode_message_id,
    encode_message,
    host_bytes,
    offset_message_id,
    walk_messages,
)

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TOPIC = st.binary(min_size=1, max_size=140)


@st.composite
def messages(draw):
    sys_flag = draw(st.integers(0, 2**12))
    return Message(
        draw(TOPIC),
        draw(I32),
        draw(I64),
        draw(I64),
        draw(st.binary(max_size=90)),
        draw(st.binary(max_size=90)),
        draw(I32),
        sys_flag,
        draw(I64),
        draw(st.binary(min_size=20, max_size=20))[: 20 if sys_flag & 16 else 8],
        draw(I64),
        draw(st.binary(min_size=20, max_size=20))[: 20 if sys_flag & 32 else 8],
        draw(I32),
        draw(I64),
    )


@settings(deadline=None)
@given(st.lists(messages(), max_size=4))
def test_messages_come_back(stored):
    data = b"".join(map(encode_message, stored))
    assert list(walk_messages(data)) == stored
    for message in stored:
        assert decode_message(encode_message(message)) == message


@settings(deadline=None)
@given(messages(), st.data())
def test_damaged_messages_raise_only_damaged_message(message, data):
    raw = bytearray(encode_message(message))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    for damaged in (bytes(raw), bytes(cut)):
        try:
            decode_message(damaged)
            list(walk_messages(damaged))
        except DamagedMessage:
            continue


def test_the_stored_layout_is_the_documented_one():
    """By hand from MessageExtEncoder's order, not by our structs."""
    message = Message(
        b"TopicTest", 3, 7, 48, b"value", b"TAGS\x01a\x02", 5, 0, 11,
        host_bytes("10.0.0.1", 30_909), 12, host_bytes("127.0.0.1", 30_911), 2, 0,
    )  # fmt: skip
    raw = encode_message(message)
    assert len(raw) == 91 + 5 + 9 + 7
    assert raw[:4] == struct.pack(">i", len(raw))
    assert raw[4:8] == bytes.fromhex("DAA320A7")
    assert raw[8:12] == struct.pack(">i", zlib.crc32(b"value") & 0x7FFFFFFF)
    assert raw[20:28] == struct.pack(">q", 7)
    assert raw[28:36] == struct.pack(">q", 48)
    assert raw[48:56] == bytes([10, 0, 0, 1]) + struct.pack(">i", 30_909)
    assert raw[56:64] == struct.pack(">q", 12)
    assert raw[84:88] == struct.pack(">i", 5)
    assert raw[88:] == b"value" + b"\x09TopicTest" + b"\x00\x07TAGS\x01a\x02"
    message_id = offset_message_id(message.store_host, 48)
    assert message_id == b"7F000001000078BF0000000000000030"
    assert decode_message_id(message_id.decode()) == ("127.0.0.1:30911", 48)
    for wrong in ("", "7F", "7F000001000078BF00000000000000", "zz" * 16):
        with pytest.raises(ValueError, match="no message id"):
            decode_message_id(wrong)


MESSAGE = st.tuples(TOPIC, st.integers(0, 9), st.integers(0, 99), st.binary(max_size=300))


@settings(deadline=None)
@given(
    runs=st.lists(st.lists(MESSAGE, min_size=1, max_size=5), min_size=1, max_size=4),
    file_bytes=st.sampled_from((800, 1024, 4096)),
)
def test_built_entries_verify_and_dispatch_and_agree_with_the_message_codec(runs, file_bytes):
    end = LogEnd()
    host = host_bytes("127.0.0.1", 9000)
    for term, run in enumerate(runs):
        builder = EntryBuilder(end, term, file_bytes, host)
        positions = [
            builder.add(
                topic, queue, offset, memoryview(body), b"K\x01v\x02", born_ms=1, store_ms=2
            )
            for topic, queue, offset, body in run
        ]
        batches = builder.take()
        assert builder.take() == []
        seen = []
        for batch in batches:
            assert batch.position // file_bytes == (batch.end_position + 7) // file_bytes
            end = verify_batch(batch, end)
            for index, found_term, at, size, topic, queue, offset in iter_messages(
                batch.data, batch.position
            ):
                assert found_term == term
                raw = batch.data[at - batch.position : at - batch.position + size]
                message = decode_message(raw)
                assert encode_message(message) == raw
                assert message.physical_offset == at
                assert (message.topic, message.queue_id) == (topic, queue)
                seen.append((index, at, topic, queue, offset, message.body))
        assert end == builder.end
        first = end.index + 1 - len(run)
        assert seen == [(first + n, positions[n], *run[n]) for n in range(len(run))]


def test_the_entry_header_is_the_documented_one():
    builder = EntryBuilder(LogEnd(), 6, 4096, bytes(8))
    builder.add(b"t", 0, 0, b"one")
    first = builder.end
    builder.add(b"t", 0, 1, b"two")
    (batch,) = builder.take()
    header = batch.data[first.position : first.position + 48]
    body = batch.data[first.position + 48 :]
    body_crc = struct.pack(">I", zlib.crc32(body))
    body_size = struct.pack(">i", len(body))
    chained = struct.pack(">iiqqqi", 1, 48 + len(body), 1, 6, first.position, 0)
    chain = zlib.crc32(struct.pack(">I", first.chain_crc) + chained + body_crc + body_size)
    assert header == chained + struct.pack(">I", chain) + body_crc + body_size


def batch_of_three() -> tuple[Batch, LogEnd]:
    builder = EntryBuilder(LogEnd(), 2, 4096, bytes(8))
    builder.add(b"t", 0, 0, b"before")
    builder.take()
    end = builder.end
    for number in range(3):
        builder.add(b"t", 0, number, b"body%d" % number, b"A\x01b\x02")
    return builder.take()[0], end


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_flipped_bit_of_a_batch_is_found(data):
    batch, end = batch_of_three()
    raw = bytearray(batch.data)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedEntry, match=r"entry|batch"):
        verify_batch(replace(batch, data=bytes(raw)), end)


@settings(deadline=None)
@given(raw=st.binary(max_size=200), count=st.integers(0, 3))
def test_arbitrary_bytes_are_no_batch(raw, count):
    with pytest.raises(DamagedEntry):
        verify_batch(Batch(0, count, 0, 0, raw), None)


def test_a_batch_must_be_what_it_announces_and_continue_the_log():
    batch, end = batch_of_three()
    assert verify_batch(batch, None) == verify_batch(batch, end)
    wrong = [
        replace(batch, count=2),
        replace(batch, term=3),
        replace(batch, first_index=2),
        replace(batch, position=batch.position + 1),
        replace(batch, data=batch.data[:-1]),
        replace(batch, data=b"", count=0),
    ]
    for other in wrong:
        for known in (end, None):
            with pytest.raises(DamagedEntry):
                verify_batch(other, known)
    for known in (replace(end, chain_crc=1), replace(end, index=2), replace(end, term=3)):
        with pytest.raises(DamagedEntry):
            verify_batch(batch, known)


def test_what_does_not_fit_adds_nothing():
    builder = EntryBuilder(LogEnd(), 0, 1024, bytes(8))
    for body, properties in ((bytes(1024 - 8 - 48 - 91), b""), (b"", bytes(40_000))):
        with pytest.raises(EntryTooLarge, match="at most"):
            builder.add(b"t", 0, 0, body, properties)
    assert builder.end == LogEnd()
    builder.add(b"t", 0, 0, bytes(1024 - 8 - 48 - 92))
    assert builder.end.position == 1016


def test_an_entry_leaves_room_for_a_blank():
    assert next_position(100, 916, 1024) == 100
    assert next_position(100, 917, 1024) == 1024
    assert next_position(2050, 500, 1024) == 2050
