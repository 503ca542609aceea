"""What a configuration means to any broker: its limits, and its checkpoint's files."""

from __future__ import annotations

from shaketable.system.broker.broker_state import ranges_of
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.machine import Machine
from shaketable.system.store.broker_checkpoint import CheckpointFiles
from shaketable.system.store.key_file import Sizes
from shaketable.system.store.message import host_bytes

KEY_ITEMS_MAX = 100_000
"""Messages with keys that may wait for the next checkpoint; past that, applying waits."""


def limits_of(config: NodeConfig) -> BrokerConfig:
    """Return the broker's limits."""
    return BrokerConfig(
        data_file_bytes=config.data_file_bytes,
        store_host=host_bytes(config.host, config.listen_port),
        key_items_max=KEY_ITEMS_MAX if config.is_key_indexed else 0,
        pending_sends_max=config.pending_sends_max,
        expiry=config.expiry,
        slave_read_enable=config.slave_read_enable,
        long_polling=config.long_polling,
        short_polling_ms=float(config.short_polling_ms),
        delay_levels_ms=config.delay_levels_ms,
        auto_create_topics=config.auto_create_topics,
        queues_per_topic=config.default_topic_queues,
        topics_max=config.topics_max,
        group_members_max=config.group_members_max,
        properties=dict(config.given),
    )


def checkpoint_files(config: NodeConfig, machine: Machine, folder: str) -> CheckpointFiles:
    """Return the files of the broker's checkpoints, whose `appliedto` stands in a folder."""
    return CheckpointFiles(
        machine.disk,
        str(config.store_root),
        folder,
        ranges_of,
        queue_file_bytes=config.queue_file_bytes,
        key_sizes=Sizes(config.hash_slots, config.index_items_max),
    )
