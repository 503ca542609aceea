"""A log's folder as a start finds it: complete it, and end what a crash interrupted.

Order of a new folder: native log filled up, mark, `currterm`, mark complete. Order of a
compaction: snapshot, mark, files. Order of an installation: snapshot, files, mark. So what a
crash leaves can always be told, and is carried on with before the log is scanned.
"""

from __future__ import annotations

from dataclasses import dataclass

from shaketable.system.raft.batch import LogEnd
from shaketable.system.raft.protocol import Snapshot
from shaketable.system.store.disk import Disk, StoreError
from shaketable.system.store.hard_state import (
    HardState,
    LogDamaged,
    load_hard_state,
    save_hard_state,
)
from shaketable.system.store.native_log import NativeLog, remove_native_log, upgrade_native_log
from shaketable.system.store.segment_files import SegmentFiles
from shaketable.system.store.snapshot_file import (
    StoredSnapshot,
    load_snapshot,
    path_of,
    save_snapshot,
)
from shaketable.system.store.synced_mark import SyncedMark


@dataclass(frozen=True, slots=True)
class LogFolder:
    """What stands in a log's folder beside data and index."""

    disk: Disk
    path: str
    mark: SyncedMark
    state: HardState
    stored: StoredSnapshot | None
    native_folder: str | None

    @classmethod
    def open(
        cls, disk: Disk, path: str, data_file_bytes: int, native_folder: str | None
    ) -> LogFolder:
        """Open the folder, creating it if new. Raises StoreError, see CommitLog.open."""
        disk.make_dirs(f"{path}/data")
        disk.make_dirs(f"{path}/index")
        mark = _open_mark(disk, path, data_file_bytes, native_folder)
        if mark.mark.data_file_bytes != data_file_bytes:
            raise StoreError(
                f"{path} has data files of {mark.mark.data_file_bytes} bytes:"
                f" set mappedFileSizeCommitLog to that, not to {data_file_bytes}"
            )
        state = load_hard_state(disk, path)
        save_hard_state(disk, path, state)  # its name may stand in the page cache alone
        stored = load_snapshot(disk, path)
        begin = mark.mark.begin
        if stored is None and begin.index >= 0:
            raise LogDamaged(path_of(path), f"the snapshot is missing, the log begins at {begin}")
        if stored is not None and stored.snapshot.end.index < begin.index:
            raise LogDamaged(path_of(path), f"the snapshot is older than the log's begin, {begin}")
        return cls(disk, path, mark, state, stored, native_folder)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot at the log's begin."""
        return self.stored.snapshot if self.stored else None

    def finish_interrupted(self, data: SegmentFiles, index: SegmentFiles) -> None:
        """End a compaction or an installation whose snapshot stands and whose mark does not."""
        stored, mark = self.stored, self.mark
        if stored is None or stored.snapshot.end == mark.mark.begin:
            return
        save_snapshot(self.disk, self.path, stored)  # it may stand in the page cache alone
        if stored.replaces_log:
            replace_log(data, index, mark, stored.snapshot.end)
        else:
            begin_log_at(mark, stored.snapshot.end)

    def open_native(self) -> NativeLog | None:
        """Open the native log that this log continues, None where there was none or it is gone.

        Once the log does not begin where that ends, what a crash left of its files is removed:
        entries are gone, or a leader with other messages from before has replaced the log.
        """
        mark = self.mark.mark
        if not mark.native_end:
            return None
        if mark.begin.position != mark.native_end:
            if self.native_folder is not None:
                remove_native_log(
                    self.disk, self.native_folder, mark.data_file_bytes, mark.native_end
                )
            return None
        if self.native_folder is None:
            raise StoreError(
                f"{self.path} continues a native commit log of {mark.native_end} bytes:"
                " set storePathCommitLog to the folder where that stands"
            )
        return NativeLog(self.disk, self.native_folder, mark.data_file_bytes, mark.native_end)


def begin_log_at(mark: SyncedMark, begin: LogEnd) -> None:
    """Move the begin up. What stands in front of it need not be synced: the snapshot is."""
    mark.begin_at(begin, max(begin, mark.mark.end, key=lambda end: end.index))


def replace_log(data: SegmentFiles, index: SegmentFiles, mark: SyncedMark, end: LogEnd) -> None:
    """Leave of the whole log nothing but its end.

    All files go before the mark moves, the one that `end` lies in as well: behind it an old tail
    might fit the chain, and come back (rocketmq#10666, E31).
    """
    index.remove_all()
    data.remove_all()
    mark.begin_at(end, end)


def _open_mark(
    disk: Disk, folder: str, data_file_bytes: int, native_folder: str | None
) -> SyncedMark:
    """Open the mark; in a new folder create it and `currterm`, in an order that a crash bears."""
    path = f"{folder}/syncedto"
    if disk.exists(path):
        mark = SyncedMark.open(disk, path)
    else:
        for name in ("currterm", "checkpoint", "snapshot"):
            if disk.exists(f"{folder}/{name}"):
                raise LogDamaged(path, "the synced-to mark is missing")
        if disk.names(f"{folder}/data"):
            raise LogDamaged(path, "the synced-to mark is missing")
        native_end = 0
        if native_folder is not None:
            native_end = upgrade_native_log(disk, native_folder, data_file_bytes)
        mark = SyncedMark.create(disk, path, data_file_bytes, native_end)
    if not mark.mark.is_complete:
        save_hard_state(disk, folder, HardState())  # syncs the folder: the mark's name as well
        mark.complete()
    return mark
