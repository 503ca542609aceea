"""The keys of a broker.conf by which a broker without a group replicates.

Source: RocketMQ 4.9's BrokerConfig, MessageStoreConfig and BrokerStartup; DLEDGER.md D.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shaketable.system.native.config import BrokerRole, NativeConfig
from shaketable.system.native.ha import BODY_BYTES_ACCEPTED_MAX
from shaketable.system.node.conf_values import (
    ConfigError,
    Values,
    is_number,
    read_choice,
    read_name,
    read_number,
)

PORT_MAX = 65_535
BROKER_ID_MAX = 1 << 31
HA_PORT_ABOVE = 1
"""haListenPort stands so far above listenPort where nothing else is said."""
TIMEOUT_MAX_MS = 3_600_000
NATIVE_KEYS = (
    "brokerId",
    "brokerRole",
    "flushIntervalCommitLog",
    "haListenPort",
    "haMasterAddress",
    "haSlaveFallbehindMax",
    "haTransferBatchSize",
    "slaveTimeout",
    "syncFlushTimeout",
)
"""They mean nothing in a DLedger group."""


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """What a broker without a group is told beside all others.

    `log_folder` is storePathCommitLog; `master` is where a slave copies from: None, what the name
    servers say. `broker_name` and `broker_id` are by which it registers.
    """

    config: NativeConfig
    log_folder: Path
    broker_name: str
    broker_id: int
    ha_port: int
    master: tuple[str, int] | None


def read_native(values: Values, listen_port: int) -> NativeSettings:
    """Read them. Raises ConfigError."""
    roles = {role.value: role for role in BrokerRole}
    role = read_choice(values, "brokerRole", roles, "ASYNC_MASTER")
    flush = {"ASYNC_FLUSH": False, "SYNC_FLUSH": True}
    config = NativeConfig(
        role=role,
        is_sync_flush=read_choice(values, "flushDiskType", flush, "ASYNC_FLUSH"),
        flush_interval_ms=float(_ms(values, "flushIntervalCommitLog", 500)),
        sync_flush_timeout_ms=float(_ms(values, "syncFlushTimeout", 5000)),
        slave_timeout_ms=float(_ms(values, "slaveTimeout", 3000)),
        slave_behind_bytes_max=read_number(
            values, "haSlaveFallbehindMax", 256 << 20, 0, (1 << 63) - 1
        ),
        transfer_bytes_max=read_number(
            values, "haTransferBatchSize", 32 << 10, 1, BODY_BYTES_ACCEPTED_MAX
        ),
    )
    broker_id = read_number(values, "brokerId", 0, 0, BROKER_ID_MAX)
    if role is BrokerRole.SLAVE and not broker_id:
        raise ConfigError("brokerId must be above 0 with brokerRole=SLAVE")
    for key in ("shaketableJoin", "shaketableRecord"):
        if key in values:
            raise ConfigError(f"{key} needs a group: enableDLegerCommitLog=true")
    folder = values.get("storePathCommitLog") or f"{values['storePathRootDir']}/commitlog"
    return NativeSettings(
        config,
        Path(folder),
        read_name(values, "brokerName", "DEFAULT_BROKER"),
        broker_id if role is BrokerRole.SLAVE else 0,
        read_number(values, "haListenPort", listen_port + HA_PORT_ABOVE, 0, PORT_MAX),
        _master(values),
    )


def _ms(values: Values, key: str, default: int) -> int:
    return read_number(values, key, default, 1, TIMEOUT_MAX_MS)


def _master(values: Values) -> tuple[str, int] | None:
    text = values.get("haMasterAddress")
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or ":" in host or not is_number(port) or not 0 < int(port) <= PORT_MAX:
        raise ConfigError(f"haMasterAddress: {text!r} is not of the form 127.0.0.1:10912")
    return host, int(port)
