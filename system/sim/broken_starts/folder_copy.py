"""A copy of a node's disk at the end of a run, to be broken and started."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from shaketable.system.raft.batch import LogEnd
from shaketable.system.sim.disks.disk import SimDisk
from shaketable.system.store.commit_log import CommitLog

if TYPE_CHECKING:
    from shaketable.system.sim.schedules.random_streams import RandomStream
    from shaketable.system.sim.schedules.schedule import Settings


class Folder:
    """A copy of a node's disk, and the configuration of a start on it."""

    def __init__(
        self,
        disk: SimDisk,
        root: str,
        name: str,
        native: str,
        settings: Settings,
        rng: RandomStream,
    ) -> None:
        self.disk = SimDisk(deepcopy(disk.platter))
        platter = self.disk.platter
        platter.stop_at = platter.capacity_bytes = platter.on_operation = platter.on_read = None
        platter.is_failing, platter.sync_failures = False, 0
        self.rng = rng
        self.root = root
        self.name = name
        self.path = f"{root}/dledger-{name}"
        self.native: str | None = native if settings.native_log else None
        self.native_folder = native
        self.settings = settings
        self.data_file_bytes = settings.data_file_bytes

    def open(self) -> CommitLog:
        """Open its log. Raises StoreError."""
        return CommitLog.open(
            self.disk,
            self.root,
            self.name,
            self.data_file_bytes,
            self.settings.index_file_bytes,
            self.native,
        )

    def end_on(self, disk: SimDisk) -> LogEnd:
        """Open the log on another disk; return its end. Raises StoreError."""
        self.disk = disk
        return self.open().end

    def start(self) -> None:
        """Read all that a start without a checkpoint reads. Raises StoreError."""
        log = self.open()
        if log.native is not None:
            for _ in log.native.messages():
                pass

    def lose_file(self, name: str) -> bool:
        """Lose a file of the log's folder; return False if there is none."""
        path = f"{self.path}/{name}"
        if not self.disk.exists(path):
            return False
        self.disk.platter.lose_file(path)
        return True

    def native_paths(self) -> list[str]:
        """Return the paths of the native log's files that hold data."""
        platter = self.disk.platter
        return [
            f"{self.native_folder}/{name}"
            for name in self.disk.names(self.native_folder)
            if platter.written_size(f"{self.native_folder}/{name}")
        ]
