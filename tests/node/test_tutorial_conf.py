"""The tutorials' broker-n0.conf starts a node as it stands, but for its paths."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from system.client.group import BrokerGroupClient
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


def conf_of(name: str, folder: Path) -> str:
    """The member's file as RocketMQ ships it, with another place for its store."""
    text = CONF.replace("listenPort=30911", f"listenPort={MEMBERS[name]}")
    text = text.replace("dLegerSelfId=n0", f"dLegerSelfId={name}")
    return text.replace("/tmp/rmqstore/node00", str(folder / "rmqstore" / name))


def test_three_of_them_make_a_group(tmp_path: Path) -> None:
    group = NodeGroup(tmp_path)  # for its processes and stories alone
    group.client_ports.update(MEMBERS)
    try:
        for name in MEMBERS:
            conf = tmp_path / f"broker-{name}.conf"
            conf.write_text(conf_of(name, tmp_path))
            with (tmp_path / f"{name}.log").open("ab") as log:
                group.processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "system.node", "-c", str(conf)],
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                )

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
