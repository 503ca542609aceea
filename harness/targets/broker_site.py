"""Brokers to try out: name servers and broker groups as processes on loopback.

Source: the tutorials' distribution/conf (dledger, 2m-noslave, 2m-2s-async, 2m-2s-sync); DLEDGER.md
A.1 for ports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Final, Literal

from shaketable.harness.contracts.plugins import Address, Launch
from shaketable.harness.targets.programs import broker, name_server
from shaketable.system.client import RefusedError, brokers

HOST = "127.0.0.1"
CLUSTER = "shaketable"
GROUPS_MAX = len(ascii_lowercase)
DATA_FILE_BYTES = 64 << 20
INDEX_FILE_BYTES = 16 << 20
ASK_TIMEOUT_S = 1.0

Mode = Literal["multi-master", "async-replication", "sync-double-write", "dledger"]
"""How brokers replicate: RocketMQ's four deployment modes."""
MASTER_ROLES: Final[Mapping[Mode, str]] = {
    "multi-master": "ASYNC_MASTER",
    "async-replication": "ASYNC_MASTER",
    "sync-double-write": "SYNC_MASTER",
}
"""The brokerRole of masters, in the modes without an elected leader."""


@dataclass(frozen=True, slots=True)
class SiteServer:
    """A process of a site: a name server, or a broker of the named group."""

    name: str
    group: str
    address: Address
    launch: Launch
    directory: Path


@dataclass(frozen=True, slots=True)
class Site:
    """Name servers, and broker groups that register with all of them."""

    name_servers: tuple[SiteServer, ...]
    brokers: tuple[SiteServer, ...]

    @property
    def servers(self) -> tuple[SiteServer, ...]:
        """All processes, in start order."""
        return (*self.name_servers, *self.brokers)

    @property
    def addresses(self) -> str:
        """The name servers as clients need them: "host:port;host:port"."""
        return ";".join(str(server.address) for server in self.name_servers)

    async def leaders(self) -> Mapping[str, str]:
        """Return the broker of each group that takes messages now, as the name servers report it.

        Groups without a leader or master, or not registered yet, are missing.
        """
        try:
            known = await brokers(self.addresses, ASK_TIMEOUT_S)
        except RefusedError:
            return {}
        by_address = {str(server.address): server.name for server in self.brokers}
        leaders = {group: by_address.get(ids.get(0, "")) for group, ids in known.items()}
        return {group: name for group, name in leaders.items() if name is not None}


def ports_needed(nodes: int, groups: int, name_servers: int) -> int:
    """Return how many ports a site needs: two for each broker, one for each name server."""
    return name_servers + 2 * nodes * groups


def lay_out(
    folder: Path, mode: Mode, nodes: int, groups: int, name_servers: int, ports: list[int]
) -> Site:
    """Write the configuration files of a site into a folder.

    Args:
        folder: an existing folder; each server gets a folder in it.
        mode: how brokers replicate. Except in dledger the first of each group is its master.
        nodes: brokers in each group.
        groups: number of groups; they share topics.
        name_servers: number of name servers.
        ports: `ports_needed` free ports.

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
        keys = (
            _members(group, nodes, free)
            if mode == "dledger"
            else _master_and_slaves(mode, nodes, free)
        )
        found += [_broker(folder, group, name, own, listed) for name, own in keys]
    return Site(servers, tuple(found))


Keys = dict[str, object]
"""The configuration of one broker, beside what all brokers share."""


def _members(group: str, nodes: int, ports: Iterator[int]) -> list[tuple[str, Keys]]:
    """Return the names and keys of a DLedger group's members."""
    members = {f"n{number}": (next(ports), next(ports)) for number in range(nodes)}
    peers = ";".join(f"{name}-{HOST}:{peer}" for name, (_, peer) in members.items())
    return [
        (
            name,
            {
                "listenPort": port,
                "enableDLegerCommitLog": "true",
                "dLegerGroup": group,
                "dLegerPeers": peers,
                "dLegerSelfId": name,
                "mappedFileSizeIndex": INDEX_FILE_BYTES,
            },
        )
        for name, (port, _) in members.items()
    ]


def _master_and_slaves(mode: Mode, nodes: int, ports: Iterator[int]) -> list[tuple[str, Keys]]:
    """Return the names and keys of a master and its slaves, which find it by name servers."""
    found: list[tuple[str, Keys]] = []
    for number in range(nodes):
        keys: Keys = {
            "listenPort": next(ports),
            "haListenPort": next(ports),
            "brokerRole": MASTER_ROLES[mode] if number == 0 else "SLAVE",
            "brokerId": number,
        }
        found.append(("master" if number == 0 else f"slave-{number}", keys))
    return found


def _name_server(folder: Path, name: str, port: int) -> SiteServer:
    directory = folder / name
    directory.mkdir(exist_ok=True)
    address = Address(HOST, port)
    return SiteServer(name, "", address, name_server(address), directory)


def _broker(folder: Path, group: str, name: str, own: Keys, name_servers: str) -> SiteServer:
    directory = folder / f"{group}-{name}"
    directory.mkdir(exist_ok=True)
    lines: Keys = {
        "brokerClusterName": CLUSTER,
        "brokerName": group,
        "brokerIP1": HOST,
        "namesrvAddr": name_servers,
        "storePathRootDir": directory / "store",
        "mappedFileSizeCommitLog": DATA_FILE_BYTES,
        **own,
    }
    launch = broker(directory, lines)
    address = Address(HOST, int(str(own["listenPort"])))
    return SiteServer(f"{group}-{name}", group, address, launch, directory)
