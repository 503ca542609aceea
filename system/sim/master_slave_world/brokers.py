"""Configuration of the brokers of such a run, as in a broker.conf."""

from __future__ import annotations

from dataclasses import replace

from shaketable.system.broker.delays.delay_levels import LEVELS_MAX
from shaketable.system.node.config import NodeConfig
from shaketable.system.sim.master_slave_world.setup import MASTER, Setup
from shaketable.system.sim.trio_world.host import CLIENT_PORT, PEER_PORT, STORE_ROOT
from shaketable.system.sim.trio_world.programs import CONF, node_config
from shaketable.system.sim.trio_world.world import address_of

NAME_SERVER = "names"
NAME_SERVER_ADDRESS = "10.0.8.1"
NAME_SERVER_PORT = 9876
BROKER = "broker-0"
DELAYS = ("1s",) * LEVELS_MAX


def configs_of(setup: Setup) -> dict[str, NodeConfig]:
    """Return each node's configuration, by node."""
    return {node: _config(setup, node) for node in setup.nodes}


def _config(setup: Setup, node: str) -> NodeConfig:
    number = int(node[1:])
    lines: dict[str, object] = {
        "brokerName": BROKER,
        "brokerId": number,
        "brokerRole": "SLAVE" if number else setup.role,
        "brokerIP1": address_of(node),
        "listenPort": CLIENT_PORT,
        "haListenPort": PEER_PORT,
        "namesrvAddr": f"{NAME_SERVER_ADDRESS}:{NAME_SERVER_PORT}",
        "registerNameServerPeriod": 10_000,
        "storePathRootDir": STORE_ROOT,
        "flushDiskType": "SYNC_FLUSH" if setup.is_sync_flush else "ASYNC_FLUSH",
        "syncFlushTimeout": setup.sync_flush_timeout_ms,
        "slaveTimeout": setup.slave_timeout_ms,
        "mappedFileSizeCommitLog": setup.file_bytes,
        "haTransferBatchSize": setup.transfer_bytes_max,
        "shaketableReservedMs": setup.reserved_ms,
        "messageDelayLevel": " ".join(DELAYS),
        "slaveReadEnable": "true",
    }
    if number:
        lines["haMasterAddress"] = f"{address_of(MASTER)}:{PEER_PORT}"
    config = node_config({CONF: "".join(f"{key}={value}\n" for key, value in lines.items())})
    native = config.native
    assert native is not None, "it is no member of a group"
    own = replace(native.config, tail_bytes_max=setup.tail_bytes_max)
    return replace(config, native=replace(native, config=own))
