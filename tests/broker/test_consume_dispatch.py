"""What a dispatch says of each message: place, tags code as Java computes it, time, properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.system.raft.protocol import ENTRY_HEADER_BYTES, LogEnd
from shaketable.system.store.entry import HEADER, EntryBuilder, iter_dispatches
from shaketable.system.store.message import (
    Message,
    encode_message,
    find_property,
    java_hash,
    keys_in,
    tags_code,
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("TagA", 2598919),
        ("polygenelubricants", -2147483648),
        ("ä", 228),
        ("😀", 0xD83D * 31 + 0xDE00),
    ],
)
def test_java_hash(text: str, code: int) -> None:
    assert java_hash(text.encode()) == code


@given(st.text(), st.text())
def test_a_hash_goes_on_from_the_text_in_front(front: str, rest: str) -> None:
    whole = (front + rest).encode(errors="replace")
    parts = front.encode(errors="replace"), rest.encode(errors="replace")
    assert java_hash(parts[1], java_hash(parts[0])) == java_hash(whole)


@pytest.mark.parametrize(
    ("properties", "tags"),
    [
        (b"", b""),
        (b"TAGS\x01a\x02", b"a"),
        (b"TAGS\x01a", b"a"),
        (b"WAIT\x01true\x02TAGS\x01a\x02x\x01y\x02", b"a"),
        (b"TAGS\x01a\x02TAGS\x01b\x02", b"b"),
        (b"TAGS\x01a\x02TAGS\x01\x02", b"a"),
        (b"MYTAGS\x01a\x02", b""),
        (b"TAGS\x01a\x02MYTAGS\x01b\x02", b"a"),
        (b"TAGS\x01\x02", b""),
        (b"TAGS", b""),
    ],
)
def test_tags(properties: bytes, tags: bytes) -> None:
    assert find_property(properties, b"TAGS") == tags
    assert tags_code(b"\x02" + properties + b"?", 1, 1 + len(properties)) == java_hash(tags)


def test_keys_are_the_unique_one_and_each_of_the_others() -> None:
    properties = b"KEYS\x01k1  k2 \x02UNIQ_KEY\x01u\x02"
    assert keys_in(properties) == [b"u", b"k1", b"k2"]
    assert keys_in(b"UNIQ_KEY\x01u\x02") == [b"u"]
    assert keys_in(b"TAGS\x01KEYS\x02") == []


PROPERTIES = st.lists(
    st.tuples(st.sampled_from(("TAGS", "XTAGS", "KEYS", "a")), st.text("ab ", max_size=3)),
    max_size=4,
).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode())
MESSAGES = st.builds(
    Message,
    topic=st.binary(min_size=1, max_size=200),
    queue_id=st.integers(0, 15),
    queue_offset=st.integers(0, 1 << 40),
    physical_offset=st.just(0),
    body=st.binary(max_size=40),
    properties=PROPERTIES,
    sys_flag=st.sampled_from((0, 16, 32, 48)),
    store_ms=st.integers(0, 1 << 41),
)


@given(st.lists(MESSAGES, max_size=5))
def test_every_message_is_dispatched_with_what_it_says(messages: list[Message]) -> None:
    position, data, expected = 4096, b"", []
    for index, drawn in enumerate(messages):
        message = replace(
            drawn,
            physical_offset=position + len(data) + ENTRY_HEADER_BYTES,
            born_host=bytes(20 if drawn.sys_flag & 16 else 8),
            store_host=bytes(20 if drawn.sys_flag & 32 else 8),
        )
        body = encode_message(message)
        size = ENTRY_HEADER_BYTES + len(body)
        data += HEADER.pack(1, size, index, 1, position + len(data), 0, 0, 0, len(body)) + body
        expected.append(
            (
                (message.topic, message.queue_id),
                message.queue_offset,
                message.physical_offset,
                len(body),
                java_hash(find_property(message.properties, b"TAGS")),
                message.store_ms,
                message.properties,
            )
        )
    assert list(iter_dispatches(data, position)) == expected


def test_what_the_builder_makes_is_dispatched() -> None:
    builder = EntryBuilder(LogEnd(), 1, 1 << 20, bytes(8))
    at = builder.add(b"t", 3, 7, b"body", b"TAGS\x01TagA\x02", store_ms=99)
    (batch,) = builder.take()
    size = len(batch.data) - ENTRY_HEADER_BYTES
    assert list(iter_dispatches(batch.data, batch.position)) == [
        ((b"t", 3), 7, at, size, 2598919, 99, b"TAGS\x01TagA\x02")
    ]
