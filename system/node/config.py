"""A node's configuration: RocketMQ's own keys in a broker.conf, and a few of ours.

Source: distribution/conf/dledger/broker-n0.conf; DESIGN.md section 4. Keys of RocketMQ
that have no meaning here yet are accepted and named in the log, unknown ones refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path


class ConfigError(Exception):
    """The configuration cannot be used: one line that names the file and the key."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What a node is told. Ports on `host`; sizes in bytes; times in milliseconds.

    `peers` maps every member's id, this one's too, to (host, port) of its DLedger port.
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
    unused: Mapping[str, str] = field(default_factory=dict)


# RocketMQ's keys that this broker reads but that change nothing in dledger mode yet.
_KNOWN_UNUSED = frozenset(
    (
        "brokerClusterName",
        "brokerId",
        "brokerName",
        "brokerRole",
        "enableDLegerCommitLog",
        "flushDiskType",
        "namesrvAddr",
        "sendMessageThreadPoolNums",
        "slaveReadEnable",
        "storePathCommitLog",
    )
)
_REQUIRED = ("dLegerSelfId", "dLegerGroup", "dLegerPeers", "listenPort", "storePathRootDir")
_OPTIONAL = (
    "brokerIP1",
    "mappedFileSizeCommitLog",
    "mappedFileSizeIndex",
    "shaketableDisk",
    "shaketableSeed",
    "shaketableMutant",
)
PORT_MAX = 65_535
INDEX_UNIT_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9_.]+")
DISKS = ("real", "volatile")


def load(path: Path) -> NodeConfig:
    """Read a broker.conf. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(text: str) -> NodeConfig:
    """Parse the text of a broker.conf. Raises ConfigError."""
    values = _properties(text)
    for key in values:
        if key not in _KNOWN_UNUSED and key not in _REQUIRED and key not in _OPTIONAL:
            raise ConfigError(f"unknown key {key}")
    for key in _REQUIRED:
        if not values.get(key):
            raise ConfigError(f"{key} is missing")
    peers = _peers(values["dLegerPeers"])
    self_id = values["dLegerSelfId"]
    if self_id not in peers:
        raise ConfigError(f"dLegerSelfId {self_id} is not among dLegerPeers {', '.join(peers)}")
    host = values.get("brokerIP1", "127.0.0.1")
    try:
        IPv4Address(host)
    except AddressValueError:
        raise ConfigError(f"brokerIP1 must be an IPv4 address, not {host!r}") from None
    index_file_bytes = _number(values, "mappedFileSizeIndex", 160 << 20, 4096, 1 << 40)
    if index_file_bytes % INDEX_UNIT_BYTES:
        raise ConfigError(
            f"mappedFileSizeIndex must be a multiple of {INDEX_UNIT_BYTES}, not {index_file_bytes}"
        )
    disk = values.get("shaketableDisk", "real")
    if disk not in DISKS:
        raise ConfigError(f"shaketableDisk must be one of {', '.join(DISKS)}, not {disk}")
    return NodeConfig(
        self_id=self_id,
        group=values["dLegerGroup"],
        peers=peers,
        listen_port=_number(values, "listenPort", 0, 0, PORT_MAX),
        store_root=Path(values["storePathRootDir"]),
        host=host,
        data_file_bytes=_number(values, "mappedFileSizeCommitLog", 1 << 30, 4096, 1 << 40),
        index_file_bytes=index_file_bytes,
        disk=disk,
        seed=values.get("shaketableSeed", ""),
        mutant=values.get("shaketableMutant", ""),
        unused={key: value for key, value in values.items() if key in _KNOWN_UNUSED},
    )


def _properties(text: str) -> dict[str, str]:
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


def _peers(text: str) -> dict[str, tuple[str, int]]:
    """Parse "n0-127.0.0.1:40911;n1-127.0.0.1:40912" (DLedger's form)."""
    peers: dict[str, tuple[str, int]] = {}
    for part in filter(None, text.split(";")):
        name, dash, address = part.strip().partition("-")
        host, colon, port = address.rpartition(":")
        if not (dash and colon and host and port.isdigit() and int(port) <= PORT_MAX):
            raise ConfigError(f"dLegerPeers: {part!r} is not of the form n0-127.0.0.1:40911")
        if not _ID.fullmatch(name):
            raise ConfigError(f"dLegerPeers: {name!r} is no id: letters, digits, '_' and '.'")
        if name in peers:
            raise ConfigError(f"dLegerPeers: {name} stands there twice")
        peers[name] = (host, int(port))
    return peers


def _number(values: Mapping[str, str], key: str, default: int, low: int, high: int) -> int:
    text = values.get(key)
    if text is None:
        return default
    if not text.isdigit() or not low <= int(text) <= high:
        raise ConfigError(f"{key} must be a number in {low}..{high}, not {text!r}")
    return int(text)
