"""Damage in front of the durable watermark stops the node; behind it, it is a torn tail."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shaketable.system.node.disks.real_disk import RealDisk
from shaketable.system.node.disks.volatile_disk import VolatileDisk
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import LogEnd, Snapshot
from shaketable.system.sim.disk import SimDisk
from shaketable.system.store import entry, recovery
from shaketable.system.store.commit_log import CommitLog, LogDamaged, NotContiguous, OutsideLog
from shaketable.system.store.disk import DiskFull, StoreError
from shaketable.system.store.entry import EntryBuilder
from shaketable.system.store.group_events import DamagedMembership

FILE_BYTES, INDEX_FILE_BYTES = 1024, 128


FOLDER = "/store/dledger-n0"


def open_log(disk) -> CommitLog:
    return CommitLog.open(disk, "/store", "n0", FILE_BYTES, INDEX_FILE_BYTES)


def remove(disk: SimDisk, name: str) -> None:
    """Let a file be gone, as no operation of ours removes it."""
    del disk.platter.inodes[f"{FOLDER}/{name}"]


def append(log: CommitLog, count: int, term: int) -> None:
    builder = EntryBuilder(log.end, term, FILE_BYTES, bytes(8))
    for number in range(count):
        builder.add(b"topic", 1, number, b"value %d" % number)
    for batch in builder.take():
        log.append(batch)


def damaged_disk(position: int | None = None, bit: int = 0):
    """Write 9 entries of terms 1 and 4, synced and marked, 2 more behind; perhaps flip one bit."""
    disk = SimDisk()
    log = open_log(disk)
    log.save_state(4, "n1")
    append(log, 5, 1)
    append(log, 4, 4)
    log.sync()
    log.advance_watermark()
    marked = log.end
    append(log, 2, 4)
    log.sync()
    ends = [log.log_end_at(index) for index in range(-1, 11)]
    if position is not None:
        start = log._data.start_of(position)
        disk.platter.flip_bit(log._data.path(start), position - start, bit)
    return disk, marked, ends


def marked_positions(*, and_behind: bool = False) -> list[int]:
    """Return the bytes in front of the mark that carry meaning: entries and blanks."""
    _, marked, ends = damaged_disk()
    positions = []
    for before, end in pairwise(ends):
        if and_behind or end.index <= marked.index:
            blank = before.position // FILE_BYTES != end.position // FILE_BYTES
            if blank:
                start = end.position // FILE_BYTES * FILE_BYTES
                positions += range(before.position, before.position + 8)
                positions += range(start, end.position)
            else:
                positions += range(before.position, end.position)
    return positions


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_in_front_of_the_mark_is_always_log_damaged(data):
    position = data.draw(st.sampled_from(marked_positions()))
    disk, _, _ = damaged_disk(position, data.draw(st.integers(0, 7)))
    with pytest.raises(LogDamaged, match=r"/data/\d{20}: byte \d+, entry \d+: .*restore") as caught:
        open_log(disk)
    assert "\n" not in str(caught.value)


class EntryByEntry(recovery.LogScan):
    """Takes no runs of messages."""

    def _take_messages(self):
        return


class LogEntryByEntry(CommitLog):
    scan_type = EntryByEntry


def recovered(log_type, position: int, bit: int):
    """Return what a start finds on a damaged disk, or the error that it ends with."""
    disk, _, _ = damaged_disk(position, bit)
    try:
        log = log_type.open(disk, "/store", "n0", FILE_BYTES, INDEX_FILE_BYTES)
    except StoreError as error:
        return type(error), str(error)
    return [log.log_end_at(index) for index in range(-1, log.end.index + 1)]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_runs_of_messages_are_recovered_as_entry_by_entry(data):
    position = data.draw(st.sampled_from(marked_positions(and_behind=True)))
    bit = data.draw(st.integers(0, 7))
    assert recovered(CommitLog, position, bit) == recovered(LogEntryByEntry, position, bit)


def unchained():
    """Leave the chain out of the check at the start."""

    def verify(data, at, end, position):
        with patch.object(entry, "chain_crc", lambda _, header: int.from_bytes(header[36:40])):
            return entry.verify_entry(data, at, end, position)

    return patch.object(recovery, "verify_entry", verify)


def unmarked():
    """Take all damage for a torn tail, as DLedger does."""
    return patch.object(
        recovery.LogScan, "_damage", lambda self, finding: entry.DamagedEntry(finding)
    )


@pytest.mark.parametrize("bug", [unchained, unmarked], ids=lambda bug: bug.__name__)
def test_a_start_that_looks_less_closely_is_found_out(bug):
    positions = marked_positions()

    def passes_unseen(position):
        disk, _, _ = damaged_disk(position, 0)
        try:
            with bug():
                open_log(disk)
        except (LogDamaged, entry.DamagedEntry) as error:
            return not isinstance(error, LogDamaged)
        return True

    find(
        st.sampled_from(positions),
        passes_unseen,
        settings=settings(max_examples=2000, deadline=None, database=None, derandomize=True),
    )


def test_damage_behind_the_mark_is_a_torn_tail_and_is_zeroed():
    _, marked, _ = damaged_disk()
    disk, _, ends = damaged_disk(marked.position + 60, 3)
    log = open_log(disk)
    assert log.end == marked
    no_properties = 2  # an entry's last bytes may be zeros themselves
    assert log.torn_bytes == ends[-1].position - marked.position - no_properties
    log.close()
    assert open_log(disk).torn_bytes == 0


@pytest.mark.parametrize("name", ["data/" + "0" * 20, "currterm", "syncedto"])
def test_a_missing_file_stops_the_node(name):
    disk, _, _ = damaged_disk()
    remove(disk, name)
    with pytest.raises(LogDamaged, match=name):
        open_log(disk)


def test_a_short_file_in_front_of_the_mark_stops_the_node():
    disk, _, _ = damaged_disk()
    inode = disk.platter.inodes[f"{FOLDER}/data/{0:020}"]
    del inode.view[300:]
    inode.size = 300
    with pytest.raises(LogDamaged, match="entry 1"):
        open_log(disk)


@pytest.mark.parametrize("name", ["currterm", "syncedto"])
def test_damage_to_the_small_files_stops_the_node(name):
    disk, _, _ = damaged_disk()
    view = disk.platter.inodes[f"{FOLDER}/{name}"].view
    for at in range(10, len(view), 100 if name == "syncedto" else 1):
        view[at] ^= 1
    with pytest.raises(LogDamaged, match=name):
        open_log(disk)


def test_a_damaged_checkpoint_is_only_a_hint_lost():
    disk, _, _ = damaged_disk()
    log = open_log(disk)
    log.save_checkpoint(7)
    assert open_log(disk).committed_index == 7
    path = f"{FOLDER}/checkpoint"
    disk.platter.flip_bit(path, disk.platter.written_size(path) - 3)
    assert open_log(disk).committed_index == -1


def test_a_wrong_index_is_rebuilt():
    disk, _, ends = damaged_disk()
    remove(disk, f"index/{INDEX_FILE_BYTES:020}")
    disk.platter.flip_bit(f"{FOLDER}/index/{0:020}", 40, 3)
    log = open_log(disk)
    assert [log.log_end_at(index) for index in range(-1, 11)] == ends


def test_another_file_size_is_one_clear_line():
    disk, _, _ = damaged_disk()
    with pytest.raises(StoreError, match="set mappedFileSizeCommitLog to that, not to 2048"):
        CommitLog.open(disk, "/store", "n0", 2048, INDEX_FILE_BYTES)


def test_a_full_disk_is_definite_and_the_log_goes_on():
    disk = SimDisk()
    log = open_log(disk)
    append(log, 4, 1)
    log.sync()
    end = log.end
    is_full = patch.object(log._index, "write_across", side_effect=DiskFull("no space"))
    with is_full, pytest.raises(DiskFull):
        append(log, 1, 1)
    assert log.end == end
    append(log, 3, 2)
    log.sync()
    assert log.end.index == 6
    opened = open_log(disk)
    assert (opened.end, opened.torn_bytes) == (log.end, 0)


def test_what_does_not_continue_the_log_is_refused():
    log = open_log(SimDisk())
    append(log, 3, 2)
    for end, term in ((LogEnd(), 2), (log.log_end_at(1), 2), (LogEnd(2, 1, log.end.position), 1)):
        builder = EntryBuilder(end, term, FILE_BYTES, bytes(8))
        builder.add(b"t", 0, 0, b"")
        with pytest.raises(NotContiguous, match="do not continue"):
            log.append(builder.take()[0])
    assert log.end.index == 2


def test_reads_outside_the_log_are_typed():
    log = open_log(SimDisk())
    append(log, 3, 2)
    assert log.read(0, log.end.position)
    for position, size in ((-1, 4), (0, log.end.position + 1), (5 * FILE_BYTES, 1)):
        with pytest.raises(OutsideLog):
            log.read(position, size)
    for index in (-2, 3):
        with pytest.raises(OutsideLog):
            log.log_end_at(index)


@pytest.mark.parametrize("what", ["read", "read_entries", "log_end_at"])
def test_a_read_across_a_truncation_is_done_again_or_refused(what):
    """The bytes read may be zeros already, or another entry's; what is still there is there."""
    reads = {
        "read": lambda log: log.read(0, 100),
        "read_entries": lambda log: log.read_entries(1, 1000),
        "log_end_at": lambda log: log.log_end_at(1),
    }
    read = reads[what]
    log = open_log(SimDisk())
    append(log, 4, 2)
    real = log._data.read
    calls = []

    def read_and_lose(position, size):
        data = real(position, size)
        if not calls:
            log._data.read = real  # the truncation reads too
            log.truncate(2)
            log._data.read = read_and_lose
        calls.append(data)
        return b"\xff" * len(data) if len(calls) == 1 else data

    log._data.read = read_and_lose
    if what == "log_end_at":
        with pytest.raises(OutsideLog):
            read(log)
        return
    found = read(log)
    assert len(calls) == 2, "read once more"
    log._data.read = real
    assert found == read(log)
    if what == "read_entries":
        assert found.last_index == 2


@pytest.mark.parametrize("is_cut", [True, False], ids=["truncated", "damaged"])
def test_a_membership_that_is_zeroed_while_it_is_read(is_cut):
    """Its header may be read still and its body be zeros: no damage where a truncation did it."""
    log = open_log(SimDisk())
    append(log, 2, 2)
    builder = EntryBuilder(log.end, 2, FILE_BYTES, bytes(8))
    builder.add_membership(Membership(("n0", "n1")), 0, 0)
    for batch in builder.take():
        log.append(batch)
    real = log._data.read

    def read_half(position, size):
        data = real(position, size)
        if is_cut:
            log._data.read = real
            log.truncate(1)
        return data[:100].ljust(len(data), b"\0")

    log._data.read = read_half
    with pytest.raises(OutsideLog if is_cut else DamagedMembership):
        log.read_entries(2, 1000)


def test_a_reader_beside_the_flusher_sees_whole_entries_or_a_typed_refusal(tmp_path):
    log = CommitLog.open(VolatileDisk(RealDisk()), str(tmp_path), "n0", FILE_BYTES, 128)
    is_done = threading.Event()

    def flush():
        try:
            for number in range(70):
                append(log, 9, number)
                log.sync()
                log.truncate(max(log.start.index, log.end.index - number % 20))
                if number % 9 == 8:
                    begin = log.log_end_at(max(log.start.index, log.end.index - 30))
                    log.compact(Snapshot(begin, Membership(("n0",)), -1, b""))
                if number % 31 == 30:
                    end = log.end
                    far = replace(end, index=end.index + 5, position=end.position + 50)
                    log.install(Snapshot(far, Membership(("n0",)), -1, b""))
        finally:
            is_done.set()

    flusher = threading.Thread(target=flush)
    flusher.start()
    batches = 0
    while not is_done.is_set() or not batches:
        with suppress(OutsideLog):
            for index in range(log.first_index, log.end.index + 1, 7):
                entry.verify_batch(log.read_entries(index, 600), None)
                batches += 1
    flusher.join()
    log.close()
    opened = open_log_at(tmp_path)
    assert opened.end == log.synced
    opened.close()


def open_log_at(folder) -> CommitLog:
    return CommitLog.open(RealDisk(), str(folder), "n0", FILE_BYTES, INDEX_FILE_BYTES)
