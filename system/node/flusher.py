"""One flusher: takes what is pending, writes it, makes it durable, says so (group commit).

The disk works aside (`DiskWork`), so that a slow fsync stops neither heartbeats nor clients
(THROUGHPUT.md rule 6). Nothing is said durable before `LogWriter.carry_out` has returned.
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

MARK_LAG_MS = 50.0
CHECKPOINT_INTERVAL_MS = 3000.0
FULL_RETRY_MS = 200.0
"""How soon writes that found the disk full are tried again."""


class Flusher:
    """Carries out writes in order.

    `on_synced(seq)` and `on_disk_full(is_full)` are called in the node's own thread;
    `checkpoint_index()` is asked up to where the log is committed and durable, and
    `before_install()` is awaited before the log is replaced.
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
        self._mark_due_ms = math.inf
        self._sync_due_ms = math.inf
        self._checkpoint_due_ms = now_ms + CHECKPOINT_INTERVAL_MS
        self._checkpointed = writer.log.committed_index

    def add(self, writes: Sequence[Write], write_seq: int) -> None:
        """Queue writes; the last one has number `write_seq`, the ones before count down."""
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
                self._retry_due_ms, self._mark_due_ms, self._sync_due_ms, self._checkpoint_due_ms
            )
            with self._clock.move_on_at(due_ms):
                await self._wake.wait()
            self._wake = trio.Event()
            now_ms = self._clock.now_ms()
            if self._writes and (not self._is_full or now_ms >= self._retry_due_ms):
                await self._flush()
            await self._note_progress(self._clock.now_ms())

    async def _flush(self) -> None:
        """Carry out all that is pending, and keep what a full disk leaves undone."""
        writes, self._writes = self._writes, []
        seq = self._write_seq
        if any(isinstance(write, Install) for write in writes):
            await self._before_install()
        left = await self._run_disk_work(partial(self._writer.carry_out, writes))
        self._writes[:0] = left
        now_ms = self._clock.now_ms()
        self._mark_due_ms = min(self._mark_due_ms, now_ms + MARK_LAG_MS)
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

    async def _note_progress(self, now_ms: float) -> None:
        """Sync, move the synced-to mark and save the committed index, all of which may lag."""
        if now_ms >= self._sync_due_ms:
            self._sync_due_ms = math.inf
            await self._run_disk_work(self._writer.sync)
        if now_ms >= self._mark_due_ms:
            self._mark_due_ms = math.inf
            await self._run_disk_work(self._writer.advance_watermark)
        if now_ms >= self._checkpoint_due_ms:
            self._checkpoint_due_ms = now_ms + CHECKPOINT_INTERVAL_MS
            index = self._checkpoint_index()
            if index > self._checkpointed:
                self._checkpointed = index
                await self._run_disk_work(partial(self._save_checkpoint, index))

    def _save_checkpoint(self, index: int) -> None:
        with suppress(DiskFull):  # it is a hint, and comes again
            self._writer.log.save_checkpoint(index)
