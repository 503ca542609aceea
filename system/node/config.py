"""A node's configuration: a broker.conf with RocketMQ's keys and a few of our own.

RocketMQ's keys that have no effect here yet are accepted and logged; unknown keys are errors.
Source: distribution/conf/dledger/broker-n0.conf; DESIGN.md section 4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import TypeVar

from shaketable.system.broker.delay_levels import (
    DEFAULT_LEVELS,
    DEFAULT_LEVELS_MS,
    parse_levels,
)
from shaketable.system.broker.limits import HOUR_MS, ExpiryConfig
from shaketable.system.master_slave.core import BrokerRole, MasterSlaveConfig
from shaketable.system.master_slave.ha import BODY_BYTES_ACCEPTED_MAX
from shaketable.system.raft.protocol import RaftConfig
from shaketable.system.store.log_writer import AckPolicy

PORT_MAX = 65_535
INDEX_UNIT_BYTES = 32
QUEUE_UNIT_BYTES = 20
LAST_HOUR = 23
_ID = re.compile(r"[A-Za-z0-9_.]+")
_NUMBERED_ID = re.compile(r"[A-Za-z]([0-9]{1,9})")
DEFAULT_CLUSTER = "DefaultCluster"
NAME_SERVERS_MAX = 16
REGISTER_INTERVAL_MIN_MS, REGISTER_INTERVAL_MAX_MS = 10_000, 60_000
"""RocketMQ clamps values to this range."""
DISKS = ("real", "volatile")
ACK_POLICIES: Mapping[str, AckPolicy] = {"SYNC_FLUSH": "fsync", "ASYNC_FLUSH": "page-cache"}
"""What an acknowledgement guarantees: copies on disk, or copies in the page cache."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A node's configuration. Ports on `host`; sizes in bytes; times in milliseconds.

    `peers` maps every member's id, including this one's, to (host, port) of its DLedger port.
    `is_joining`: the node is not a member yet and waits to be added; `peers` is no voter list.
    `checks_invariants`: a node checks its own steps as simulations do, and ends with exit status
    70 at the first that violates an invariant. `reach` overrides the addresses of members that the
    log holds. `plain_log` is where a commit log from before DLedger mode may be stored. Without
    `name_servers` the node does not register; `broker_id` is the id that it registers with while
    it is not the leader.
    """

    self_id: str
    group: str
    peers: Mapping[str, tuple[str, int]]
    listen_port: int
    store_root: Path
    host: str = "127.0.0.1"
    data_file_bytes: int = 1 << 30
    index_file_bytes: int = 160 << 20
    disk: str = "real"
    seed: str = ""
    mutant: str = ""
    is_joining: bool = False
    checks_invariants: bool = False
    reach: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    ack_policy: AckPolicy = "fsync"
    raft: RaftConfig = field(default_factory=RaftConfig)
    expiry: ExpiryConfig = field(default_factory=ExpiryConfig)
    plain_log: Path | None = None
    queue_file_bytes: int = 300_000 * QUEUE_UNIT_BYTES
    is_key_indexed: bool = True
    hash_slots: int = 5_000_000
    index_items_max: int = 20_000_000
    pending_sends_max: int = 10_000
    client_connections_max: int = 2000
    cluster: str = DEFAULT_CLUSTER
    broker_name: str = ""
    broker_id: int = 1
    name_servers: tuple[tuple[str, int], ...] = ()
    register_interval_ms: int = 30_000
    slave_read_enable: bool = False
    long_polling: bool = True
    short_polling_ms: int = 1000
    delay_levels_ms: tuple[int, ...] = DEFAULT_LEVELS_MS
    auto_create_topics: bool = True
    default_topic_queues: int = 16
    topics_max: int = 10_000
    group_members_max: int = 10_000
    properties: Mapping[str, str] = field(default_factory=dict)
    """The configuration's keys and values as written, shown to operators."""
    master_slave: MasterSlaveSettings | None = None
    """The settings of a master-slave broker, None for a member of a DLedger group."""
    recording: Path | None = None
    """File to record the broker's inputs in (`system.node.recorder`), if any."""
    steering: Path | None = None
    """Folder with the orders that steer the node (`system.node.steered.steering`), if any."""
    unused: Mapping[str, str] = field(default_factory=dict)


# RocketMQ's keys that are accepted but have no effect yet.
_KNOWN_UNUSED = frozenset(("sendMessageThreadPoolNums",))
_REQUIRED = ("listenPort", "storePathRootDir")
_MEMBER_REQUIRED = ("dLegerSelfId", "dLegerGroup", "dLegerPeers")
_MEMBER_KEYS = frozenset((*_MEMBER_REQUIRED, "mappedFileSizeIndex", "preferredLeaderIds"))
_OPTIONAL = (
    "autoCreateTopicEnable",
    "brokerClusterName",
    "brokerIP1",
    "brokerName",
    "defaultTopicQueueNums",
    "deleteWhen",
    "diskMaxUsedSpaceRatio",
    "enableDLegerCommitLog",
    "fileReservedTime",
    "flushDiskType",
    "longPollingEnable",
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mappedFileSizeIndex",
    "maxHashSlotNum",
    "maxIndexNum",
    "messageDelayLevel",
    "messageIndexEnable",
    "namesrvAddr",
    "preferredLeaderIds",
    "registerNameServerPeriod",
    "shaketableClockDriftMax",
    "shaketableDisk",
    "shaketableGroupMembersMax",
    "shaketableInvariants",
    "shaketableJoin",
    "shaketableLeaseMs",
    "shaketableMutant",
    "shaketableReach",
    "shaketableRecord",
    "shaketableReservedMs",
    "shaketableSeed",
    "shaketableSteering",
    "shaketableTopicsMax",
    "shortPollingTimeMills",
    "slaveReadEnable",
    "storePathCommitLog",
)


def load(path: Path | None, settings: Sequence[str] = ()) -> NodeConfig:
    """Read a broker.conf, and settings `key=value` that override it. Raises ConfigError.

    Without a file the settings are all there is.
    """
    values: dict[str, str] = {}
    sources = []
    if path is not None:
        sources.append(str(path))
        try:
            values = read_properties(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    if settings:
        sources.append("the command line")
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not (key.strip() and equals and setting.isprintable()):
                raise ConfigError(f"the command line: {setting!r} is not KEY=VALUE")
            values[key.strip()] = value.strip()
    try:
        return _configured(values)
    except ConfigError as error:
        raise ConfigError(f"{' and '.join(sources)}: {error}") from None


def parse(text: str) -> NodeConfig:
    """Parse the text of a broker.conf. Raises ConfigError."""
    return _configured(read_properties(text))


def _configured(values: Mapping[str, str]) -> NodeConfig:
    known = {*_KNOWN_UNUSED, *_REQUIRED, *_MEMBER_KEYS, *_OPTIONAL, *MASTER_SLAVE_KEYS}
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown key {key}")
    is_member = read_choice(values, "enableDLegerCommitLog", TRUTH, "false")
    for key in (*_REQUIRED, *(_MEMBER_REQUIRED if is_member else ())):
        if not values.get(key):
            raise ConfigError(f"{key} is missing")
    if is_member:
        return _member(values)
    listen_port = read_number(values, "listenPort", 0, 0, PORT_MAX)
    settings = read_plain(values, listen_port)
    common = replace(
        _common(values, f"{settings.broker_name}-{settings.broker_id}"),
        group=settings.broker_name,
        broker_name=settings.broker_name,
        broker_id=settings.broker_id,
        master_slave=settings,
    )
    return _with_unused(common, _KNOWN_UNUSED | _MEMBER_KEYS)


def _member(values: Mapping[str, str]) -> NodeConfig:
    """Read the configuration of a DLedger group's member."""
    peers = _peers(values, "dLegerPeers")
    self_id = values["dLegerSelfId"]
    if self_id not in peers:
        raise ConfigError(f"dLegerSelfId {self_id} is not among dLegerPeers {', '.join(peers)}")
    lease_ms = read_number(values, "shaketableLeaseMs", 0, 0, 60_000)
    drift_max = read_share(values, "shaketableClockDriftMax", RaftConfig().clock_drift_max)
    try:
        raft = RaftConfig(
            lease_ms=float(lease_ms),
            clock_drift_max=drift_max,
            preferred_leaders=_ids(values, "preferredLeaderIds"),
        )
    except ValueError as error:
        raise ConfigError(f"shaketableLeaseMs: {error}") from None
    common = _common(values, self_id)
    member = replace(
        common,
        group=values["dLegerGroup"],
        peers=peers,
        is_joining=read_choice(values, "shaketableJoin", TRUTH, "false"),
        reach=_peers(values, "shaketableReach"),
        ack_policy=read_choice(values, "flushDiskType", ACK_POLICIES, "SYNC_FLUSH"),
        raft=raft,
        plain_log=Path(plain_log) if (plain_log := values.get("storePathCommitLog")) else None,
        broker_name=read_name(values, "brokerName", values["dLegerGroup"]),
        broker_id=_broker_id(self_id, is_needed=bool(common.name_servers)),
    )
    return _with_unused(member, _KNOWN_UNUSED | {*MASTER_SLAVE_KEYS})


def _with_unused(config: NodeConfig, keys: AbstractSet[str]) -> NodeConfig:
    """Set `unused`: which of `keys`, that have no effect in this mode, were given."""
    return replace(
        config, unused={key: value for key, value in config.properties.items() if key in keys}
    )


def _common(values: Mapping[str, str], self_id: str) -> NodeConfig:
    """Read the keys that mean the same in both modes."""
    host = values.get("brokerIP1", "127.0.0.1")
    try:
        IPv4Address(host)
    except AddressValueError:
        raise ConfigError(f"brokerIP1 must be an IPv4 address, not {host!r}") from None
    return NodeConfig(
        self_id=self_id,
        group="",
        peers={},
        listen_port=read_number(values, "listenPort", 0, 0, PORT_MAX),
        store_root=Path(values["storePathRootDir"]),
        host=host,
        data_file_bytes=read_number(values, "mappedFileSizeCommitLog", 1 << 30, 4096, 1 << 40),
        index_file_bytes=read_units(values, "mappedFileSizeIndex", 160 << 20, INDEX_UNIT_BYTES),
        checks_invariants=read_choice(values, "shaketableInvariants", TRUTH, "false"),
        disk=read_choice(values, "shaketableDisk", {disk: disk for disk in DISKS}, "real"),
        seed=values.get("shaketableSeed", ""),
        mutant=values.get("shaketableMutant", ""),
        expiry=_expiry(values),
        queue_file_bytes=read_units(
            values, "mappedFileSizeConsumeQueue", 300_000 * QUEUE_UNIT_BYTES, QUEUE_UNIT_BYTES
        ),
        is_key_indexed=read_choice(values, "messageIndexEnable", TRUTH, "true"),
        hash_slots=read_number(values, "maxHashSlotNum", 5_000_000, 1, 1 << 28),
        index_items_max=read_number(values, "maxIndexNum", 20_000_000, 2, 1 << 30),
        cluster=read_name(values, "brokerClusterName", DEFAULT_CLUSTER),
        name_servers=_name_servers(values.get("namesrvAddr", "")),
        register_interval_ms=min(
            max(
                read_number(values, "registerNameServerPeriod", 30_000, 0, 1 << 40),
                REGISTER_INTERVAL_MIN_MS,
            ),
            REGISTER_INTERVAL_MAX_MS,
        ),
        topics_max=read_number(values, "shaketableTopicsMax", 10_000, 1, 10_000),
        group_members_max=read_number(values, "shaketableGroupMembersMax", 10_000, 1, 10_000),
        slave_read_enable=read_choice(values, "slaveReadEnable", TRUTH, "false"),
        long_polling=read_choice(values, "longPollingEnable", TRUTH, "true"),
        short_polling_ms=read_number(values, "shortPollingTimeMills", 1000, 0, 60_000),
        delay_levels_ms=_delay_levels(values),
        auto_create_topics=read_choice(values, "autoCreateTopicEnable", TRUTH, "true"),
        default_topic_queues=read_number(values, "defaultTopicQueueNums", 16, 1, 1024),
        properties=values,
        recording=Path(recording) if (recording := values.get("shaketableRecord")) else None,
        steering=Path(steering) if (steering := values.get("shaketableSteering")) else None,
    )


def _peers(values: Mapping[str, str], key: str) -> dict[str, tuple[str, int]]:
    """Read addresses in DLedger's form: "n0-127.0.0.1:40911;n1-127.0.0.1:40912"."""
    peers: dict[str, tuple[str, int]] = {}
    for part in filter(None, values.get(key, "").split(";")):
        name, dash, address = part.strip().partition("-")
        host, colon, port = address.rpartition(":")
        if not (dash and colon and host and is_number(port) and 0 < int(port) <= PORT_MAX):
            raise ConfigError(f"{key}: {part!r} is not of the form n0-127.0.0.1:40911")
        if not _ID.fullmatch(name):
            raise ConfigError(f"{key}: {name!r} is no id: letters, digits, '_' and '.'")
        if name in peers:
            raise ConfigError(f"{key}: {name} is there twice")
        peers[name] = (host, int(port))
    return peers


def _name_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Parse "10.0.0.1:9876;10.0.0.2:9876", each named once."""
    found: dict[tuple[str, int], None] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        host, _, port = part.rpartition(":")
        if not host or ":" in host or not is_number(port) or not 0 < int(port) <= PORT_MAX:
            raise ConfigError(f"namesrvAddr: {part!r} is not of the form 127.0.0.1:9876")
        found[host, int(port)] = None
    if len(found) > NAME_SERVERS_MAX:
        raise ConfigError(f"namesrvAddr: {len(found)} name servers, at most {NAME_SERVERS_MAX}")
    return tuple(found)


def _broker_id(self_id: str, *, is_needed: bool) -> int:
    """Derive a follower's broker id from its member id, as RocketMQ does: n0 is 1, n1 is 2."""
    match = _NUMBERED_ID.fullmatch(self_id)
    if match is not None:
        return int(match[1]) + 1
    if is_needed:
        raise ConfigError(
            f"dLegerSelfId {self_id} gives no broker id to register with at namesrvAddr: "
            f"name it by a letter and a number, as n0"
        )
    return 1


def _expiry(values: Mapping[str, str]) -> ExpiryConfig:
    """Read when data files expire. `shaketableReservedMs` is for tests that cannot wait hours."""
    reserved_ms = read_number(values, "fileReservedTime", 72, 1, 1 << 20) * HOUR_MS
    hours = [part.strip() for part in values.get("deleteWhen", "").split(";") if part.strip()]
    for hour in hours:
        if not is_number(hour) or int(hour) > LAST_HOUR:
            raise ConfigError(f"deleteWhen must list hours of the day in UTC, 00..23, not {hour!r}")
    return ExpiryConfig(
        reserved_ms=read_number(values, "shaketableReservedMs", reserved_ms, 1, 1 << 50),
        delete_when_hours=tuple(sorted({int(hour) for hour in hours})),
        used_ratio_max=read_number(values, "diskMaxUsedSpaceRatio", 75, 10, 95) / 100,
    )


def _delay_levels(values: Mapping[str, str]) -> tuple[int, ...]:
    try:
        return parse_levels(values.get("messageDelayLevel", DEFAULT_LEVELS))
    except ValueError as error:
        raise ConfigError(f"messageDelayLevel: {error}") from None


def _ids(values: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Read ids in DLedger's form: "n0;n1", the most preferred first."""
    ids = tuple(part.strip() for part in values.get(key, "").split(";") if part.strip())
    for name in ids:
        if not _ID.fullmatch(name):
            raise ConfigError(f"{key}: {name!r} is no id: letters, digits, '_' and '.'")
    return ids


# Readers of single values. Errors name the key and what is wrong, in one line.
#
# Source: Java properties, as far as RocketMQ's own files use them.

Value = TypeVar("Value")
Values = Mapping[str, str]

NUMBER_DIGITS_MAX = 19
NAME_LENGTH_MAX = 255
_SHARE = re.compile(r"0(\.[0-9]{1,9})?")
TRUTH = {"true": True, "false": False}


class ConfigError(Exception):
    """The configuration is invalid. The message is one line that names the file and the key."""


def read_properties(text: str) -> dict[str, str]:
    """Read the lines `key=value` of a broker.conf. Raises ConfigError."""
    values: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ConfigError(f"line {number}: no '=' in {line!r}")
        values[key.strip()] = value.strip()
    return values


def read_name(values: Mapping[str, str], key: str, default: str) -> str:
    """Read a name of at most NAME_LENGTH_MAX characters. Raises ConfigError."""
    name = values.get(key) or default
    if len(name) > NAME_LENGTH_MAX:
        raise ConfigError(f"{key} has {len(name)} characters, at most {NAME_LENGTH_MAX}")
    return name


def read_number(values: Mapping[str, str], key: str, default: int, low: int, high: int) -> int:
    """Read a number in low..high. Raises ConfigError."""
    text = values.get(key)
    if text is None:
        return default
    if not is_number(text) or not low <= int(text) <= high:
        raise ConfigError(f"{key} must be a number in {low}..{high}, not {text!r}")
    return int(text)


def read_share(values: Mapping[str, str], key: str, default: float) -> float:
    """Read a fraction in [0, 1) such as "0.1". Raises ConfigError."""
    text = values.get(key)
    if text is None:
        return default
    if not _SHARE.fullmatch(text):
        raise ConfigError(f"{key} must be a share in 0.0..0.99, not {text!r}")
    return float(text)


def is_number(text: str) -> bool:
    """Return whether `int` can parse the text: ASCII digits only, and not too many."""
    return text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX


def read_units(values: Mapping[str, str], key: str, default: int, unit_bytes: int) -> int:
    """Read a file size, a multiple of `unit_bytes`. Raises ConfigError."""
    size = read_number(values, key, default, unit_bytes * 8, 1 << 40)
    if size % unit_bytes:
        raise ConfigError(f"{key} must be a multiple of {unit_bytes}, not {size}")
    return size


def read_choice(
    values: Mapping[str, str], key: str, choices: Mapping[str, Value], default: str
) -> Value:
    """Read one of the keys of `choices` and return its value there. Raises ConfigError."""
    text = values.get(key, default)
    if text not in choices:
        raise ConfigError(f"{key} must be one of {', '.join(choices)}, not {text}")
    return choices[text]


# The keys of master-slave brokers.
#
# Source: RocketMQ 4.9's BrokerConfig, MessageStoreConfig and BrokerStartup; DLEDGER.md D.2.


BROKER_ID_MAX = 1 << 31
HA_PORT_OFFSET = 1
"""The default haListenPort is listenPort plus this."""
TIMEOUT_MAX_MS = 3_600_000
MASTER_SLAVE_KEYS = (
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
"""These keys have no effect in a DLedger group."""


@dataclass(frozen=True, slots=True)
class MasterSlaveSettings:
    """The settings that only a master-slave broker has.

    `log_folder` is storePathCommitLog. `master` is where a slave copies from; None: the address
    that the name servers return. It registers as `broker_name` and `broker_id`. Only a master
    listens on `ha_port`.
    """

    config: MasterSlaveConfig
    log_folder: Path
    broker_name: str
    broker_id: int
    ha_port: int
    master: tuple[str, int] | None


def read_plain(values: Values, listen_port: int) -> MasterSlaveSettings:
    """Read the settings of a master-slave broker. Raises ConfigError."""
    roles = {role.value: role for role in BrokerRole}
    role = read_choice(values, "brokerRole", roles, "ASYNC_MASTER")
    flush = {"ASYNC_FLUSH": False, "SYNC_FLUSH": True}
    config = MasterSlaveConfig(
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
    return MasterSlaveSettings(
        config,
        Path(folder),
        read_name(values, "brokerName", "DEFAULT_BROKER"),
        broker_id if role is BrokerRole.SLAVE else 0,
        _ha_port(values, listen_port, role),
        _master(values),
    )


def _ha_port(values: Values, listen_port: int, role: BrokerRole) -> int:
    """Read the port for slaves; as listenPort, 0 stands for any free port.

    A slave does not listen for slaves, so it needs no such port.
    """
    if role is BrokerRole.SLAVE:
        return read_number(values, "haListenPort", 0, 0, PORT_MAX)
    default = listen_port + HA_PORT_OFFSET if listen_port else 0
    if "haListenPort" not in values and default > PORT_MAX:
        raise ConfigError(f"haListenPort is missing: listenPort + 1 is above {PORT_MAX}")
    return read_number(values, "haListenPort", default, 0, PORT_MAX)


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
