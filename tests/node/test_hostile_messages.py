"""What other members send, or make this one send, ends at most a connection."""

from __future__ import annotations

import socket
from pathlib import Path
from random import Random

import pytest
import trio

from system.node import wire
from system.node.assembly import assemble
from system.node.clock import SystemClock
from system.node.config import NodeConfig
from system.node.machine import Machine, in_disk_thread
from system.node.node import Node
from system.node.real_disk import RealDisk
from system.raft.batch import LogEnd
from system.raft.membership import Membership
from system.raft.protocol import Snapshot, SnapshotRequest, VoteRequest
from system.remoting.command import CommandError
from system.remoting.frame import FRAME_BYTES_MAX


def new_node(folder: Path) -> Node:
    peers = {"n0": ("127.0.0.1", 1), "n1": ("127.0.0.1", 2)}
    config = NodeConfig("n0", "g", peers, 3, folder, data_file_bytes=8192, index_file_bytes=320)
    return assemble(config, Machine(RealDisk(), SystemClock(), Random, in_disk_thread))


def test_a_snapshot_that_fits_no_frame_is_dropped_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = new_node(tmp_path)
    state = bytes(FRAME_BYTES_MAX)
    snapshot = Snapshot(LogEnd(3, 1, 99, 0), Membership(("n0", "n1")), -1, state)
    node._replication.send("n1", SnapshotRequest(1, "n0", snapshot, 0))
    (line,) = [record.message for record in caplog.records if "too_large" in record.message]
    assert "peer=n1" in line
    node._leave()


def test_what_came_in_front_of_a_bad_message_is_answered_at_once(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    good = VoteRequest(1, "n1", -1, -1, canvass=False)
    bad = VoteRequest(1, "n1", -1, -1, canvass=False)

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs, trio.socket.from_stdlib_socket(ours) as sock:
            theirs.sendall(wire.encode(good, "g") + wire.encode(bad, "another group"))
            with pytest.raises(CommandError, match="another group"):
                await node._replication._serve(_Stream(sock))  # type: ignore[arg-type]

    trio.run(main)
    assert node.broker.core.voted_for == "n1"
    assert node._dirty.is_set(), "the vote is written and said now, and not at the next timeout"
    node._leave()


class _Stream:
    """A stream of a socket that knows nothing of TCP."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.socket = _NoOptions(sock)


class _NoOptions:
    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.recv_into = sock.recv_into
        self.fileno = sock.fileno

    def setsockopt(self, *option: object) -> None:
        """A pair of sockets has none of TCP's."""
