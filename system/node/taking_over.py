"""Finds what a broker from before the group kept in config/, for the group to take over.

Source: RocketMQ's deploy guide for DLedger: config/ is copied with the old commit log; DLEDGER.md
D.5. What the files of groups (subscriptionGroup.json) say, this broker does not keep.
"""

from __future__ import annotations

import logging

from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.broker_tables import BrokerTables
from shaketable.system.broker.event_log import body_bytes_max
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.taken_over import bodies_of
from shaketable.system.native.config_files import DELAYS, OFFSETS, TOPICS
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.config_files import ConfigFiles
from shaketable.system.node.machine import Machine

log = logging.getLogger("shaketable.node")


def to_take_over(config: NodeConfig, machine: Machine, limits: BrokerConfig) -> tuple[bytes, ...]:
    """Return the bodies of the entries that say what stands in `storePathRootDir`/config.

    None without such files, and for a member that joins a group: what it brought along would
    not be the group's. Raises StoreError for files that cannot be read.
    """
    folder = f"{config.store_root}/config"
    paths = [f"{folder}/{name}.json{end}" for name in (TOPICS, OFFSETS, DELAYS) for end in _ENDS]
    if config.is_joining or not any(map(machine.disk.exists, paths)):
        return ()
    tables = BrokerTables(limits, BrokerState())
    ConfigFiles(folder, machine, tables).load()
    state = tables.state({})
    bodies = bodies_of(state, body_bytes_max(limits))
    offsets = sum(map(len, state.group_offsets.values()))
    log.info(
        "event=config_to_take_over folder=%s topics=%d offsets=%d",
        folder,
        len(state.topics),
        offsets,
    )
    return bodies


_ENDS = ("", ".bak")
