"""Configuration of a master-slave broker: its role, and what a send waits for."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class BrokerRole(enum.Enum):
    """RocketMQ's BrokerRole."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """The part of RocketMQ's MessageStoreConfig that concerns master-slave replication.

    Times in milliseconds, sizes in bytes. The comments give RocketMQ's names.
    """

    role: BrokerRole = BrokerRole.ASYNC_MASTER  # brokerRole
    is_sync_flush: bool = False  # flushDiskType
    flush_interval_ms: float = 500.0  # flushIntervalCommitLog, with ASYNC_FLUSH
    sync_flush_timeout_ms: float = 5000.0  # syncFlushTimeout
    slave_timeout_ms: float = 3000.0  # slaveTimeout
    slave_behind_bytes_max: int = 256 << 20  # haSlaveFallbehindMax
    transfer_bytes_max: int = 32 << 10  # haTransferBatchSize
    unwritten_bytes_max: int = 64 << 20  # appended, but not yet in the page cache
    tail_bytes_max: int = 16 << 20  # the newest bytes, kept in memory
    reads_waiting_max: int = 10_000

    @property
    def is_master(self) -> bool:
        """Whether the broker accepts messages from clients."""
        return self.role is not BrokerRole.SLAVE
