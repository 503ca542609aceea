"""Batches by columns: the same findings and the same messages as entry by entry."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Batch, LogEnd
from shaketable.system.store.entry import (
    CHECKED_MIN,
    WALKED_MIN,
    DamagedEntry,
    EntryBuilder,
    is_valid_batch,
    iter_dispatches,
    message_table,
    verify_batch,
)

COUNT = WALKED_MIN + 3
PROPERTIES = (b"", b"TAGS\x01a\x02", b"UNIQ_KEY\x01u7\x02", b"KEYS\x01k\x02TAGS\x01b\x02")


def batch_of(seed: int, topics: tuple[bytes, ...] = (b"t",), count: int = COUNT) -> Batch:
    """A batch behind entry 41 whose queues go on from 100."""
    rng = Random(seed)
    builder = EntryBuilder(LogEnd(41, 2, 4096, 7), 3, 1 << 22, bytes(8))
    offsets: dict[tuple[bytes, int], int] = {}
    for number in range(count):
        queue = (rng.choice(topics), rng.randrange(3))
        offsets[queue] = offset = offsets.get(queue, 99) + 1
        body, properties = rng.randbytes(rng.randrange(60)), rng.choice(PROPERTIES)
        builder.add(*queue, offset, body, properties, store_ms=1000 + number)
    (batch,) = builder.take()
    return batch


def is_found_sound(batch: Batch) -> bool:
    try:
        verify_batch(batch, None)
    except DamagedEntry:
        return False
    return True


@settings(deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_whatever_byte_is_damaged_is_found(seed: int, data: st.DataObject) -> None:
    batch = batch_of(seed)
    assert is_valid_batch(batch)
    verify_batch(batch, None)
    raw = bytearray(batch.data)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    damaged = replace(batch, data=bytes(raw))
    is_first_chain = 36 <= at < 40
    """The first entry's chainCrc is taken on trust, but the second's rests on it."""
    assert not is_found_sound(damaged) or is_first_chain
    assert is_valid_batch(damaged) == is_found_sound(damaged)


@pytest.mark.parametrize(
    "change",
    [
        {"count": COUNT - 1},
        {"count": COUNT + 1},
        {"term": 4},
        {"position": 4097},
        {"first_index": 41},
    ],
)
def test_a_batch_that_is_announced_as_another_is_not_sound(change: dict[str, int]) -> None:
    batch = replace(batch_of(1), **change)
    assert not is_valid_batch(batch)
    assert not is_found_sound(batch)


@pytest.mark.parametrize("cut", [1, 47, 48, 500])
def test_a_batch_that_is_cut_is_not_sound(cut: int) -> None:
    batch = batch_of(2)
    assert not is_valid_batch(replace(batch, data=batch.data[:-cut]))


def test_what_columns_are_not_for_is_left_to_the_walk() -> None:
    assert not is_valid_batch(batch_of(3, count=CHECKED_MIN - 1))
    builder = EntryBuilder(LogEnd(), 1, 1 << 22, bytes(8))
    for _ in range(COUNT):
        builder.add(b"t", 0, 0, b"")
    builder.add_membership(Membership(("n0",)), 0, 5)
    (batch,) = builder.take()
    assert not is_valid_batch(batch)
    assert message_table(batch.data, batch.position, batch.count) is None  # of two topics


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32))
def test_queues_and_keys_get_what_the_walk_gives_them(seed: int) -> None:
    batch = batch_of(seed)
    table = message_table(batch.data, batch.position, batch.count)
    assert table is not None
    walked = list(iter_dispatches(batch.data, batch.position))
    runs = table.runs()
    assert runs is not None
    found = {}
    for queue, first, count, units in runs:
        for number in range(count):
            found[queue, first + number] = bytes(units[20 * number : 20 * number + 20])
    assert found == {
        (queue, offset): at.to_bytes(8, "big")
        + size.to_bytes(4, "big")
        + tags.to_bytes(8, "big", signed=True)
        for queue, offset, at, size, tags, _, _ in walked
    }
    assert table.properties == [row[6] for row in walked]
    assert table.store_ms[-1] == walked[-1][5]
    assert table.key_items(b"KEY") == [
        (queue[0], properties, at, store_ms)
        for queue, _, at, _, _, store_ms, properties in walked
        if b"KEY" in properties
    ]


@pytest.mark.parametrize("topics", [(b"ab", b"ac"), (b"a" * 127, b"b"), (b"b", b"a" * 127)])
def test_topics_are_told_apart(topics: tuple[bytes, ...]) -> None:
    batch = batch_of(5, topics)
    assert message_table(batch.data, batch.position, batch.count) is None


def test_a_gap_in_a_queue_is_left_to_the_walk() -> None:
    builder = EntryBuilder(LogEnd(), 1, 1 << 22, bytes(8))
    for number in range(COUNT):
        builder.add(b"t", 0, number + (number > 50), b"x")
    (batch,) = builder.take()
    table = message_table(batch.data, batch.position, batch.count)
    assert table is not None
    assert table.runs() is None


@pytest.mark.parametrize("place", [{"position": 2**63 - 1000}, {"first_index": 2**63 - 20}])
def test_places_behind_all_numbers_are_left_to_the_walk(place: dict[str, int]) -> None:
    batch = replace(batch_of(6), **place)
    assert not is_valid_batch(batch)
    assert not is_found_sound(batch)
