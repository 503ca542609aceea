"""What other members send, or make this one send, ends at most a connection."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from shaketable.system.node.assembly import assemble
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.connections import wire
from shaketable.system.node.disks.real_disk import DiskThreads, RealDisk
from shaketable.system.node.machine import Machine, SystemClock
from shaketable.system.node.node import Node
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import LogEnd, Snapshot, SnapshotRequest, VoteRequest
from shaketable.system.remoting.command import FRAME_BYTES_MAX, CommandError


def new_node(folder: Path) -> Node:
    peers = {"n0": ("127.0.0.1", 1), "n1": ("127.0.0.1", 2)}
    config = NodeConfig("n0", "g", peers, 3, folder, data_file_bytes=8192, index_file_bytes=320)
    return assemble(config, Machine(RealDisk(), SystemClock(), Random, DiskThreads()))


def test_a_snapshot_that_fits_no_frame_is_dropped_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = new_node(tmp_path)
    state = bytes(FRAME_BYTES_MAX)
    snapshot = Snapshot(LogEnd(3, 1, 99, 0), Membership(("n0", "n1")), -1, state)
    node._replication.send("n1", SnapshotRequest(1, "n0", snapshot, 0))
    (line,) = [record.message for record in caplog.records if "too_large" in record.message]
    assert "peer=n1" in line
    node._close_files()


def test_what_came_in_front_of_a_bad_message_is_answered_at_once(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    good = VoteRequest(1, "n1", -1, -1, pre_vote=False)
    bad = VoteRequest(1, "n1", -1, -1, pre_vote=False)

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        theirs = await trio.testing.open_stream_to_socket_listener(listener)
        async with listener, theirs, trio.open_nursery() as nursery:
            nursery.start_soon(node._reception.run)
            ours = await listener.accept()
            await theirs.send_all(wire.encode(good, "g") + wire.encode(bad, "another group"))
            async with ours:
                with pytest.raises(CommandError, match="another group"):
                    await node._replication._serve(ours)  # type: ignore[attr-defined]
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert node.broker.core.voted_for == "n1"
    assert not node._flusher.is_idle, "the vote is written now, and not at the next timeout"
    node._close_files()
