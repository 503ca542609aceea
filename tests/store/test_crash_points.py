"""A crash at each operation of a scripted run loses nothing that was promised, and no start fails.

The planted bugs are the real ones of logs like this one (DLEDGER.md E8-E32), each one method wide.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import PurePosixPath
from unittest.mock import Mock, patch

import pytest
from store_crash_points import fail_each_sync, survey
from store_life import FILE_BYTES, BrokenPromise

from shaketable.system.store import commit_log, plain_log, recovery, state_files
from shaketable.system.store.commit_log import CommitLog, HardState, LogFolder, set_log_start
from shaketable.system.store.disk import DiskFailed, replace_file
from shaketable.system.store.entry import BLANK
from shaketable.system.store.log_writer import LogWriter
from shaketable.system.store.recovery import LogScan
from shaketable.system.store.segment_files import SegmentFiles
from shaketable.system.store.state_files import StoredSnapshot, save_hard_state


@pytest.mark.parametrize("with_plain", [True, False], ids=["upgraded", "new"])
def test_a_crash_at_any_operation_breaks_no_promise(with_plain, capsys):
    done = survey(with_plain=with_plain)
    with capsys.disabled():
        sys.stdout.write(f"\n{done}\n")
    assert {"pwrite", "sync", "rename", "create", "unlink", "sync_dir"} <= set(done.kinds)
    assert done.kinds.total() > 350


def test_an_fsync_that_fails_stops_the_log_and_breaks_no_promise(capsys):
    done = fail_each_sync()
    with capsys.disabled():
        sys.stdout.write(f"\n{done}\n")
    assert done.kinds.total() > 150


class TruncatesInMemory(CommitLog):
    """The old tail stays on the disk, and is valid at the next start (rocketmq#10666, E31)."""

    def _cut(self, *_):
        pass


class CreatesWithoutDirSync(SegmentFiles):
    """A new file's name may be lost, and its synced data with it."""

    def create(self, position):
        disk, self._disk = self._disk, Mock(wraps=self._disk)
        self._disk.sync_dir = lambda folder: None
        super().create(position)
        self._disk = disk


class LogWithoutDirSync(CommitLog):
    files_type = CreatesWithoutDirSync


class MovesMarkBeforeSnapshot(CommitLog):
    """The begin is durable before what stands for the entries in front of it."""

    def compact(self, snapshot):
        set_log_start(self._watermark, snapshot.end)
        super().compact(snapshot)


class RemovesBeforeMark(CommitLog):
    """Files go while the mark still says that they are there."""

    def compact(self, snapshot):
        self._data.remove_below(snapshot.end.position)
        super().compact(snapshot)


class VotesWithoutFsync(CommitLog):
    """The vote is renamed into place and never synced (E16)."""

    def save_state(self, term, voted_for):
        with without_fsync("currterm"):
            save_hard_state(self._disk, self._folder, HardState(term, voted_for))
        self.state = HardState(term, voted_for)


class MarksWhatIsNotSynced(CommitLog):
    """A power loss then looks like damage to what had been synced, and the start is refused."""

    def advance_watermark(self):
        self._watermark.move(self.end)


class FlushedPositionStays(CommitLog):
    """The flushed position lies behind the end, so later writes are not flushed (E13)."""

    def truncate(self, end_index):
        synced = self.synced
        end = super().truncate(end_index)
        self.synced = max(synced, end, key=lambda end: end.position)
        return end


class AcksFromPageCache(LogWriter):
    """Says durable what is not (E18)."""

    def sync(self):
        pass


class SwallowsFsyncErrors(SegmentFiles):
    """Goes on as if the fsync had succeeded (rocketmq#2706, E32)."""

    def _sync_file(self, file):
        with suppress(DiskFailed):
            file.sync()


class LogSwallowingErrors(CommitLog):
    files_type = SwallowsFsyncErrors


class ScansPastZeroTail(LogScan):
    """Takes zeros for the end of the file and goes on behind it (dledger#185, E14)."""

    def step(self):
        start = self._data.start_of(self._position)
        data = self._data.read(self._position, 8) if self._data.has(self._position) else b""
        if data and not any(data):
            self._position = start + FILE_BYTES
            self.end = type(self.end)(
                self.end.index, self.end.term, self._position, self.end.chain_crc
            )
        super().step()


class LogScanningPastZeros(CommitLog):
    scan_type = ScansPastZeroTail


def without_fsync(name):
    """Let the small file of that name be renamed into place without an fsync."""

    def replace(disk, path, data):
        if PurePosixPath(path).name != name:
            replace_file(disk, path, data)
            return
        file = disk.create(path + ".tmp", len(data))
        file.pwrite([data], 0)
        file.close()
        disk.rename(path + ".tmp", path)
        disk.sync_dir(str(PurePosixPath(path).parent))

    return patch.object(state_files, "replace_file", replace)


def replacing_log_with(replace_log):
    """Install snapshots another way, now and when a start goes on with it."""
    return patch.object(commit_log, "replace_log", replace_log)


def leaves_files(data, index, mark, end):
    """Old files stay: where the snapshot is of an entry of this log, its tail fits."""
    mark.set_start(end, end)


def moves_mark_first(data, index, mark, end):
    """A crash leaves old files behind the new begin."""
    mark.set_start(end, end)
    index.remove_all()
    data.remove_all()


def leaves_the_file_it_starts_in(data, index, mark, end):
    """Only files wholly behind the snapshot's place go."""
    index.remove_all()
    data.remove_below(end.position)
    mark.set_start(end, end)


def snapshots_never_replace():
    """A snapshot from the leader is stored as if it were of this log."""
    return patch.object(
        commit_log, "StoredSnapshot", lambda snapshot, replaces_log: StoredSnapshot(snapshot, False)
    )


def never_finishes():
    """A start passes over a compaction or an installation that a crash interrupted."""
    return patch.object(LogFolder, "finish_interrupted", lambda *_: None)


def keeps_stale_files():
    """A start leaves what a crash left of a compaction."""
    real = recovery.recover

    def recover(data, index, mark, scan_type):
        with patch.object(SegmentFiles, "remove_below", lambda *_: None):
            return real(data, index, mark, scan_type)

    return patch.object(commit_log, "recover", recover)


def upgrades_without_fsync():
    """The blank behind the plain log's last message may be lost."""

    def fill(self, position):
        left = self.end - position
        self._files.write([BLANK.pack(left, plain_log.BLANK_MAGIC)], position)

    return patch.object(plain_log.PlainLog, "_fill_with_blank", fill)


def abort_without_dir_sync():
    """After a power loss the last run seems to have ended in order."""

    def mark_running(disk, root):
        was_aborted = disk.exists(f"{root}/abort")
        disk.create(f"{root}/abort", 0).close()
        return was_aborted

    return patch.object(commit_log, "mark_running", mark_running)


BUGS: dict[str, tuple[type[CommitLog], type[LogWriter], Callable[[], AbstractContextManager]]] = {
    **{
        log_type.__name__: (log_type, LogWriter, nullcontext)
        for log_type in (
            TruncatesInMemory,
            LogWithoutDirSync,
            MovesMarkBeforeSnapshot,
            RemovesBeforeMark,
            VotesWithoutFsync,
            MarksWhatIsNotSynced,
            FlushedPositionStays,
            LogSwallowingErrors,
            LogScanningPastZeros,
        )
    },
    "AcksFromPageCache": (CommitLog, AcksFromPageCache, nullcontext),
    **{
        replace_log.__name__: (
            CommitLog,
            LogWriter,
            lambda replace_log=replace_log: replacing_log_with(replace_log),
        )
        for replace_log in (leaves_files, moves_mark_first, leaves_the_file_it_starts_in)
    },
    **{
        bug.__name__: (CommitLog, LogWriter, bug)
        for bug in (
            snapshots_never_replace,
            never_finishes,
            keeps_stale_files,
            upgrades_without_fsync,
            abort_without_dir_sync,
        )
    },
    "snapshot_without_fsync": (CommitLog, LogWriter, lambda: without_fsync("snapshot")),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name):
    log_type, writer_type, planted = BUGS[name]
    look = fail_each_sync if log_type is LogSwallowingErrors else survey
    with planted(), pytest.raises(BrokenPromise, match=r"crash at \d+|failed sync"):
        look(log_type, writer_type)
