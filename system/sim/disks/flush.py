"""A simulated node's flusher: group commit on virtual time, in the order of `system.node.flusher`.

All pending writes are taken together; they are carried out when the disk's time has passed, and
only then reported durable. A crash in between leaves the disk in the middle of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from shaketable.system.raft.protocol import Write
from shaketable.system.sim.disks.disk import PowerLoss
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint, CheckpointFiles
from shaketable.system.store.disk import DiskFull, StoreError
from shaketable.system.store.log_writer import FLUSH_INTERVAL_MS, LogWriter

if TYPE_CHECKING:
    from shaketable.system.sim.member import SimMember

CHECKPOINT_PAUSE_MS = 100.0
"""Minimum time between two checkpoints, where the broker asks for an early one."""
KEY_CHECK_MS = 3000.0
FULL_RETRY_MS = 200.0
"""How soon writes that found the disk full are retried."""


class Flush:
    """The flusher of one incarnation."""

    def __init__(self, member: SimMember, writer: LogWriter, files: CheckpointFiles) -> None:
        self._member = member
        self._world = member.world
        self._writer = writer
        self._files = files
        self._incarnation = member.incarnation
        self._writes: list[Write] = []
        self._write_seq = 0
        self._in_flight: Sequence[Write] = ()
        self._is_busy = False
        self._is_full = False
        self._waiting_since_ms = float("inf")
        self._watermark_lags = False
        self._is_timed = False
        self._watermark_ms = self._checkpoint_ms = self._synced_ms = self._world.heap.now_ms
        self._checkpointed = writer.log.committed_index
        self._checkpoint: tuple[int, BrokerCheckpoint] | None = None
        self._is_soon = False
        self._keys_checked_ms = float("-inf")

    def add(self, writes: list[Write], write_seq: int) -> None:
        """Queue writes; the last one has number `write_seq`."""
        if not self._is_busy:
            self._waiting_since_ms = self._world.heap.now_ms
        self._writes += writes
        self._write_seq = write_seq
        if not self._is_busy:
            self._start()

    @property
    def waiting_ms(self) -> float:
        """How long, at least, the oldest write has waited; negative if there is none."""
        return self._world.heap.now_ms - self._waiting_since_ms

    def forget_checkpoint(self) -> None:
        """Drop the pending checkpoint: its state was replaced by a snapshot."""
        self._checkpoint = None

    def checkpoint_soon(self) -> None:
        """Take a checkpoint soon: the broker's backlog for it is filling up."""
        if not self._is_soon:
            self._is_soon = True
            heap = self._world.heap
            due_ms = max(heap.now_ms, self._checkpoint_ms + CHECKPOINT_PAUSE_MS)
            heap.push(due_ms, self._checkpoint_now)

    def _checkpoint_now(self) -> None:
        member = self._member
        if self._incarnation != member.incarnation or member.postponed(self._checkpoint_now):
            return
        self._world.acting = member
        if not self._is_busy:  # else the write in flight takes it when done
            self._note_progress()
            member.pump()

    def finish(self) -> Sequence[Write]:
        """Stop cleanly: carry out the writes in flight, save what may be saved.

        Returns the writes that were in flight. Raises DiskFailed, PowerLoss.
        """
        writes = self._in_flight
        if self._is_busy:
            self._writer.carry_out(writes)
        else:
            self._take_checkpoint()
        log = self._writer.log
        with suppress(DiskFull):  # all of these are only hints
            log.save_checkpoint(self._member.core.ledger.checkpoint_index)
            log.advance_watermark()
        self._files.close()
        log.close()
        return writes

    def check_keys(self, checkpoint: BrokerCheckpoint) -> None:
        """Check now and then whether the key index finds what a checkpoint covers."""
        world = self._world
        if world.key_queries is None or world.heap.now_ms < self._keys_checked_ms + KEY_CHECK_MS:
            return
        self._keys_checked_ms = world.heap.now_ms
        begin = max(checkpoint.start_position, self._member.log.start.position)
        world.counts.keys_found += world.key_queries.check(
            self._files.keys, begin, checkpoint.applied_position
        )

    def abort(self, operations: int) -> Sequence[Write]:
        """Kill the process: up to `operations` disk operations of the flush still happen.

        Returns the writes of which some may have happened.
        """
        if self._is_busy and not self._member.disk.is_dead:
            platter = self._member.disk.platter
            platter.stop_at = platter.operations + operations
            # The rest fails, and no caller waits for the result any more.
            with suppress(PowerLoss, StoreError):
                self._writer.carry_out(self._in_flight)
        return self._in_flight

    # ---- writes -----------------------------------------------------------------------

    def _start(self) -> None:
        member = self._member
        heap, settings = self._world.heap, self._world.settings
        self._is_busy = True
        self._in_flight, self._writes = self._writes, []
        took_ms = settings.sync_ms + settings.sync_jitter_ms * member.disk_rng.random()
        begin_ms = max(heap.now_ms, member.stalled_until_ms)
        at_ms = begin_ms + took_ms * member.slow_factor
        if at_ms > member.slow_until_ms + took_ms:  # after the fault the disk has its usual speed
            at_ms = max(begin_ms, member.slow_until_ms) + took_ms
        heap.push(at_ms, self._done, self._write_seq)

    def _done(self, write_seq: int) -> None:
        member, world = self._member, self._world
        if self._incarnation != member.incarnation or member.postponed(self._done, write_seq):
            return
        if world.heap.now_ms < member.stalled_until_ms:
            world.heap.push(member.stalled_until_ms, self._done, write_seq)
            return
        world.acting = member
        writes = self._in_flight
        left = self._writer.carry_out(writes)
        self._in_flight = ()
        self._waiting_since_ms = world.heap.now_ms if self._writes else float("inf")
        done = writes[: len(writes) - len(left)]
        world.invariants.synced(member.shadow, done)
        world.trace.event(world.heap.now_ms, member.name, write_seq, len(done))
        if world.trace.write is not None:
            text = f"synced {len(done)} writes, log ends at {member.log.end.index}"
            world.trace.line(world.heap.now_ms, member.name, text)
        self._watermark_lags = True
        durable_seq = write_seq - len(left)
        if done:
            member.broker.synced(durable_seq, member.local_ms())
        self._save_checkpoint(durable_seq)
        self._note_progress()
        self._is_busy = False
        self._handle_full_disk(left)
        member.pump()
        if self._writes and not self._is_busy:
            self._start()

    def _handle_full_disk(self, left: Sequence[Write]) -> None:
        """Keep in order the writes that a full disk refused, and retry them a little later."""
        member, heap = self._member, self._world.heap
        if left:
            self._writes[:0] = left
            self._is_busy = True
            heap.push(heap.now_ms + FULL_RETRY_MS, self._try_again)
        if bool(left) != self._is_full:
            self._is_full = bool(left)
            member.broker.disk_full(self._is_full, member.local_ms())

    def _try_again(self) -> None:
        member = self._member
        if self._incarnation == member.incarnation and not member.postponed(self._try_again):
            self._start()

    # ---- hints, which may lag --------------------------------------------------------

    def _note_progress(self) -> None:
        """Advance the durable watermark and save checkpoints; both may lag."""
        heap, settings = self._world.heap, self._world.settings
        now_ms = heap.now_ms
        if self._writer.ack == "page-cache" and now_ms - self._synced_ms >= FLUSH_INTERVAL_MS:
            self._writer.sync()
            self._synced_ms = now_ms
        if self._watermark_lags:
            due_ms = self._watermark_ms + settings.mark_lag_ms
            if now_ms >= due_ms:
                self._writer.advance_watermark()
                self._watermark_ms = now_ms
                self._watermark_lags = False
            elif not self._is_timed:
                self._is_timed = True
                heap.push(due_ms, self._watermark_due)
        is_soon = self._is_soon and now_ms - self._checkpoint_ms >= CHECKPOINT_PAUSE_MS
        if is_soon or now_ms - self._checkpoint_ms >= settings.checkpoint_interval_ms:
            self._checkpoint_ms = now_ms
            self._is_soon = False
            self._take_checkpoint()

    def _take_checkpoint(self) -> None:
        """Save the committed index; take the broker's checkpoint, to be saved when durable."""
        core = self._member.core
        checkpoint_index = core.ledger.checkpoint_index
        if checkpoint_index > self._checkpointed:
            with suppress(DiskFull):  # it is a hint, and is saved again later
                self._member.log.save_checkpoint(checkpoint_index)
                self._checkpointed = checkpoint_index
        checkpoint = self._member.broker.take_checkpoint()
        if checkpoint is not None:
            self._checkpoint = self._write_seq, checkpoint
            if not self._writes:
                self._save_checkpoint(self._write_seq)

    def _save_checkpoint(self, durable_seq: int) -> None:
        """Save the pending checkpoint, once the writes handed out before it are durable."""
        if self._checkpoint is None or self._checkpoint[0] > durable_seq:
            return
        checkpoint = self._checkpoint[1]
        self._checkpoint = None
        with suppress(DiskFull):
            self._files.save(checkpoint)
            self._member.broker.checkpointed(checkpoint)
            self._world.counts.checkpoints += 1
            self.check_keys(checkpoint)
            self._member.step_soon()

    def _watermark_due(self) -> None:
        member = self._member
        if self._incarnation != member.incarnation or member.postponed(self._watermark_due):
            return
        self._world.acting = member
        self._is_timed = False
        if not self._is_busy:  # else the flush in flight advances the watermark
            self._note_progress()
