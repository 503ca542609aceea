"""Random work, crashes at any disk operation, restarts: what was promised is there.

A life is some work on the log and then an end: a loss of power (unsynced writes are lost, kept,
torn or reordered), or the death of the process alone (the page cache survives), either at any
operation of the disk, or a failed fsync. Every planted bug must be found by this same test.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from unittest.mock import Mock, patch

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from system.raft.batch import LogEnd
from system.store import entry, hard_state, recovery
from system.store.commit_log import CommitLog, HardState, LogDamaged, OutsideLog
from system.store.disk import DiskFailed
from system.store.entry import DamagedEntry, verify_batch
from system.store.entry_builder import EntryBuilder
from system.store.segment_files import SegmentFiles
from system.store.synced_mark import SyncedMark

FILE_BYTES, INDEX_FILE_BYTES = 1024, 128
WORK = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4), st.sampled_from((0, 60, 300))),
    st.tuples(st.just("truncate"), st.integers(0, 8)),
    st.sampled_from([("sync",), ("mark",), ("vote",), ("term",), ("checkpoint",)]),
)
LIFE = st.fixed_dictionaries(
    {
        "work": st.lists(WORK, max_size=8),
        "operations": st.none() | st.integers(0, 60),
        "failing_sync": st.none() | st.integers(0, 15),
        "power_loss": st.booleans(),
        "seed": st.integers(0, 7),
    }
)
LIVES = st.lists(LIFE, min_size=1, max_size=4)
QUIET = {"work": [], "operations": None, "failing_sync": None, "power_loss": True, "seed": 0}
CUTS = st.integers(0, 15).map(
    lambda failing_sync: [
        QUIET | {"work": [("append", 4, 0), ("sync",), ("mark",)]},
        QUIET | {"work": [("truncate", 2)], "failing_sync": failing_sync, "power_loss": False},
        QUIET,
    ]
)
"""Some of LIVES: an fsync fails around a truncation. The rarest of the planted bugs needs it."""


@dataclass
class Promises:
    """What the log may and must hold now."""

    written: list[bytes] = field(default_factory=list)  # nothing else may be there
    synced: int = 0  # so many entries must be there
    states: list[HardState] = field(default_factory=lambda: [HardState()])  # one of these
    term: int = 0
    count: int = 0  # makes every body another one


def entries_of(log: CommitLog, bytes_max: int) -> list[bytes]:
    """Read the whole log back, verified from the first entry on."""
    found = []
    while len(found) <= log.end.index:
        batch = log.read_entries(len(found), bytes_max)
        end = verify_batch(batch, log.log_end_at(len(found) - 1))
        assert end == log.log_end_at(batch.last_index)
        found += split(batch)
    return found


def split(batch) -> list[bytes]:
    pieces = []
    for index in range(batch.first_index, batch.last_index + 1):
        rest = batch if index == batch.first_index else batch.after(index - 1)
        pieces.append(rest.until(index).data)
    return pieces


def check(log: CommitLog, promises: Promises, disk) -> None:
    """Compare a log just opened with the promises; from now on it must hold what it holds."""
    found = entries_of(log, 700)
    assert found == promises.written[: len(found)], "an entry is not what was written"
    assert len(found) >= promises.synced, f"{promises.synced} were synced, {len(found)} are left"
    assert found == entries_of(log, 1)
    assert log.state in promises.states, f"{log.state} is none of {promises.states}"
    assert log.synced == log.end
    terms = [int.from_bytes(data[16:24], "big") for data in found]
    first = [i for i, term in enumerate(terms) if i == 0 or term != terms[i - 1]]
    assert log.spans == tuple((i, terms[i]) for i in first)
    with pytest.raises(OutsideLog):
        log.read_entries(len(found), 1)
    tail_start = log._data.start_of(log.end.position)
    assert all(start <= tail_start for start in log._data.starts)
    if log._data.has(tail_start):
        tail = disk.names_seen[log._data.path(tail_start)].view
        assert len(tail) == FILE_BYTES
        assert not any(tail[log.end.position - tail_start :]), "something behind the end"
    promises.written, promises.synced = found, len(found)
    promises.states = [log.state]
    promises.term = max(promises.term, log.state.term)


def do(log: CommitLog, promises: Promises, work: tuple) -> None:
    """Do one piece of work; the promises change before it or after it, as the API says."""
    match work:
        case ("append", count, body_bytes):
            term = max(promises.term, log.end.term, 0)
            builder = EntryBuilder(log.end, term, FILE_BYTES, bytes(8))
            for _ in range(count):
                promises.count += 1
                builder.add(b"t", 0, 0, b"%06d" % promises.count + bytes(body_bytes))
            for batch in builder.take():
                promises.written = promises.written + split(batch)
                log.append(batch)
            assert log.end == builder.end
        case ("truncate", back):
            target = max(-1, log.end.index - back)
            promises.synced = min(promises.synced, target + 1)
            end = log.truncate(target)
            assert end == log.end == log.log_end_at(target)
            promises.written = promises.written[: target + 1]
            if back:
                promises.synced = target + 1
        case ("sync",):
            log.sync()
            promises.synced = len(promises.written)
        case ("mark",):
            log.advance_mark()
        case ("checkpoint",):
            log.save_checkpoint(log.end.index)
        case ("vote",) | ("term",):
            promises.term += work == ("term",)
            state = HardState(promises.term, f"n{promises.term % 3}" if work == ("vote",) else None)
            promises.states.append(state)
            log.save_state(state.term, state.voted_for)
            promises.states = [state]


def run(disk_class, lives: list[dict]) -> None:
    """Live all lives; raises AssertionError where a promise is broken or a start fails."""
    disk = disk_class()
    promises = Promises()
    for life in [*lives, {"work": [], "operations": None, "failing_sync": None}]:
        disk.operations_left = life["operations"]
        disk.fails_sync_at = life["failing_sync"]
        log = None
        try:
            log = CommitLog.open(disk, "", "n0", FILE_BYTES, INDEX_FILE_BYTES)
            assert log.committed_index <= log.end.index
            check(log, promises, disk)
            for work in life["work"]:
                do(log, promises, work)
        except LogDamaged as error:
            raise AssertionError(f"a start failed: {error}") from error
        except DamagedEntry as error:
            raise AssertionError(f"a damaged entry counts: {error}") from error
        except disk.PowerLoss:
            pass
        except DiskFailed:
            if log is not None:
                with pytest.raises(DiskFailed):
                    log.sync()
                with pytest.raises(DiskFailed):
                    log.log_end_at(-1)
        disk = disk.restart(power_loss=life.get("power_loss", True), seed=life.get("seed", 0))


@settings(max_examples=300, deadline=None)
@given(lives=LIVES)
def test_whatever_crashes_the_promises_hold(crash_disk, lives):
    run(crash_disk, lives)


def unlowered_mark():
    """Truncate without lowering the synced-to mark first."""
    real = SyncedMark.move

    def move(self, end, cut_until=0):
        if end.index >= self.mark.end.index:
            real(self, end, cut_until)

    return patch.object(SyncedMark, "move", move)


def tail_left_standing():
    """Truncate in memory only, as DLedger does (E31)."""
    return patch.object(CommitLog, "_cut", lambda *_: None)


def currterm_without_fsync():
    """Write the vote by rename alone, as DLedger does (E16)."""

    def replace_file(disk, path, data):
        disk.create(path + ".tmp", len(data)).pwrite([data], 0)
        disk.rename(path + ".tmp", path)
        disk.sync_dir(str(PurePosixPath(path).parent))

    return patch.object(hard_state, "replace_file", replace_file)


def currterm_without_sync_dir():
    """Fsync the vote but not its name."""

    def replace_file(disk, path, data):
        file = disk.create(path + ".tmp", len(data))
        file.pwrite([data], 0)
        file.sync()
        disk.rename(path + ".tmp", path)

    return patch.object(hard_state, "replace_file", replace_file)


def sync_that_does_nothing():
    """Acknowledge from the page cache, as DLedger does (E18)."""
    return patch.object(CommitLog, "sync", lambda self: self._check_alive())


def file_without_a_durable_name():
    """Create a data file and forget the fsync of the folder."""
    real = SegmentFiles.create

    def create(self, position):
        disk, self._disk = self._disk, Mock(wraps=self._disk)
        self._disk.sync_dir = lambda folder: None
        real(self, position)
        self._disk = disk

    return patch.object(SegmentFiles, "create", create)


def tail_trusted_from_the_page_cache():
    """Count what is read at the start as durable, as if its fsync had not failed."""
    return patch.object(SegmentFiles, "rewrite", lambda self, position, end: None)


def zeros_trusted_from_the_page_cache():
    """Forget at the start that a cut may not have reached the disk, as its fsync failed."""
    real = SyncedMark.open.__func__

    def open_mark(cls, disk, path):
        mark = real(cls, disk, path)
        mark.mark = replace(mark.mark, cut_until=0)
        return mark

    return patch.object(SyncedMark, "open", classmethod(open_mark))


def torn_tail_kept():
    """Take the end by headers alone: no CRC is checked at the start."""
    real = recovery.verify_entry

    def verify(data, at, end, position):
        try:
            return real(data, at, end, position)
        except DamagedEntry as error:
            if "Crc" not in str(error):
                raise
            _, size, index, term, _, _, chain, _, _ = entry.HEADER.unpack_from(data, at)
            return LogEnd(index, term, position + size, chain)

    return patch.object(recovery, "verify_entry", verify)


def failure_not_remembered():
    """Go on after a failed fsync."""
    return patch.object(CommitLog, "_check_alive", lambda self: None)


@pytest.mark.parametrize(
    "bug",
    [
        unlowered_mark,
        tail_left_standing,
        currterm_without_fsync,
        currterm_without_sync_dir,
        sync_that_does_nothing,
        file_without_a_durable_name,
        tail_trusted_from_the_page_cache,
        zeros_trusted_from_the_page_cache,
        torn_tail_kept,
        failure_not_remembered,
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_is_found(crash_disk, bug):
    def breaks(lives):
        try:
            with bug():
                run(crash_disk, lives)
        except (AssertionError, pytest.fail.Exception):
            return True
        return False

    find(
        CUTS if bug is zeros_trusted_from_the_page_cache else LIVES,
        breaks,
        settings=settings(
            max_examples=5000,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
        ),
    )
