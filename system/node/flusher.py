"""Group commit: write all pending entries, sync once, then report them durable.

Disk work runs off the event loop (`DiskWork`), so that a slow fsync delays neither heartbeats nor
clients (THROUGHPUT.md rule 6). Writes are reported durable only after `LogWriter.carry_out`
returned: entries are then as durable as the ack policy requires, term and vote always synced.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import trio

from shaketable.system.node.machine import Machine
from shaketable.system.raft.protocol import Install, Write
from shaketable.system.store.disk import DiskFull
from shaketable.system.store.log_writer import FLUSH_INTERVAL_MS, LogWriter

WATERMARK_LAG_MS = 50.0
CHECKPOINT_INTERVAL_MS = 3000.0
FULL_RETRY_MS = 200.0
"""How soon writes are retried after the disk was full."""


class Flusher:
    """Carries out writes in order.

    `on_synced(seq)` and `on_disk_full(is_full)` are called in the node's thread.
    `checkpoint_index()` returns up to which index the log is committed and durable.
    `before_install()` is awaited before a snapshot replaces the log.
    """

    def __init__(
        self,
        writer: LogWriter,
        machine: Machine,
        on_synced: Callable[[int], None],
        on_disk_full: Callable[[bool], None],
        checkpoint_index: Callable[[], int],
        before_install: Callable[[], Awaitable[None]],
    ) -> None:
        self._writer = writer
        self._clock = machine.clock
        self._run_disk_work = machine.run_disk_work
        self._on_synced = on_synced
        self._on_disk_full = on_disk_full
        self._checkpoint_index = checkpoint_index
        self._before_install = before_install
        self._writes: list[Write] = []
        self._write_seq = 0
        self._synced_seq = 0
        self._advanced = trio.Event()
        self._wake = trio.Event()
        self._is_full = False
        now_ms = self._clock.now_ms()
        self._retry_due_ms = math.inf
        self._watermark_due_ms = math.inf
        self._sync_due_ms = math.inf
        self._checkpoint_due_ms = now_ms + CHECKPOINT_INTERVAL_MS
        self._checkpointed = writer.log.committed_index

    def add(self, writes: Sequence[Write], write_seq: int) -> None:
        """Queue writes with consecutive numbers, of which the last is `write_seq`."""
        self._writes += writes
        self._write_seq = write_seq
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is carried out."""
        return self._synced_seq >= self._write_seq

    async def until_durable(self) -> None:
        """Wait until everything added so far is carried out."""
        seq = self._write_seq
        while self._synced_seq < seq:
            await self._advanced.wait()

    async def run(self) -> None:
        """Flush until cancelled. Raises DiskFailed: the node must stop."""
        while True:
            due_ms = min(
                self._retry_due_ms,
                self._watermark_due_ms,
                self._sync_due_ms,
                self._checkpoint_due_ms,
            )
            with self._clock.move_on_at(due_ms):
                await self._wake.wait()
            self._wake = trio.Event()
            now_ms = self._clock.now_ms()
            if self._writes and (not self._is_full or now_ms >= self._retry_due_ms):
                await self._flush()
            await self._save_progress(self._clock.now_ms())

    async def _flush(self) -> None:
        """Carry out all pending writes; keep those that a full disk leaves undone for a retry."""
        writes, self._writes = self._writes, []
        seq = self._write_seq
        if any(isinstance(write, Install) for write in writes):
            await self._before_install()
        left = await self._run_disk_work(partial(self._writer.carry_out, writes))
        self._writes[:0] = left  # before those queued meanwhile: writes keep their order
        now_ms = self._clock.now_ms()
        self._watermark_due_ms = min(self._watermark_due_ms, now_ms + WATERMARK_LAG_MS)
        if self._writer.ack == "page-cache":
            self._sync_due_ms = min(self._sync_due_ms, now_ms + FLUSH_INTERVAL_MS)
        if len(left) < len(writes):
            self._synced_seq = seq - len(left)
            self._advanced.set()
            self._advanced = trio.Event()
            self._on_synced(self._synced_seq)
        self._retry_due_ms = now_ms + FULL_RETRY_MS if left else math.inf
        if bool(left) != self._is_full:
            self._is_full = bool(left)
            self._on_disk_full(self._is_full)

    async def _save_progress(self, now_ms: float) -> None:
        """Sync, advance the durable watermark and save the committed index, when each is due.

        The sync is only due with the page-cache policy, where acknowledged data may be unsynced.
        Recovery takes damage after the watermark for a torn tail and writes what is after it
        again, so the watermark may lag; the committed index is only a hint.
        """
        if now_ms >= self._sync_due_ms:
            self._sync_due_ms = math.inf
            await self._run_disk_work(self._writer.sync)
        if now_ms >= self._watermark_due_ms:
            self._watermark_due_ms = math.inf
            await self._run_disk_work(self._writer.advance_watermark)
        if now_ms >= self._checkpoint_due_ms:
            self._checkpoint_due_ms = now_ms + CHECKPOINT_INTERVAL_MS
            index = self._checkpoint_index()
            if index > self._checkpointed:
                self._checkpointed = index
                await self._run_disk_work(partial(self._save_checkpoint, index))

    def _save_checkpoint(self, index: int) -> None:
        with suppress(DiskFull):  # only a hint for recovery; the next one replaces it
            self._writer.log.save_checkpoint(index)
