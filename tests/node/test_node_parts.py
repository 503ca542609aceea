"""The shell's parts by themselves: the flusher on a full disk, peers that come and go."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from functools import partial
from random import Random
from unittest.mock import patch

import pytest
import trio
import trio.testing

from shaketable.system.node.connections.link import KEEPALIVE_OPTIONS
from shaketable.system.node.disks.real_disk import RealDisk, StoreInUseError, lock_store
from shaketable.system.node.flusher import Flusher
from shaketable.system.node.machine import Machine, SystemClock, sleep
from shaketable.system.node.members import UNACKNOWLEDGED_MAX_MS, Peers
from shaketable.system.node.node import Checkpointer
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Install, LogEnd, SaveState, Snapshot, Write
from shaketable.system.store.disk import DiskFull


class Writer:
    """A log writer that carries out at most `room` writes in all."""

    ack = "fsync"

    def __init__(self, room: int) -> None:
        self.room = room
        self.done: list[Write] = []
        self.log = self
        self.committed_index = -1

    def carry_out(self, writes: Sequence[Write]) -> Sequence[Write]:
        taken = writes[: max(0, self.room - len(self.done))]
        self.done += taken
        return writes[len(taken) :]

    def advance_watermark(self) -> None:
        pass


async def inline(work):
    await trio.lowlevel.checkpoint()
    return work()


MACHINE = Machine(RealDisk(), SystemClock(), Random, inline)
WRITES: list[Write] = [SaveState(term, "n0") for term in range(1, 5)]


def test_what_a_full_disk_leaves_undone_is_kept_in_order_and_tried_again():
    writer = Writer(2)
    synced: list[int] = []
    full: list[bool] = []

    async def main() -> None:
        flusher = Flusher(
            writer, MACHINE, synced.append, full.append, lambda: -1, trio.lowlevel.checkpoint
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flusher.run)
            flusher.add(WRITES[:3], 3)
            while not full:
                await trio.sleep(0.001)
            assert (synced, full, flusher.is_idle) == ([2], [True], False)
            flusher.add(WRITES[3:], 4)
            writer.room = 4
            await flusher.until_durable()
            assert flusher.is_idle
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert (writer.done, synced, full) == (WRITES, [2, 4], [True, False])


def test_the_log_is_replaced_only_when_nothing_of_the_old_one_is_being_saved():
    writer = Writer(9)

    async def main() -> None:
        is_saved = trio.Event()
        flusher = Flusher(writer, MACHINE, lambda _: None, pytest.fail, lambda: -1, is_saved.wait)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flusher.run)
            flusher.add([Install(Snapshot(LogEnd(), Membership(()), -1, b""))], 1)
            await trio.testing.wait_all_tasks_blocked()
            assert writer.done == []
            is_saved.set()
            await flusher.until_durable()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert len(writer.done) == 1


class ImpatientClock(SystemClock):
    """Whoever waits for longer than a second waits for ever."""

    def move_on_at(self, due_ms: float):
        is_soon = due_ms - self.now_ms() < 1000
        return super().move_on_at(due_ms) if is_soon else trio.CancelScope()


class Checkpointed:
    """A broker and its files: one checkpoint after the other; the second finds no room."""

    def __init__(self) -> None:
        self.tried = 0
        self.saved: list[int] = []

    def take_checkpoint(self) -> int:
        self.tried += 1
        return self.tried

    def save(self, checkpoint: int) -> None:
        if checkpoint == 2:
            raise DiskFull("no space left on device")

    def checkpointed(self, checkpoint: int) -> None:
        self.saved.append(checkpoint)


def test_a_checkpoint_that_is_due_early_is_saved_early_and_told_of():
    both = Checkpointed()
    machine = Machine(RealDisk(), ImpatientClock(), Random, inline)
    told: list[trio.Event] = [trio.Event(), trio.Event()]

    def on_saved() -> None:
        told[len(both.saved) - 1].set()

    async def main() -> None:
        checkpointer = Checkpointer(both, both, machine, trio.lowlevel.checkpoint, on_saved)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(checkpointer.run)
            checkpointer.checkpoint_soon()
            await told[0].wait()
            while both.tried < 2:
                checkpointer.checkpoint_soon()
                await trio.sleep(0.001)
            assert both.saved == [1]
            checkpointer.checkpoint_soon()
            await told[1].wait()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert both.saved == [1, 3]


def test_connections_follow_the_membership():
    async def main() -> None:
        came: list[str] = []
        gone: list[str] = []

        def server(name: str):
            async def serve(stream: trio.SocketStream) -> None:
                came.append(name)
                while await stream.receive_some(10):
                    pass
                gone.append(name)

            return serve

        async with trio.open_nursery() as nursery:
            ports = {}
            for name in ("a", "b"):
                (listener,) = await nursery.start(
                    partial(trio.serve_tcp, server(name), 0, host="127.0.0.1")
                )
                ports[name] = listener.socket.getsockname()[1]
            peers = Peers(SystemClock(), {"a": ("127.0.0.1", ports["a"])})
            nursery.start_soon(peers.run)
            while came != ["a"]:
                await trio.sleep(0.01)
            peers.keep({"b": ("127.0.0.1", ports["b"])})
            while came != ["a", "b"] or gone != ["a"]:
                await trio.sleep(0.01)
            peers.send("a", b"nobody")  # dropped
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_clock_moves_on_what_waits_on_it():
    async def main() -> None:
        clock = SystemClock()
        with clock.move_on_at(clock.now_ms() - 5) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
        before_ms = clock.now_ms()
        await sleep(clock, 3)
        assert clock.now_ms() - before_ms >= 3

    trio.run(main)


def test_a_store_folder_is_locked_once(tmp_path):
    held = lock_store(tmp_path / "store")
    with pytest.raises(StoreInUseError, match="is in use by another process"):
        lock_store(tmp_path / "store")
    os.close(held)
    os.close(lock_store(tmp_path / "store"))


def test_a_name_that_cannot_even_be_looked_up_ends_nothing():
    """It came from an operator, or from a stranger, and stands in every member's list."""

    async def main() -> None:
        tries: list[str] = []
        real = trio.open_tcp_stream

        async def open_and_note(host: str, port: int) -> trio.SocketStream:
            tries.append(host)
            return await real(host, port)

        peers = Peers(SystemClock(), {"a": ("no..name", 1), "b": ("x" * 70, 1)})
        with patch.object(trio, "open_tcp_stream", open_and_note):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peers.run)
                while len(tries) < 4:
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_machine_that_falls_silent_is_given_up_by_both_sides():
    """The kernel does it, where it is told to: nothing else ever ends a half-open connection."""

    async def main() -> None:
        async def serve(stream: trio.SocketStream) -> None:
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            peers = Peers(SystemClock(), {"a": listener.socket.getsockname()[:2]})
            nursery.start_soon(peers.run)
            while not peers._links:
                await trio.sleep(0.01)
            sock = peers._links["a"].sock
            limit_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert limit_ms == UNACKNOWLEDGED_MAX_MS
            for level, name, value in KEEPALIVE_OPTIONS:
                assert sock.getsockopt(level, name) == value
            nursery.cancel_scope.cancel()

    trio.run(main)
