"""Limits of the broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from shaketable.system.broker.delay_levels import DEFAULT_LEVELS_MS
from shaketable.system.broker.expiry import ExpiryConfig


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
