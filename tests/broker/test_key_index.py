"""The key index: RocketMQ's bytes, and exactly the messages of a key, whatever happened before."""

from __future__ import annotations

import contextlib
import tracemalloc
from datetime import UTC, datetime, timedelta
from itertools import islice
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.system.broker.reading.key_items import KeyItems
from shaketable.system.sim.disk import PowerLoss, SimDisk
from shaketable.system.store import key_index
from shaketable.system.store.disk import DiskFailed, DiskFull
from shaketable.system.store.key_index import (
    KeyFile,
    KeyIndex,
    Sizes,
    file_name,
    has_key,
    hashed_keys,
    key_hash,
)
from shaketable.system.store.message import keys_in

TINY = Sizes(slots=3, items=4)
EVER = (0, 1 << 62)
T0_MS = 1_700_000_000_123


def index_on(disk: SimDisk, sizes: Sizes = TINY) -> KeyIndex:
    return KeyIndex(disk, "/store", sizes)


def query(
    index: KeyIndex, topic: bytes, key: bytes, count_max: int, begin_ms: int, end_ms: int
) -> list[int]:
    return list(islice(index.candidates(topic, key, begin_ms, end_ms), count_max))


def delete_below(index: KeyIndex, position: int) -> None:
    index.forget_below(position)
    index.delete_forgotten()


def test_bytes_are_rocketmqs() -> None:
    disk = SimDisk()
    index = index_on(disk)
    assert index.restore(())
    index.put(b"t", b"Aa", 148, T0_MS)
    index.put(b"t", b"BB", 296, T0_MS + 2500)  # collides
    index.put(b"t", b"y", 444, T0_MS + 1999)  # by a clock that is behind
    index.flush()
    assert disk.names("/store/index") == ["20231114221320123"]
    file = disk.open("/store/index/20231114221320123")
    data = file.pread(file.size, 0)
    hash_a, hash_y = 116 * 31**3 + 35 * 31**2 + 2112, (116 * 31 + 35) * 31 + 121
    slots = [0, 0, 0]
    slots[hash_a % 3], slots[hash_y % 3] = 2, 3
    assert data == b"".join(
        (
            T0_MS.to_bytes(8, "big"),
            (T0_MS + 2500).to_bytes(8, "big"),
            (148).to_bytes(8, "big"),
            (444).to_bytes(8, "big"),
            (2).to_bytes(4, "big"),  # slots used
            (4).to_bytes(4, "big"),  # items, and one more
            *(slot.to_bytes(4, "big") for slot in slots),
            bytes(20),  # item 0 is never used
            item(hash_a, 148, 0, 0),
            item(hash_a, 296, 2, 1),
            item(hash_y, 444, 1, 0),
        )
    )


def item(code: int, position: int, seconds: int, older: int) -> bytes:
    return b"".join(
        number.to_bytes(size, "big")
        for number, size in ((code, 4), (position, 8), (seconds, 4), (older, 4))
    )


def test_the_default_sizes_are_rocketmqs() -> None:
    assert Sizes().file_bytes == 40 + 5_000_000 * 4 + 20_000_000 * 20


def test_hashes_are_not_negative() -> None:
    assert key_hash(b"t", b"achssxlk") == 0  # Integer.MIN_VALUE
    assert key_hash(b"", b"polygenelubricants") >= 0
    assert key_hash(b"t", b"Aa") == key_hash(b"t", b"BB")
    assert key_hash("ä".encode(), b"k") == (228 * 31 + 35) * 31 + 107


@given(st.integers(0, 253_402_300_799_999))
def test_a_files_name_is_its_time(time_ms: int) -> None:
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    millis = f"{when.microsecond // 1000:03}"
    assert file_name(time_ms) == f"{when.year:04}{when:%m%d%H%M%S}{millis}"


def test_a_message_is_found_by_its_unique_key_and_each_of_its_keys() -> None:
    index = index_on(SimDisk(), Sizes(100, 1000))
    index.restore(())
    index.put_messages([(b"t", b"KEYS\x01a b\x02UNIQ_KEY\x01u\x02", 100, 1000)])
    index.put_messages([(b"t", b"KEYS\x01a u2\x02UNIQ_KEY\x01u2\x02", 200, 1000)])
    index.put_messages([(b"other", b"KEYS\x01a\x02", 300, 1000)])
    assert query(index, b"t", b"a", 64, *EVER) == []  # not before it is durable
    index.flush()
    assert query(index, b"t", b"a", 64, *EVER) == [200, 100]
    assert query(index, b"t", b"a", 1, *EVER) == [200]
    assert query(index, b"t", b"u", 64, *EVER) == [100]
    assert query(index, b"t", b"u2", 64, *EVER) == [200]  # twice in the index
    assert query(index, b"other", b"a", 64, *EVER) == [300]
    assert has_key(b"t", b"b", b"t", b"KEYS\x01a b\x02")
    assert not has_key(b"t", b"b", b"other", b"KEYS\x01a b\x02")


def test_times_are_whole_seconds_and_nothing_in_range_is_missed() -> None:
    index = index_on(SimDisk(), Sizes(100, 1000))
    index.restore(())
    for number in range(10):
        index.put(b"t", b"k", number, T0_MS + number * 700)
    index.flush()
    found = query(index, b"t", b"k", 64, T0_MS + 1400, T0_MS + 2800)
    assert set(found) >= {2, 3, 4}
    assert set(found) <= {1, 2, 3, 4, 5}
    assert query(index, b"t", b"k", 64, T0_MS + 6301, 1 << 62) == []
    assert query(index, b"t", b"k", 64, 0, T0_MS - 1) == []


def test_what_a_clock_that_was_behind_stored_is_found_by_its_time() -> None:
    disk = SimDisk()
    index = index_on(disk, Sizes(100, 1000))
    index.restore(())
    index.put(b"t", b"k", 100, T0_MS)
    index.put(b"t", b"k", 200, T0_MS - 60_000)
    index.put(b"t", b"k", 300, T0_MS + 2_000)
    files = index.flush()
    behind = (T0_MS - 60_000, T0_MS - 60_000)
    assert 200 in query(index, b"t", b"k", 64, *behind)
    assert 300 not in query(index, b"t", b"k", 64, *behind)
    assert query(index, b"t", b"k", 64, 0, T0_MS - 60_001) == []
    index = index_on(disk, Sizes(100, 1000))
    assert index.restore(files)
    assert 200 in query(index, b"t", b"k", 64, *behind)


def test_old_files_go_when_all_of_them_is_below_the_logs_begin() -> None:
    disk = SimDisk()
    index = index_on(disk)
    index.restore(())
    for number in range(8):
        index.put(b"t", b"k", number * 100, T0_MS)
    index.flush()
    names = ["20231114221320123", "20231114221320124", "20231114221320125"]
    assert disk.names("/store/index") == names
    delete_below(index, 200)
    assert disk.names("/store/index") == names
    delete_below(index, 201)
    assert disk.names("/store/index") == names[1:]
    delete_below(index, 1 << 40)
    assert disk.names("/store/index") == names[2:]  # the newest is being filled
    assert query(index, b"t", b"k", 64, *EVER) == [700, 600]
    index.put(b"t", b"k", 800, T0_MS)
    index.put(b"t", b"k", 900, T0_MS)
    index.flush()
    assert query(index, b"t", b"k", 64, *EVER) == [900, 800, 700, 600]


def test_a_query_looks_at_a_bounded_number_of_items() -> None:
    index = index_on(SimDisk(), Sizes(1, 1000))
    index.restore(())
    for number in range(50):
        index.put(b"t", b"k", number, T0_MS)
    index.flush()
    with patch.object(key_index, "QUERY_STEPS_MAX", 7):
        assert query(index, b"t", b"k", 64, *EVER) == [49, 48, 47, 46, 45, 44, 43]


def test_a_query_is_not_disturbed_by_what_happens_meanwhile() -> None:
    index = index_on(SimDisk())
    index.restore(())
    for number in range(9):
        index.put(b"t", b"k", number, T0_MS)
    files = index.flush()
    under_way = index.candidates(b"t", b"k", *EVER)
    assert [next(under_way), next(under_way)] == [8, 7]
    delete_below(index, 7)
    index.put(b"t", b"k", 9, T0_MS)
    index.flush()
    assert list(under_way) == [6]
    assert not index.restore(files)  # the deleted files are missing: begin anew
    assert index.flush() == ()
    assert query(index, b"t", b"k", 64, *EVER) == []


def test_a_file_that_goes_during_a_query_ends_it() -> None:
    index = index_on(SimDisk())
    index.restore(())
    for number in range(6):
        index.put(b"t", b"k", number, T0_MS)
    index.flush()
    under_way = index.candidates(b"t", b"k", *EVER)
    assert [next(under_way), next(under_way)] == [5, 4]
    index._read.close()  # the handle was needed for another file
    for name in index._disk.names("/store/index"):
        index._disk.unlink(f"/store/index/{name}")
    index._flushed = ()
    assert list(under_way) == []


def test_a_file_that_is_refilled_under_its_name_is_read_anew() -> None:
    index = index_on(SimDisk(), Sizes(3, 100))
    index.restore(())
    index.put(b"t", b"k", 0, T0_MS)
    index.flush()
    assert query(index, b"t", b"k", 64, *EVER) == [0]
    index.restore(())
    index.put(b"t", b"k", 0, T0_MS)
    index.put(b"t", b"k", 1, T0_MS)
    index.flush()
    assert query(index, b"t", b"k", 64, *EVER) == [1, 0]


@pytest.mark.parametrize("damage", ["missing", "short", "header", "slots", "chain"])
@pytest.mark.parametrize("number", [0, -1])
def test_a_damaged_file_is_noticed(damage: str, number: int) -> None:
    disk = SimDisk()
    index = index_on(disk)
    index.restore(())
    for position in range(5):
        index.put(b"t", b"k", position, T0_MS)
    files = index.flush()
    index.put(b"t", b"k", 5, T0_MS)
    index.flush()  # behind what the checkpoint says: the last file is to be cut
    path = f"/store/index/{file_name(files[number].name_ms)}"
    if damage == "missing":
        disk.unlink(path)
    elif damage == "short":
        disk.create(path, 100)
    elif damage == "header":
        disk.open(path).pwrite([b"\xff"], 0)
    elif damage == "slots":
        disk.open(path).pwrite([bytes([0xFF] * 12)], 40)  # they name nothing
    else:  # items that name themselves
        disk.open(path).pwrite([b"".join(item(7, 7, 0, at) for at in range(4))], 52)
    # A look at headers alone does not find all of it; and what is to be cut is written anew.
    survives = (number, damage) in {(0, "slots"), (0, "chain"), (-1, "header")}
    assert index_on(disk).restore(files) is survives


KEYS = st.sampled_from((b"a", b"b", b"Aa", b"BB"))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS),
        st.tuples(st.just("put"), KEYS),
        st.tuples(st.just("flush"), st.none()),
        st.tuples(st.sampled_from(("restart", "power_loss", "full")), st.integers(1, 12)),
        st.tuples(st.just("expire"), st.integers(0, 40)),
    ),
    max_size=40,
)


@given(STEPS, st.integers(0, 3))
def test_the_index_is_a_list_of_keys(steps: list[tuple[str, object]], seed: int) -> None:
    """A crash comes at some operation of a flush; then items behind the checkpoint come again."""
    disk = SimDisk()
    index = index_on(disk)
    assert index.restore(())
    log: list[bytes] = []  # the key of the message at each position
    saved: tuple[int, tuple[KeyFile, ...]] = (0, ())  # what the checkpoint says
    begin = 0
    for what, argument in steps:
        if what == "put":
            log.append(argument)
            index.put(b"t", argument, len(log) - 1, T0_MS + len(log))
        elif what == "flush":
            saved = len(log), index.flush()
        elif what == "expire":
            begin = max(begin, min(argument, len(log)))
            index.forget_below(begin)
            saved = len(log), index.flush()
            index.delete_forgotten()
        else:
            disk = stop_in_a_flush(disk, index, what, argument, seed)
            index = index_on(disk) if what != "full" else index
            assert index.restore(saved[1])
            for position in range(saved[0], len(log)):
                index.put(b"t", log[position], position, T0_MS + position + 1)
    index.flush()
    for key in (b"a", b"b", b"Aa", b"BB", b"none"):
        found = [at for at in query(index, b"t", key, 99, *EVER) if log[at] == key and at >= begin]
        expected = [at for at in range(begin, len(log)) if log[at] == key]
        assert found == expected[::-1]


def stop_in_a_flush(disk: SimDisk, index: KeyIndex, how: str, count: int, seed: int) -> SimDisk:
    platter = disk.platter
    if how == "full":
        left = iter([None] * count)

        def fill(kind, path):
            if kind in {"pwrite", "create"} and next(left, "full") == "full":
                raise DiskFull("no space left on device")

        platter.on_operation = fill
        try:
            index.flush()
        except DiskFull:
            pass
        finally:
            platter.on_operation = None
        return disk
    platter.stop_at = platter.operations + count
    with contextlib.suppress(PowerLoss):
        index.flush()
    return disk.restart(loses_unsynced=how == "power_loss", rng=Random(seed))


KEY_TEXTS = st.one_of(
    st.sampled_from(("a", "b", "Aa", "BB", "A" * 32, "9" * 32, "schlüssel", "鍵", "𝄞")),
    st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02 "), min_size=1, max_size=6),
)


@given(
    st.lists(st.tuples(st.sampled_from((b"t", b"long-topic")), KEY_TEXTS, st.lists(KEY_TEXTS))),
    st.integers(1, 20),
)
def test_many_messages_at_once_are_as_one_after_the_other(
    drawn: list[tuple[bytes, str, list[str]]], sets: int
) -> None:
    """The same files, byte by byte, whatever the keys, and with files that end in between."""
    items = [
        (
            topic,
            f"UNIQ_KEY\x01{unique}\x02KEYS\x01{' '.join(keys)}\x02".encode(),
            at * 100,
            T0_MS + at,
        )
        for at, (topic, unique, keys) in enumerate(drawn)
    ]
    disks = SimDisk(), SimDisk()
    contents = []
    for disk, step in zip(disks, (1, sets), strict=True):
        index = index_on(disk)
        index.restore(())
        for start in range(0, len(items), step):
            index.put_messages(items[start : start + step])
        index.flush()
        names = sorted(disk.names("/store/index"))
        contents.append([disk.open(f"/store/index/{name}").pread(1 << 20, 0) for name in names])
    assert contents[0] == contents[1]
    for topic, properties, position, _ in items:
        for key in keys_in(properties):
            assert position in index.candidates(topic, key, *EVER)
            units = memoryview(key.decode().encode("utf-16-be")).cast("B")
            code = 0
            for unit in (topic + b"#").decode():
                code = (code * 31 + ord(unit)) & 0xFFFFFFFF
            for high, low in zip(units[::2], units[1::2], strict=True):
                code = (code * 31 + high * 256 + low) & 0xFFFFFFFF
            signed = code - (1 << 32) if code >> 31 else code
            assert key_hash(topic, key) == (abs(signed) if signed != -(1 << 31) else 0)


# ---- what the index does not have yet -------------------------------------------------


def test_a_message_is_found_before_and_after_a_checkpoint_has_it() -> None:
    index = index_on(SimDisk(), Sizes(100, 1000))
    index.restore(())
    items = KeyItems(index)
    found = []
    for number in range(4):
        items.append((b"t", b"KEYS\x01a\x02", number * 100, T0_MS))
        due = items.since_checkpoint()
        found.append(list(items.candidates(b"t", b"a", *EVER)))
        if number == 1:
            for saved in due:
                index.put_messages([saved])
            index.flush()
            found.append(list(items.candidates(b"t", b"a", *EVER)))  # in both, found once
            items.checkpointed(due)
    assert found == [[0], [100, 0], [100, 0], [200, 100, 0], [300, 200, 100, 0]]
    assert list(items.candidates(b"t", b"a", 0, T0_MS - 1)) == []
    assert list(items.candidates(b"t", b"b", *EVER)) == []
    assert list(items.candidates(b"u", b"a", *EVER)) == []


def test_an_error_of_the_disk_is_not_taken_for_a_deleted_file() -> None:
    disk = SimDisk()
    index = index_on(disk)
    index.restore(())
    index.put(b"t", b"k", 1, T0_MS)
    index.flush()
    disk.platter.is_failing = True
    with pytest.raises(DiskFailed):
        query(index, b"t", b"k", 64, *EVER)


def test_hashing_long_keys_takes_little_memory_at_once() -> None:
    """A checkpoint may bring a hundred thousand keys, and each may have 32,000 characters."""
    properties = b"KEYS\x01" + b"k" * 20_000 + b"\x02"
    items = [(b"t", properties, number, number) for number in range(500)]
    whole = hashed_keys(items[:1]).hashes[0]
    tracemalloc.start()
    try:
        hashes = hashed_keys(items).hashes
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (hashes == whole).all()
    assert peak_bytes < 500 * 20_000 + (8 << 20), "the keys themselves, and a bound beside them"


def test_no_file_stays_open_that_a_full_disk_does_not_let_be_restored() -> None:
    disk = SimDisk()
    index = index_on(disk)
    index.put(b"t", b"k", 100, 1_000)
    files = index.flush()
    index.put(b"t", b"l", 200, 1_000)
    index.close()
    with patch.object(key_index.KeyFileWriter, "cut", side_effect=DiskFull("full")):
        for _ in range(3):
            with contextlib.suppress(DiskFull):
                index.restore(files)
    assert sum(disk.handles.values()) == 0
