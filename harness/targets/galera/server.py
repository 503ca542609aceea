"""Starts a node of the target galera: makes its first data, and becomes its MariaDB server.

    server.py setup INSTALLED ID MEMBERS DATA
    server.py run INSTALLED ID CLIENT_HOST CLIENT_PORT PEER_HOST PEER_PORT MEMBERS DATA
        NAME=VALUE ...

It is run in the node's folder, and imports nothing of ours. The first node has the first data, and
forms the group; the others start after it, and get theirs from a node that has some (a state
transfer, by rsync). A node that was killed is asked up to which transaction it has data before it
joins again, as galera_recovery does.

Nodes that were all killed form the group again once all of the last primary component are back
(pc.recovery). If they are not, an operator would have to say which of them begins.

Source: MariaDB's documentation of Galera (wsrep_provider_options, wsrep_sst_method, pc.recovery);
Debian's galera_recovery and wsrep_sst_rsync (10.11).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

FORMED: Final = Path("formed")
"""Is in the first node's folder once it has formed the group: it never forms another one."""
SOCKET: Final = "../../server.sock"
"""From the data folder, where a server runs: an absolute path may be too long for a socket."""
POSITION: Final = re.compile(r"Recovered position:\s*([0-9a-f-]{36}:-?[0-9]+)")
NOWHERE: Final = "00000000-0000-0000-0000-000000000000:-1"
RECOVERY_TIMEOUT_S: Final = 60.0
FORMED_TIMEOUT_S: Final = 30.0
"""How long the others wait, before they start, for the node that forms the group."""
RETRY_S: Final = 0.1
SCHEMA: Final = """
CREATE DATABASE kv;
CREATE TABLE kv.registers (name VARCHAR(190) PRIMARY KEY, value BIGINT);
CREATE TABLE kv.counters (name VARCHAR(190) PRIMARY KEY, value BIGINT);
CREATE TABLE kv.sets (name VARCHAR(190), value BIGINT, PRIMARY KEY (name, value));
CREATE TABLE kv.lists (name VARCHAR(190) PRIMARY KEY, elements LONGTEXT);
"""
SYSTEM_TABLES: Final = "usr/share/mysql/mysql_system_tables.sql"
GCOMM: Final = (
    # A campaign is short: a node that is silent is suspected after 5 s, and given up after 15 s, by
    # Galera's own values. Where the machine is busy, members with a second and three never agreed.
    "evs.keepalive_period=PT0.5S", "evs.suspect_timeout=PT2S", "evs.inactive_timeout=PT6S",
    "evs.inactive_check_period=PT0.25S", "evs.install_timeout=PT6S", "gcache.size=32M",
    # A node that finds no primary component ends after 30 s by default, to be started again.
    "pc.wait_prim_timeout=PT10M",
)  # fmt: skip
RSYNC: Final = """#!/bin/sh
# A network namespace may have no name server, and a daemon of root would write as another user.
if [ "$1" = --daemon ]; then
    shift
    set -- --daemon "--dparam=reverse lookup=no" "--dparam=forward lookup=no" "$@"
    [ "$(id -u)" != 0 ] || set -- "$@" --dparam=uid=0 --dparam=gid=0
fi
exec {program} "$@"
"""


def main(task: str, installed: str, node: str, *given: str) -> None:
    """Make the first data, or run the server in place of this process."""
    _find_programs(Path(installed))
    if task == "setup":
        members, data = given
        if node == _first(members):
            _make_data(Path(installed), Path(data))
    else:
        client_host, client_port, peer_host, peer_port, members, data, *settings = given
        argv = [
            *server(Path(installed), data), *(f"--{setting}" for setting in settings),
            f"--bind-address={client_host}", f"--port={client_port}", f"--socket={SOCKET}",
            *replication(installed, node, peer_host, peer_port, members),
        ]  # fmt: skip
        argv += _joining(argv, node, members, Path(data))
        os.execv(argv[0], argv)  # noqa: S606 - the node is this process


def server(installed: Path, data: str) -> list[str]:
    """Return a server's command, with what is needed of it without a network, too."""
    return [
        str(installed / "usr/sbin/mariadbd"), "--no-defaults", f"--datadir={data}",
        f"--lc-messages-dir={installed / 'usr/share/mysql'}",
        *(["--user=root"] if os.geteuid() == 0 else []),
        # Several nodes share a machine of little memory.
        "--innodb-log-file-size=16M", "--innodb-buffer-pool-size=32M",
        "--performance-schema=OFF", "--skip-name-resolve", "--skip-grant-tables",
    ]  # fmt: skip


def replication(
    installed: str, node: str, peer_host: str, peer_port: str, members: str
) -> list[str]:
    """Return the arguments that make a server a node of the group."""
    addresses = ",".join(member.partition("=")[2] for member in members.split(","))
    transfer, increments = _free_ports(peer_host)
    options = (
        f"gmcast.listen_addr=tcp://{peer_host}:{peer_port}",
        f"ist.recv_addr={peer_host}:{increments}", *GCOMM,
    )  # fmt: skip
    return [
        "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-on=ON",
        f"--wsrep-provider={installed}/usr/lib/galera/libgalera_smm.so",
        "--wsrep-cluster-name=shaketable", f"--wsrep-cluster-address=gcomm://{addresses}",
        f"--wsrep-node-name={node}", f"--wsrep-node-address={peer_host}",
        "--wsrep-sst-method=rsync", f"--wsrep-sst-receive-address={peer_host}:{transfer}",
        f"--wsrep-provider-options={';'.join(options)}",
    ]  # fmt: skip


def _joining(argv: list[str], node: str, members: str, data: Path) -> list[str]:
    """Return how a node begins: it forms the group, or joins it with what it has."""
    if node == _first(members) and not FORMED.exists():
        FORMED.touch()
        return ["--wsrep-new-cluster"]
    if not (data / "ibdata1").exists():
        # Nodes that find each other first, without data, are slow to agree with the one with it.
        _await_another(node, members)
        return []
    # What InnoDB has committed; grastate.dat does not say it after a crash.
    said = subprocess.run(
        [*argv, "--wsrep-recover", "--disable-log-error"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=RECOVERY_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    sys.stderr.write(said.stderr)
    found = POSITION.findall(said.stderr)
    return [f"--wsrep-start-position={found[-1]}"] if found and found[-1] != NOWHERE else []


def _make_data(installed: Path, data: Path) -> None:
    """Fill an empty data folder: the server's own tables, and those of clients."""
    tables = (installed / SYSTEM_TABLES).read_text(encoding="utf-8")
    statements = f"CREATE DATABASE mysql;\nUSE mysql;\n{tables}\n{SCHEMA}"
    done = subprocess.run(
        [*server(installed, str(data)), "--bootstrap"], input=statements, text=True,
        capture_output=True, timeout=RECOVERY_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"the first data cannot be made: {done.stderr.strip().splitlines()[-1:]}")


def _find_programs(installed: Path) -> None:
    """Let the scripts that transfer state find their programs, which are not installed."""
    here = Path("bin").absolute()
    here.mkdir(exist_ok=True)
    wrapper = here / "rsync"
    wrapper.write_text(RSYNC.format(program=installed / "usr/bin/rsync"), encoding="utf-8")
    wrapper.chmod(0o755)
    usual = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{here}:{installed}/usr/bin:{installed}/usr/sbin:{usual}"
    libraries = sorted(map(str, (installed / "usr/lib").glob("*-linux-*")))
    others = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = ":".join([*libraries, *([others] if others else [])])


def _free_ports(host: str) -> tuple[int, int]:
    """Return two ports on which the node can be sent state."""
    with socket.create_server((host, 0)) as one, socket.create_server((host, 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def _await_another(node: str, members: str) -> None:
    """Wait until another node accepts connections, or long enough."""
    others = dict(member.split("=") for member in members.split(","))
    del others[node]
    until_s = time.monotonic() + FORMED_TIMEOUT_S
    while time.monotonic() < until_s:
        for host, _, port in (address.rpartition(":") for address in others.values()):
            with contextlib.suppress(OSError):
                socket.create_connection((host, int(port)), timeout=RETRY_S).close()
                return
        time.sleep(RETRY_S)


def _first(members: str) -> str:
    return members.partition("=")[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
