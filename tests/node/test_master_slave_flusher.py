"""What a plain log's flusher says, and when: written, flushed, full, failed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

import pytest
import trio

from shaketable.system.master_slave.core import MasterSlaveConfig
from shaketable.system.node.machine import Machine, SystemClock
from shaketable.system.node.master_slave.assembly import MasterSlaveFlusher
from shaketable.system.node.node import WriteHooks
from shaketable.system.raft.protocol import Append, Write
from shaketable.system.sim.disk import SimDisk
from shaketable.system.store.disk import DiskFailed
from shaketable.system.store.plain_commit_log import PlainBuilder, PlainCommitLog

FILE_BYTES = 4096
Result = TypeVar("Result")


async def inline(work: Callable[[], Result]) -> Result:
    await trio.lowlevel.checkpoint()
    return work()


class Flushing:
    """A flusher on a simulated disk, and all that it said."""

    def __init__(self, *, is_sync_flush: bool, flush_interval_ms: float = 60_000.0) -> None:
        self.disk = SimDisk()
        self.log = PlainCommitLog.open(self.disk, "/s", "/s/commitlog", FILE_BYTES)
        self.said: list[tuple[str, int]] = []
        machine = Machine(self.disk, SystemClock(), Random, inline)
        config = MasterSlaveConfig(is_sync_flush=is_sync_flush, flush_interval_ms=flush_interval_ms)
        hooks = WriteHooks(
            lambda seq: self.said.append(("written", seq)),
            lambda is_full: self.said.append(("full", int(is_full))),
            self._before_install,
        )
        self.flusher = MasterSlaveFlusher(
            self.log, machine, config, hooks, lambda index: self.said.append(("flushed", index))
        )
        self.builder = PlainBuilder(self.log.end, 0, FILE_BYTES, bytes(8))
        self.seq = 0

    async def _before_install(self) -> None:
        self.said.append(("install", 0))

    def send(self, body: bytes) -> None:
        self.builder.add(b"t", 0, self.seq, body)
        writes: list[Write] = [Append(batch) for batch in self.builder.take()]
        self.seq += len(writes)
        self.flusher.add(writes, self.seq)

    async def until(self, *wanted: tuple[str, int]) -> None:
        with trio.fail_after(20):
            while not set(wanted) <= set(self.said):
                await trio.sleep(0.001)

    def run(self, story: Callable[[], object]) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.flusher.run)
                await story()  # type: ignore[misc]
                nursery.cancel_scope.cancel()

        trio.run(main)


def test_sync_flush_says_written_and_then_flushed() -> None:
    flushing = Flushing(is_sync_flush=True)

    async def story() -> None:
        flushing.send(b"a")
        await flushing.until(("flushed", flushing.builder.end.index))

    flushing.run(story)
    assert flushing.said == [("written", 1), ("flushed", flushing.log.end.index)]
    assert flushing.log.synced == flushing.log.end


def test_async_flush_waits_unless_somebody_needs_it_durable() -> None:
    flushing = Flushing(is_sync_flush=False)

    async def story() -> None:
        flushing.send(b"a")
        await flushing.until(("written", 1))
        assert flushing.log.synced != flushing.log.end
        with trio.fail_after(20):
            await flushing.flusher.until_durable()
        assert flushing.log.synced == flushing.log.end
        flushing.send(b"b")
        await flushing.until(("written", 2))

    flushing.run(story)
    assert flushing.flusher.is_idle
    trio.run(flushing.flusher.until_durable)  # at a clean stop nobody runs any more
    assert flushing.log.synced == flushing.log.end


def test_a_flush_that_fails_ends_the_node_and_is_never_said_done() -> None:
    flushing = Flushing(is_sync_flush=True)

    async def story() -> None:
        flushing.send(b"a")
        await flushing.until(("flushed", flushing.builder.end.index))
        flushing.disk.platter.sync_failures = 1
        flushing.send(b"b")
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        flushing.run(story)
    assert caught.group_contains(DiskFailed)
    assert [what for what, _ in flushing.said] == ["written", "flushed", "written"]
    with pytest.raises(DiskFailed):
        flushing.log.sync()


def test_what_a_full_disk_leaves_undone_is_tried_again() -> None:
    flushing = Flushing(is_sync_flush=True)
    platter = flushing.disk.platter

    async def story() -> None:
        flushing.send(bytes(3000))
        await flushing.until(("flushed", flushing.builder.end.index))
        platter.capacity_bytes = platter.used_bytes
        flushing.send(bytes(3000))
        await flushing.until(("full", 1))
        platter.capacity_bytes = None
        await flushing.until(("full", 0), ("flushed", flushing.builder.end.index))

    flushing.run(story)
    assert flushing.log.end.position > FILE_BYTES
