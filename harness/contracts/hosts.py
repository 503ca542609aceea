"""The machines that a target's nodes run on: how OpenSSH reaches them, where nodes live there.

Source: ssh(1), ssh_config(5); jepsen.control (nodes that are reached by SSH).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_DESTINATION: Final = re.compile(
    r"(?P<user>[^\s@/\[\]-][^\s@/\[\]]*@)?"
    r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^\s@/\[\]:-][^\s@/\[\]:]*))(?::(?P<port>[0-9]+))?"
)
"""[user@]host[:port], an IPv6 address in brackets."""
PORT_MAX: Final = 65_535


class Hosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hosts of a group, one for each node, in the order n0, n1, ...

    Attributes:
        ssh: where each is reached by `ssh`: user@host, user@host:port, user@[IPv6 address], or a
            name of the user's ssh_config.
        options: further options of `ssh`, for all of them.
        addresses: where clients and the other nodes reach each host; by default as `ssh` does.
        folder: an absolute path there, in which each run makes a folder of its own.
        client_port: where each node listens for clients.
        peer_port: where it listens for its peers.
        fetch_data: whether nodes' data are copied into the run's folder at the end.
    """

    ssh: tuple[str, ...]
    options: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    folder: str = "/var/tmp/shaketable"  # noqa: S108 - on another machine; each run has its own
    client_port: int = 7000
    peer_port: int = 7001
    fetch_data: bool = False

    def __post_init__(self) -> None:
        if not self.ssh:
            raise ValueError("ssh: name at least one host")
        for text in self.ssh:
            if _DESTINATION.fullmatch(text) is None:
                raise ValueError(f"ssh: {text!r} is not user@host, nor user@host:port")
        if self.addresses and len(self.addresses) != len(self.ssh):
            raise ValueError(f"addresses: give {len(self.ssh)}, one for each of ssh")
        reached = [self.address(number) for number in range(len(self.ssh))]
        if len(set(reached)) < len(reached):
            raise ValueError("two nodes have the same host; each needs one of its own")
        if not self.folder.startswith("/") or self.folder.strip("/") == "":
            raise ValueError("folder: give an absolute path, not /")
        for port in (self.client_port, self.peer_port):
            if not 0 < port <= PORT_MAX:
                raise ValueError(f"{port} is no port")
        if self.client_port == self.peer_port:
            raise ValueError("client_port and peer_port are the same")

    def address(self, number: int) -> str:
        """Return where node `number` is reached: a name or an IP address, without brackets."""
        if self.addresses:
            return self.addresses[number].strip("[]")
        found = self._parsed(number)
        return found["v6"] or found["host"]

    def destination(self, number: int) -> tuple[str, ...]:
        """Return the arguments of `ssh` that name the host of node `number`."""
        found = self._parsed(number)
        port = ("-p", found["port"]) if found["port"] else ()
        return (*port, f"{found['user'] or ''}{found['v6'] or found['host']}")

    def _parsed(self, number: int) -> re.Match[str]:
        found = _DESTINATION.fullmatch(self.ssh[number])
        assert found is not None, "checked when it was made"
        return found
