"""Broker groups to play with: name servers and DLedger groups as processes on loopback.

Source: the tutorials' distribution/conf/dledger/broker-n0.conf; DLEDGER.md A.1 for ports.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from harness.plugins import Address, Launch
from system.client import RefusedError, brokers

HOST = "127.0.0.1"
CLUSTER = "shaketable"
GROUPS_MAX = len(ascii_lowercase)
DATA_FILE_BYTES = 64 << 20
INDEX_FILE_BYTES = 16 << 20
ASK_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class SiteServer:
    """A process of a site: a name server, or a broker of the group that is named."""

    name: str
    group: str
    address: Address
    launch: Launch
    directory: Path


@dataclass(frozen=True, slots=True)
class Site:
    """Name servers, and DLedger groups that register with all of them."""

    name_servers: tuple[SiteServer, ...]
    brokers: tuple[SiteServer, ...]

    @property
    def servers(self) -> tuple[SiteServer, ...]:
        """All processes, in the order in which they are started."""
        return (*self.name_servers, *self.brokers)

    @property
    def addresses(self) -> str:
        """What clients are given: the name servers as "host:port;host:port"."""
        return ";".join(str(server.address) for server in self.name_servers)

    async def leaders(self) -> Mapping[str, str]:
        """Return which broker of each group takes messages now, by the name servers' word.

        Groups that have no leader, or have not registered yet, are missing.
        """
        try:
            known = await brokers(self.addresses, ASK_TIMEOUT_S)
        except RefusedError:
            return {}
        by_address = {str(server.address): server.name for server in self.brokers}
        leaders = {group: by_address.get(ids.get(0, "")) for group, ids in known.items()}
        return {group: name for group, name in leaders.items() if name is not None}


def ports_needed(nodes: int, groups: int, name_servers: int) -> int:
    """How many ports a site takes: two for each broker, one for each name server."""
    return name_servers + 2 * nodes * groups


def lay_out(folder: Path, nodes: int, groups: int, name_servers: int, ports: list[int]) -> Site:
    """Write the configuration files of a site into a folder.

    Args:
        folder: an existing folder; each server gets one in it.
        nodes: brokers of each group.
        groups: how many DLedger groups, which share topics.
        name_servers: how many.
        ports: `ports_needed` of them, free.

    Raises:
        OSError: the files cannot be written.
    """
    free = iter(ports)
    servers = tuple(
        _name_server(folder, f"name-server-{number}", next(free))
        for number in range(1, name_servers + 1)
    )
    listed = ";".join(str(server.address) for server in servers)
    found: list[SiteServer] = []
    for letter in ascii_lowercase[:groups]:
        group = f"broker-{letter}"
        members = {f"n{number}": (next(free), next(free)) for number in range(nodes)}
        peers = ";".join(f"{name}-{HOST}:{peer}" for name, (_, peer) in members.items())
        found += [
            _broker(folder, group, name, port, peers, listed) for name, (port, _) in members.items()
        ]
    return Site(servers, tuple(found))


def _name_server(folder: Path, name: str, port: int) -> SiteServer:
    directory = folder / name
    directory.mkdir(exist_ok=True)
    argv = (sys.executable, "-m", "system.node.name_server", "--host", HOST, "--port", str(port))
    return SiteServer(name, "", Address(HOST, port), Launch(argv), directory)


def _broker(
    folder: Path, group: str, name: str, port: int, peers: str, name_servers: str
) -> SiteServer:
    directory = folder / f"{group}-{name}"
    directory.mkdir(exist_ok=True)
    lines = {
        "brokerClusterName": CLUSTER,
        "brokerName": group,
        "brokerIP1": HOST,
        "listenPort": port,
        "namesrvAddr": name_servers,
        "storePathRootDir": directory / "store",
        "enableDLegerCommitLog": "true",
        "dLegerGroup": group,
        "dLegerPeers": peers,
        "dLegerSelfId": name,
        "mappedFileSizeCommitLog": DATA_FILE_BYTES,
        "mappedFileSizeIndex": INDEX_FILE_BYTES,
    }
    path = directory / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    launch = Launch((sys.executable, "-m", "system.node", "-c", str(path)))
    return SiteServer(f"{group}-{name}", group, Address(HOST, port), launch, directory)
