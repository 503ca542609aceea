"""One flusher: takes what is pending, writes it, makes it durable, says so (group commit).

The disk works aside (`DiskWork`), so that a slow fsync stops neither heartbeats nor clients
(THROUGHPUT.md rule 6). Nothing is said durable before `CommitLog.sync` has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from system.node.machine import Machine
from system.raft.protocol import Append, SaveState, Truncate, Write
from system.store.commit_log import CommitLog

MARK_LAG_MS = 50.0
CHECKPOINT_INTERVAL_MS = 3000.0


class Flusher:
    """Carries out writes in order. `on_synced(seq)` is called in the node's own thread."""

    def __init__(self, log: CommitLog, machine: Machine, on_synced: Callable[[int], None]) -> None:
        self._log = log
        self._clock = clock = machine.clock
        self._run_disk_work = machine.run_disk_work
        self._on_synced = on_synced
        self._writes: list[Write] = []
        self._write_seq = 0
        self._wake = trio.Event()
        self._marked_ms = clock.now_ms()
        self._mark_is_behind = False
        self._checkpoint_ms = clock.now_ms()
        self._checkpointed = log.committed_index

    def add(self, writes: list[Write], write_seq: int) -> None:
        """Queue writes; the last one has number `write_seq`."""
        self._writes += writes
        self._write_seq = write_seq
        self._wake.set()

    async def run(self, checkpoint_index: Callable[[], int]) -> None:
        """Flush until cancelled. Raises DiskFailed, DiskFull: the node must stop."""
        while True:
            if self._mark_is_behind:
                with self._clock.move_on_at(self._marked_ms + MARK_LAG_MS):
                    await self._wake.wait()
            else:
                await self._wake.wait()
            if self._writes:
                writes, self._writes = self._writes, []
                seq = self._write_seq
                self._wake = trio.Event()
                await self._run_disk_work(partial(self._carry_out, writes))
                self._mark_is_behind = True
                self._on_synced(seq)
            await self._note_progress(checkpoint_index())

    async def _note_progress(self, checkpoint_index: int) -> None:
        """Move the synced-to mark and the checkpoint, which may both lag."""
        now_ms = self._clock.now_ms()
        if self._mark_is_behind and now_ms - self._marked_ms >= MARK_LAG_MS:
            await self._run_disk_work(self._log.advance_mark)
            self._marked_ms = now_ms
            self._mark_is_behind = False
        due = now_ms - self._checkpoint_ms >= CHECKPOINT_INTERVAL_MS
        if due and checkpoint_index > self._checkpointed:
            await self._run_disk_work(partial(self._log.save_checkpoint, checkpoint_index))
            self._checkpoint_ms = now_ms
            self._checkpointed = checkpoint_index

    def _carry_out(self, writes: list[Write]) -> None:
        must_sync = False
        for write in writes:
            if isinstance(write, Append):
                self._log.append(write.batch)
                must_sync = True
            elif isinstance(write, Truncate):
                self._log.truncate(write.end_index)
            else:
                assert isinstance(write, SaveState)
                self._log.save_state(write.term, write.voted_for)
        if must_sync:
            self._log.sync()
