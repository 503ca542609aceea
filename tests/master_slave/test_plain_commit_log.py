"""A plain commit log: RocketMQ's bytes, and what a crash may leave of them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_log_encoder import PlainLogWriter

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Batch, Snapshot
from shaketable.system.sim.disk import PowerLoss, SimDisk
from shaketable.system.store.disk import DiskFull, StoreError
from shaketable.system.store.index_units import NotContiguous
from shaketable.system.store.plain_commit_log import (
    PlainBuilder,
    PlainCommitLog,
    iter_plain_dispatches,
    plain_end,
)
from shaketable.system.store.segment_files import OutsideLog, SegmentFiles

ROOT, FOLDER, FILE_BYTES = "/store", "/store/commitlog", 1024

STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4), st.sampled_from((0, 60, 700))),
    st.sampled_from([("sync",), ("checkpoint",)]),
)
LIFE = st.fixed_dictionaries(
    {
        "steps": st.lists(STEP, max_size=8),
        "operations": st.none() | st.integers(1, 40),
        "power_loss": st.booleans(),
        "seed": st.integers(0, 7),
    }
)


def opened(disk: SimDisk, file_bytes: int = FILE_BYTES) -> PlainCommitLog:
    return PlainCommitLog.open(disk, ROOT, FOLDER, file_bytes)


def built(log: PlainCommitLog, bodies: list[bytes]) -> list[Batch]:
    builder = PlainBuilder(log.end, 0, FILE_BYTES, bytes(8))
    for number, body in enumerate(bodies):
        builder.add(b"topic", 0, number, body)
    return builder.take()


def held(log: PlainCommitLog) -> bytes:
    """All that the log says to hold, read message by message."""
    at, parts = log.start.index + 1, []
    while at <= log.end.index:
        batch = log.read_entries(at, 100)
        parts.append(batch.data)
        at = batch.last_index + 1
    return b"".join(parts)


def live(lives: list[dict]) -> None:
    """Live, crash, and look after each restart that no more is gone than may be."""
    disk, number = SimDisk(), 0
    written = b""
    synced = 0
    for life in lives:
        disk.platter.stop_at = None
        log = opened(disk)
        assert written.startswith(held(log))
        assert log.end.position >= synced
        written = written[: log.end.position]
        synced = log.end.position
        if life["operations"] is not None:
            disk.platter.stop_at = disk.platter.operations + life["operations"]
        try:
            for step in life["steps"]:
                match step:
                    case ("append", count, size):
                        number += count
                        for batch in built(log, [(b"%d" % number * size)[:size]] * count):
                            written += batch.data  # from now on it may be there
                            log.append(batch)
                    case ("sync",):
                        log.sync()
                        synced = log.end.position
                    case ("checkpoint",):
                        log.save_checkpoint(log.end.index)
            if not life["power_loss"]:
                synced = log.end.position  # the page cache outlives the process
        except PowerLoss:
            pass
        is_lost = life["power_loss"]
        disk = disk.restart(loses_unsynced=is_lost, rng=Random(life["seed"]))


@settings(max_examples=120)
@given(st.lists(LIFE, min_size=1, max_size=4))
def test_what_was_flushed_stays_and_what_is_left_is_whole(lives) -> None:
    live([*lives, {"steps": [], "operations": None, "power_loss": True, "seed": 0}])


def test_a_flush_that_is_none_is_found(monkeypatch) -> None:
    monkeypatch.setattr(SegmentFiles, "sync", lambda _: None)
    steps = [("append", 3, 60), ("sync",)]
    lives = [
        {"steps": steps, "operations": None, "power_loss": True, "seed": seed} for seed in range(8)
    ]
    with pytest.raises(AssertionError):
        live(lives)


def test_a_torn_message_whose_sizes_are_right_is_found() -> None:
    disk = SimDisk()
    log = opened(disk)
    for batch in built(log, [b"first", b"second"]):
        log.append(batch)
    log.close()
    disk.platter.flip_bit(f"{FOLDER}/{0:020d}", log.end.position - 10)  # of the last body
    log = opened(disk)
    (kept,) = iter_plain_dispatches(held(log), 0)
    assert (kept[1], log.torn_bytes > 0) == (0, True)
    with pytest.raises(OutsideLog):
        log.read(0, log.end.position + 1)


def test_its_files_are_rocketmqs_byte_for_byte() -> None:
    foreign = PlainLogWriter(FILE_BYTES)
    disk = SimDisk()
    log = opened(disk)
    builder = PlainBuilder(log.end, 0, FILE_BYTES, bytes(8))
    for number in range(12):
        body = bytes([number]) * (number * 40)
        foreign.append("topic", 3, body, b"TAGS\x01a\x02")
        builder.add(
            b"topic", 3, number, body, b"TAGS\x01a\x02",
            born_ms=1_700_000_000_000, store_ms=1_700_000_000_001,
        )  # fmt: skip
    for batch in builder.take():
        log.append(batch)
    assert len(foreign.files) > 3
    assert held(log) == b"".join(bytes(file) for file in foreign.files)
    assert [offset for _, offset, *_ in iter_plain_dispatches(held(log)[:FILE_BYTES], 0)][:2] == [
        0,
        1,
    ]


def test_a_slaves_log_begins_where_its_master_says_and_front_files_expire() -> None:
    disk = SimDisk()
    log = opened(disk)
    with pytest.raises(NotContiguous, match="mappedFileSizeCommitLog"):
        log.install(Snapshot(plain_end(100), Membership(()), -1, b""))
    log.install(Snapshot(plain_end(3 * FILE_BYTES), Membership(()), -1, b""))
    for batch in built(log, [bytes(700)] * 3):
        log.append(batch)
    log.compact(Snapshot(plain_end(4 * FILE_BYTES), Membership(()), -1, b""))
    log.close()
    log = opened(disk)
    assert (log.start.position, log.was_aborted) == (4 * FILE_BYTES, False)
    assert log.end.position > 5 * FILE_BYTES
    with pytest.raises(OutsideLog):
        log.log_end_at(3 * FILE_BYTES)


def test_a_full_disk_leaves_nothing_of_an_append() -> None:
    disk = SimDisk()
    log = opened(disk)
    for batch in built(log, [bytes(100)]):
        log.append(batch)
    end = log.end
    disk.platter.capacity_bytes = disk.platter.used_bytes
    batches = built(log, [bytes(700), bytes(700)])
    log.append(batches[0])
    with pytest.raises(DiskFull):
        log.append(batches[1])
    disk.platter.capacity_bytes = None
    log.append(batches[1])
    assert log.end.position > end.position
    assert len(held(log)) == log.end.position


@pytest.mark.parametrize("missing", [True, False])
def test_files_that_do_not_fit_are_refused_and_named(missing) -> None:
    disk = SimDisk()
    log = opened(disk)
    for batch in built(log, [bytes(700)] * 3):
        log.append(batch)
    log.close()
    if missing:
        disk.unlink(f"{FOLDER}/{FILE_BYTES:020d}")
        with pytest.raises(StoreError, match="is missing"):
            opened(disk)
    else:
        with pytest.raises(StoreError, match="set mappedFileSizeCommitLog"):
            opened(disk, 2 * FILE_BYTES)
