"""Decides which data files of the log expire: by age, or because the disk fills.

A file is kept for its reserved time. Then it is deleted in one of the hours of `deleteWhen`, or
at any hour while disk usage is above diskMaxUsedSpaceRatio. Above the force-clean ratio the
oldest files are deleted at any age; above the full ratio nothing more is written.

Source: DLedger's DLedgerMmapFileStore.CleanSpaceService and RocketMQ's MessageStoreConfig
(fileReservedTime, deleteWhen, diskMaxUsedSpaceRatio; DLEDGER.md C.6). Unlike there, `deleteWhen`
is in UTC and may be empty for any hour, a file is as old as its last message (not its last
modification), and only entries that a snapshot can replace expire: applied, committed and durable
on this member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shaketable.system.raft.protocol import LogEnd

HOUR_MS = 3_600_000
FULL_ABOVE_FORCE = 0.05
FULL_RATIO_MAX = 0.95


@dataclass(frozen=True, slots=True)
class DataFile:
    """One full data file. `end` is the log's end after its last entry.

    `last_store_ms` is the store timestamp of its last message, wall clock.
    """

    end: LogEnd
    last_store_ms: int


@dataclass(frozen=True, slots=True)
class ExpiryConfig:
    """When data files expire. Ratios are the used part of the disk, 0 to 1.

    `delete_when_hours` are hours of the day in UTC; empty means any hour.
    """

    reserved_ms: int = 72 * HOUR_MS  # RocketMQ's fileReservedTime, in hours there
    delete_when_hours: tuple[int, ...] = ()  # RocketMQ's deleteWhen
    used_ratio_max: float = 0.75  # RocketMQ's diskMaxUsedSpaceRatio / 100
    force_clean_ratio: float = 0.85  # DLedger's diskSpaceRatioToForceClean
    files_a_step_max: int = 10  # RocketMQ's deleteFilesBatchMax
    forced_files_a_step_max: int = 1  # the ratio is measured again before the next is deleted

    @property
    def full_ratio(self) -> float:
        """The used ratio above which the disk counts as full (DLedger's diskFullRatio)."""
        return min(self.force_clean_ratio + FULL_ABOVE_FORCE, FULL_RATIO_MAX)


def expired_end(
    files: Sequence[DataFile],
    config: ExpiryConfig,
    *,
    used_ratio: float,
    wall_ms: int,
    compactable_index: int,
    snapshot_from: int = -1,
) -> LogEnd | None:
    """Return the end of the last data file that expires, or None if none does.

    `files` are the data files without the one being written, oldest first. `compactable_index`
    is the highest entry that is applied, committed and durable. No snapshot can end before entry
    `snapshot_from`: files that end there go in one step with the next one.
    """
    is_time = (
        not config.delete_when_hours
        or wall_ms // HOUR_MS % 24 in config.delete_when_hours
        or used_ratio > config.used_ratio_max
    )
    is_forced = used_ratio > config.force_clean_ratio
    expired: LogEnd | None = None
    for count, file in enumerate(files):
        is_late = expired is None and count > 0  # no snapshot can end where those before it do
        if count >= config.files_a_step_max and not is_late:
            break
        is_expired = is_time and wall_ms - file.last_store_ms >= config.reserved_ms
        must_go = is_forced and (count < config.forced_files_a_step_max or is_late)
        if file.end.index > compactable_index or not (is_expired or must_go):
            break
        if file.end.index >= snapshot_from:
            expired = file.end
    return expired
