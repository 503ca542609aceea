"""Names and limits of the broker."""

from __future__ import annotations

from dataclasses import dataclass

EVENT_TOPIC = b"RMQ_SYS_DLEDGER_EVENT"
"""Reserved topic for entries that are not user messages (DESIGN.md decision 3)."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Limits of the broker. Sizes in bytes, times in milliseconds."""

    data_file_bytes: int = 1 << 30
    store_host: bytes = bytes(8)
    queues_per_topic: int = 16
    message_bytes_max: int = 4 * 1024 * 1024 - 4096  # an entry must fit DLedger's 4 MiB buffer
    topic_bytes_max: int = 127
    properties_bytes_max: int = 32_767
    pending_sends_max: int = 10_000  # DLedger's maxPendingRequestsNum
    ack_timeout_ms: float = 2500.0  # DLedger's maxWaitAckTimeMs
    pull_messages_max: int = 32
    pull_bytes_max: int = 256 * 1024
    apply_bytes_max: int = 4 << 20
