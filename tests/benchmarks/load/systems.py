"""Broker groups to be loaded: started with the files' default sizes, ended whatever happens."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import trio

from shaketable.harness.runtime.processes.ports import find_free
from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from shaketable.system.client.group import BrokerGroupClient
from tests.benchmarks.load.producer import TOPIC
from tests.support.apache_servers import HOST, start_name_server
from tests.support.foreign_java import OPENED, java_in, servers
from tests.support.master_slave_nodes import MasterSlaveNodes
from tests.support.node_group import NodeGroup

NODES = ("n0", "n1", "n2")
DEFAULT_SIZES = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeIndex": str(160 << 20),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
}
LEADER_SECONDS_MAX = 120.0
APACHE_HEAP_MB = 1024


@dataclass
class System:
    """What runs: where producers send to, and the processes whose CPU time counts."""

    name: str
    address: tuple[str, int]
    broker: str
    pids: dict[str, int]
    folder: Path
    note: str


@contextmanager
def dledger(
    folder: Path, name: str = "dledger", *, checks_itself: bool = False
) -> Iterator[System]:
    """Our group of three nodes: a quorum has fsynced before an acknowledgement.

    `checks_itself`: its members check each of their steps, as in campaigns.
    """
    checks = {"shaketableInvariants": "true"} if checks_itself else {}
    group = NodeGroup(folder, *NODES, **DEFAULT_SIZES, **checks)
    try:
        group.start(*NODES)
        addresses = {node: group.client_address(node) for node in NODES}
        leader = trio.run(_taker, addresses)
        pids = {
            "leader" if node == leader else node: process.pid
            for node, process in group.processes.items()
        }
        yield System(name, addresses[leader], "g", pids, folder, "fsync before ack")
    finally:
        group.close()


@contextmanager
def _master_slave(folder: Path, name: str, role: str, slaves: int) -> Iterator[System]:
    """A master of ours with so many slaves; all of them flush before they answer."""
    names = ("master", *(f"slave-{number}" for number in range(1, slaves + 1)))
    nodes = MasterSlaveNodes(folder, *names, flushDiskType="SYNC_FLUSH", **DEFAULT_SIZES)
    try:
        nodes.start("master", brokerRole=role)
        for number, slave in enumerate(names[1:], 1):
            master = nodes.ha_address("master")
            nodes.start(slave, brokerRole="SLAVE", brokerId=str(number), haMasterAddress=master)
        address = nodes.client_address("master")
        trio.run(_taker, {"master": address})
        pids = {one: process.pid for one, process in nodes.processes.items()}
        yield System(name, address, "broker-a", pids, folder, f"{role}, SYNC_FLUSH")
    finally:
        nodes.close()


@contextmanager
def apache_dledger(folder: Path) -> Iterator[System]:
    """Apache RocketMQ 5.3.3 with three DLedger brokers; it acknowledges from the page cache."""
    ports = find_free(6)
    peers = ";".join(f"{name}-{HOST}:{port}" for name, port in zip(NODES, ports[:3], strict=True))
    with java_in(folder) as java:
        name_server = start_name_server(java)
        processes: dict[str, subprocess.Popen[bytes]] = {}
        addresses: dict[str, tuple[str, int]] = {}
        try:
            for name, port in zip(NODES, ports[3:], strict=True):
                addresses[name] = (HOST, port)
                processes[name] = _start_apache(
                    folder,
                    name,
                    f"brokerName=apache\nlistenPort={port}\nnamesrvAddr={name_server}\n"
                    f"enableDLegerCommitLog=true\ndLegerGroup=apache\ndLegerPeers={peers}\n"
                    f"dLegerSelfId={name}\n",
                )
            leader = trio.run(_taker, addresses)
            pids = {
                "leader" if name == leader else name: process.pid
                for name, process in processes.items()
            }
            yield System(
                "apache-dledger", addresses[leader], "apache", pids, folder, "ack from page cache"
            )
        finally:
            for process in processes.values():
                process.kill()
            for process in processes.values():
                process.wait()


SYSTEMS: dict[str, Callable[[Path], AbstractContextManager[System]]] = {
    "dledger": dledger,
    "dledger-checked": lambda folder: dledger(folder, "dledger-checked", checks_itself=True),
    "multi-master": lambda folder: _master_slave(folder, "multi-master", "ASYNC_MASTER", 0),
    "async-replication": lambda folder: _master_slave(
        folder, "async-replication", "ASYNC_MASTER", 1
    ),
    "sync-double-write": lambda folder: _master_slave(
        folder, "sync-double-write", "SYNC_MASTER", 1
    ),
    "apache-dledger": apache_dledger,
}


def _start_apache(folder: Path, name: str, more: str) -> subprocess.Popen[bytes]:
    store = folder / name
    config = folder / f"{name}.conf"
    config.write_text(
        f"brokerClusterName=DefaultCluster\nbrokerId=-1\nbrokerIP1={HOST}\n"
        f"storePathRootDir={store}\nstorePathCommitLog={store}/commitlog\n"
        f"sendMessageThreadPoolNums=4\ntimerWheelEnable=false\n{more}"
    )
    home = folder / f"home-{name}"
    home.mkdir()
    made = servers()
    with (folder / f"{name}.out").open("wb") as out:
        return subprocess.Popen(
            [
                "java", f"-Xms{APACHE_HEAP_MB}m", f"-Xmx{APACHE_HEAP_MB}m", *OPENED,
                f"-Duser.home={home}", "-cp", f"{made / 'classes'}:{made / 'lib'}/*",
                "org.apache.rocketmq.broker.BrokerStartup", "-c", str(config),
            ],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            cwd=home, env={**os.environ, "ROCKETMQ_HOME": str(home)},
        )  # fmt: skip


async def _taker(addresses: dict[str, tuple[str, int]]) -> str:
    """Return who takes messages: the group's leader, or one master."""
    with trio.fail_after(LEADER_SECONDS_MAX):
        while True:
            for name, address in addresses.items():
                client = BrokerGroupClient({name: address}, timeout_s=2.0, rng=Random(0))
                try:
                    await client.send(TOPIC, 0, b"first")
                except (RefusedError, OutcomeUnknownError):
                    await trio.sleep(0.2)
                else:
                    return name
                finally:
                    client.close()
