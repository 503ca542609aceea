"""Saves the broker's checkpoint every few seconds, beside the log's writes and not among them.

Source: RocketMQ's FlushConsumeQueueService and DefaultMessageStore's StoreCheckpoint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio

from shaketable.system.broker.broker import Broker
from shaketable.system.node.clock import sleep
from shaketable.system.node.machine import Machine
from shaketable.system.store.broker_checkpoint import CheckpointFiles
from shaketable.system.store.disk import DiskFull

CHECKPOINT_INTERVAL_MS = 3000.0
CHECKPOINT_PAUSE_MS = 100.0
"""The least time between two, where the broker asks for them earlier."""


class Checkpointer:
    """Takes and saves the checkpoints of one broker.

    `until_durable()` waits until the writes that the broker handed out so far are durable;
    `on_saved()` is called when a checkpoint is saved: the broker may go on applying.
    """

    def __init__(
        self,
        broker: Broker,
        files: CheckpointFiles,
        machine: Machine,
        until_durable: Callable[[], Awaitable[None]],
        on_saved: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._files = files
        self._clock = machine.clock
        self._run_disk_work = machine.run_disk_work
        self._until_durable = until_durable
        self._on_saved = on_saved
        self._due = trio.Event()
        self._waiting = trio.CancelScope()
        self._saving = trio.Lock()

    async def run(self) -> None:
        """Save again and again, until cancelled. Raises DiskFailed."""
        while True:
            await sleep(self._clock, CHECKPOINT_PAUSE_MS)
            rest_ms = CHECKPOINT_INTERVAL_MS - CHECKPOINT_PAUSE_MS
            with self._clock.move_on_at(self._clock.now_ms() + rest_ms):
                await self._due.wait()
            self._due = trio.Event()
            with trio.CancelScope() as self._waiting:
                await self.save()

    async def save(self) -> None:
        """Save what is applied, if that is news. A full disk lets it come again later."""
        checkpoint = self._broker.take_checkpoint()
        if checkpoint is None:
            return
        await self._until_durable()
        async with self._saving:
            with suppress(DiskFull), trio.CancelScope(shield=True):
                await self._run_disk_work(partial(self._files.save, checkpoint))
                self._broker.checkpointed(checkpoint)
                self._on_saved()

    def hasten(self) -> None:
        """Save soon: what the broker may keep until then is filling up."""
        self._due.set()

    def forget(self) -> None:
        """What was taken is of a state that a snapshot replaces: it need not be saved."""
        self._waiting.cancel()

    async def until_idle(self) -> None:
        """Wait until nothing is being saved: what replaces the log must come after."""
        async with self._saving:
            pass

    def close(self) -> None:
        """Close the files."""
        self._files.close()
