"""Limits of the broker, and which data files expire by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shaketable.system.broker.delay_levels import DEFAULT_LEVELS_MS
from shaketable.system.raft.protocol import LogEnd

# Decides which data files of the log expire: by age, or because the disk fills.
#
# A file is kept for its reserved time. Then it is deleted in one of the hours of `deleteWhen`, or
# at any hour while disk usage is above diskMaxUsedSpaceRatio. Above the force-clean ratio the
# oldest files are deleted at any age; above the full ratio nothing more is written.
#
# Source: DLedger's DLedgerMmapFileStore.CleanSpaceService and RocketMQ's MessageStoreConfig
# (fileReservedTime, deleteWhen, diskMaxUsedSpaceRatio; DLEDGER.md C.6). Unlike there, `deleteWhen`
# is in UTC and may be empty for any hour, a file is as old as its last message (not its last
# modification), and only entries that a snapshot can replace expire: applied, committed and durable
# on this member.

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


# The limits.


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Limits of the broker. Sizes in bytes, times in milliseconds."""

    data_file_bytes: int = 1 << 30
    store_host: bytes = bytes(8)
    queues_per_topic: int = 16  # limit for a topic that a send creates
    auto_create_topics: bool = True
    properties: dict[str, str] = field(default_factory=dict)  # of broker.conf, for operators
    message_bytes_max: int = 4 * 1024 * 1024 - 4096  # an entry must fit DLedger's 4 MiB buffer
    batch_messages_max: int = 4096  # their ids must fit the header of one response
    topic_bytes_max: int = 127
    properties_bytes_max: int = 32_767
    pending_sends_max: int = 10_000  # DLedger's maxPendingRequestsNum
    ack_timeout_ms: float = 2500.0  # DLedger's maxWaitAckTimeMs
    pull_messages_max: int = 32
    pull_bytes_max: int = 256 * 1024
    query_messages_max: int = 64  # RocketMQ's maxMsgsNumBatch
    query_bytes_max: int = 4 << 20
    queue_tail_max: int = 1024  # units of each queue kept in memory once its files have them
    filtered_units_max: int = 800  # queue units that one pull with a filter scans
    long_polling: bool = True  # RocketMQ's longPollingEnable
    short_polling_ms: float = 1000.0  # how long a pull is held without it, shortPollingTimeMills
    pull_hold_ms_max: float = 60_000.0  # RocketMQ's consumers request 15 to 20 s
    refused_pull_hold_ms: float = 1000.0  # else the consumer would pull again at once
    pulls_held_max: int = 20_000
    slave_read_enable: bool = False  # RocketMQ's slaveReadEnable
    delay_levels_ms: tuple[int, ...] = DEFAULT_LEVELS_MS  # RocketMQ's messageDelayLevel
    deliveries_a_step_max: int = 100  # delayed messages
    reconsume_times_max: int = 16  # RocketMQ's retryMaxTimes: then to the dead-letter queue
    consume_slowly_bytes: int = 256 << 20  # a consumer lagging by more is sent to a slave
    apply_bytes_max: int = 4 << 20  # committed bytes that one step dispatches
    key_items_max: int = 0  # messages with keys between two checkpoints; 0: no key index
    topics_max: int = 10_000
    groups_max: int = 10_000  # consumer groups that have clients
    group_members_max: int = 10_000  # clients of one group
    reads_held_max: int = 10_000  # confirmed reads waiting for entries to be applied
    expiry: ExpiryConfig = field(default_factory=ExpiryConfig)

    def delay_ms(self, queue_id: int) -> int:
        """Return the delay of the schedule topic's queue, which is that of level `queue_id` + 1."""
        return self.delay_levels_ms[min(queue_id, len(self.delay_levels_ms) - 1)]
