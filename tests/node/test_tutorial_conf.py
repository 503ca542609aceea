"""The tutorials' broker-n0.conf starts a node as it stands, but for its paths."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shaketable.system.client.group import BrokerGroupClient
from tests.support.node_group import ROOT, NodeGroup, until

pytestmark = pytest.mark.e2e

CONF = """\
brokerClusterName = RaftCluster
brokerName=RaftNode00
listenPort=30911
namesrvAddr=127.0.0.1:9876
storePathRootDir=/tmp/rmqstore/node00
storePathCommitLog=/tmp/rmqstore/node00/commitlog
enableDLegerCommitLog=true
dLegerGroup=RaftNode00
dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913
## must be unique
dLegerSelfId=n0
sendMessageThreadPoolNums=16
"""
"""distribution/conf/dledger/broker-n0.conf of Apache RocketMQ; n1 and n2 differ in four places."""
MEMBERS = {"n0": 30911, "n1": 30921, "n2": 30931}
PEER_PORTS = {"n0": 40911, "n1": 40912, "n2": 40913}
PORT_TIMEOUT_S = 60.0
STARTS_MAX = 5
STARTED_TIMEOUT_S = 20.0
PORT_TAKEN = "Address already in use"


def conf_of(name: str, folder: Path) -> str:
    """The member's file as RocketMQ ships it, with another place for its store."""
    text = CONF.replace("listenPort=30911", f"listenPort={MEMBERS[name]}")
    text = text.replace("dLegerSelfId=n0", f"dLegerSelfId={name}")
    return text.replace("/tmp/rmqstore/node00", str(folder / "rmqstore" / name))


def wait_until_free(port: int) -> None:
    """The file's ports are where systems find ports for outgoing connections, too."""
    deadline = time.monotonic() + PORT_TIMEOUT_S
    while True:
        with socket.socket() as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                return attempt.bind(("127.0.0.1", port))
            except OSError:
                assert time.monotonic() < deadline, f"somebody else holds port {port}"
        time.sleep(0.1)


def start(group: NodeGroup, name: str) -> None:
    """Start a member, again where an outgoing connection of others took its port just then."""
    conf = group.folder / f"broker-{name}.conf"
    conf.write_text(conf_of(name, group.folder))
    for _ in range(STARTS_MAX):
        wait_until_free(MEMBERS[name])
        wait_until_free(PEER_PORTS[name])
        with (group.folder / f"{name}.log").open("wb") as log:
            group.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "shaketable.system.node", "-c", str(conf)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        if has_started(group, name):
            return
        assert PORT_TAKEN in group.log(name), group.log(name)
    raise AssertionError(group.log(name))


def has_started(group: NodeGroup, name: str) -> bool:
    """Wait until a member listens; False if it ended instead."""
    deadline = time.monotonic() + STARTED_TIMEOUT_S
    while "event=serving" not in group.log(name):
        if group.processes[name].poll() is not None:
            return False
        assert time.monotonic() < deadline, group.log(name)
        time.sleep(0.05)
    return True


def test_three_of_them_make_a_group(tmp_path: Path) -> None:
    group = NodeGroup(tmp_path)  # for its processes and stories alone
    group.client_ports.update(MEMBERS)
    try:
        for name in MEMBERS:
            start(group, name)

        async def story() -> None:
            leader = await group.leader()
            client: BrokerGroupClient = group.client()
            sent = await until(lambda: client.send("tutorial", 0, b"hello"), "a message is sent")
            assert sent.queue_offset == 0
            await group.caught_up(leader)

        group.tell(story)
        group.stop(*MEMBERS)
    finally:
        group.close()
        shutil.rmtree(tmp_path / "rmqstore", ignore_errors=True)  # data files of 1 GiB each
