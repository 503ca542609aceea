"""A member's own check of its steps and of what it calls durable, if broker.conf says so.

The rules are those of simulations (`system.invariants`), but for those of time: an effect may be
carried out long after it was decided. What is on the disk is known where unsynced writes are kept
in the process (`shaketableDisk=volatile`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.invariants.confirmed_reads import ConfirmedReads
from shaketable.system.invariants.durability import (
    Unsynced,
    check_carried_out,
    check_flushed,
    check_marked,
    check_sent,
    check_state,
    note_synced,
)
from shaketable.system.invariants.elections import LeaderStickiness
from shaketable.system.invariants.queues import (
    check_answered,
    check_bounds,
    check_progress,
    check_transfer,
    check_woken,
)
from shaketable.system.invariants.saved_files import check_checkpoint, check_snapshot
from shaketable.system.invariants.steps import Steps
from shaketable.system.invariants.ticks import Ticks
from shaketable.system.invariants.violated import Violated, as_invariant_error
from shaketable.system.mutants import Mutant
from shaketable.system.node.watched_broker import watched
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import Append, Message, Role, SaveState, Snapshot, Write
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.state_files import HardState

TICKS_LATE: Final = 3
"""A leader looks at its disk once in a heartbeat interval; so many are allowed."""


class SelfWatch:
    """A member that checks its own steps, and ends at the first that violates an invariant.

    `started_ms` is a time before its core was made, by the core's clock.
    """

    def __init__(self, name: str, started_ms: float) -> None:
        self.name = name
        self.reads = ConfirmedReads(name)
        self._ticks = Ticks(name)
        self._steps: Steps | None = None
        self._stickiness = LeaderStickiness(started_ms)
        self._writes: deque[Write] = deque()
        """Handed to the disk and not reported as carried out."""
        self._first_write: int | None = None
        self._carried_out = self._synced = 0
        """How many writes the disk has carried out, and how many it has reported."""
        self._waits: tuple[int, float] | None = None
        """The writes up to a number wait for the disk, since when."""
        self.durable_index = -1
        self.state = HardState()

    def started(self, core: RaftCore, state: HardState) -> None:
        """The member has recovered; all of its log, and `state`, is durable."""
        self.durable_index, self.state = core.ledger.durable_index, state
        self._steps = Steps(self.name, core, is_timely=False)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Judge no step that an error ended half way: the node ends of it."""
        try:
            yield
        except BaseException:
            self._steps = None
            raise

    def received(self, core: RaftCore, message: Message, now_ms: float) -> None:
        """Note what the member's answer has to fit."""
        self._stickiness.received(core, message, now_ms)
        if self._steps is not None:
            self._steps.heard(message)

    def handled(self) -> None:
        """Check what the member decided after an input. Raises InvariantError."""
        if self._steps is not None:
            with as_invariant_error():
                self._steps.handled()

    def ticked(self, broker: Broker, now_ms: float) -> None:
        """Check that nothing waits too long, or without a limit. Raises InvariantError."""
        self._ticks.ticked(now_ms)
        if self._steps is None:
            return
        core = broker.core
        assert isinstance(core, RaftCore), "this is a member of a group"
        with as_invariant_error():
            check_answered(self.name, broker, now_ms)
            check_woken(self.name, broker)
            check_bounds(self.name, broker, core)
            check_transfer(self.name, core, now_ms)
            if self._waits is not None:
                check_progress(self.name, core, now_ms - self._waits[1], now_ms)
            self._steps.ticked(now_ms)
            self._check_stalled(core, now_ms)

    def _check_stalled(self, core: RaftCore, now_ms: float) -> None:
        """A leader whose disk stalls steps down at a tick, however late (DLEDGER.md E15)."""
        if self._waits is None or core.role is not Role.LEADER:
            return
        config, waited_ms = core.config, now_ms - self._waits[1]
        if waited_ms > config.disk_stall_max_ms + TICKS_LATE * config.heartbeat_interval_ms:
            what = f"a write waits for {waited_ms:.0f} ms"
            raise Violated("stalled-disk-leads-not", what, self.name)

    def took(self, core: RaftCore, effects: BrokerEffects, now_ms: float, inputs: int) -> None:
        """Check a step. Raises InvariantError."""
        if effects.writes:
            if self._first_write is None:
                self._first_write = effects.write_seq - len(effects.writes) + 1
            self._writes.extend(effects.writes)
            if self._waits is None:
                self._waits = effects.write_seq, now_ms
        if self._steps is None:
            return
        stalled_ms = 1.0 if self._writes else 0.0  # for how long is not judged here
        with as_invariant_error():
            self._steps.stepped(
                effects.writes, effects.messages, now_ms, stalled_ms=stalled_ms, inputs=inputs
            )
            for peer, message in effects.messages:
                self._stickiness.check_vote(self.name, peer, message)
                check_sent(self, peer, message)
            self.reads.check(effects.replies)
            self._ticks.stepped(core, now_ms)

    def synced(self, write_seq: int, now_ms: float | None) -> None:
        """Note what is durable. Raises InvariantError: the disk has not seen it."""
        if self._first_write is None:
            return
        with as_invariant_error():
            check_carried_out(self.name, write_seq, self._first_write + self._carried_out - 1)
        done = write_seq - self._first_write + 1 - self._synced
        self._synced += done
        note_synced(self, [self._writes.popleft() for _ in range(done)])
        last_seq = self._first_write + self._synced - 1 + len(self._writes)
        if not self._writes or now_ms is None:
            self._waits = None
        elif self._waits is not None and write_seq >= self._waits[0]:
            self._waits = last_seq, now_ms

    def carried_out(self, count: int) -> None:
        """The disk has carried out so many writes more. Called in the disk's thread."""
        self._carried_out += count

    def saving(self, broker: Broker, checkpoint: BrokerCheckpoint) -> None:
        """Check what is about to be saved. Raises InvariantError."""
        with as_invariant_error():
            check_checkpoint(self.name, broker, checkpoint)

    def compacted(self, broker: Broker, snapshot: Snapshot) -> None:
        """Check a snapshot. Raises InvariantError."""
        with as_invariant_error():
            check_snapshot(self.name, broker, snapshot.state)

    def disk_full(self, is_full: bool) -> None:
        """Note how the disk is."""
        if self._steps is not None:
            self._steps.disk_full(is_full)


def self_checked(parts: Mutant, watch: SelfWatch, folder: str, unsynced: Unsynced) -> Mutant:
    """Return the same parts, with a broker and a log writer that `watch` checks.

    `folder` is the log's, `unsynced` returns from where on files of a folder are not on the disk.
    """

    class CheckedWriter(parts.log_writer):  # type: ignore[name-defined, misc]
        def carry_out(self, writes: Sequence[Write]) -> Sequence[Write]:
            left: Sequence[Write] = super().carry_out(writes)
            done = writes[: len(writes) - len(left)]
            watch.carried_out(len(done))
            if not left or any(isinstance(write, Append) for write in done):
                with as_invariant_error():
                    self._check(done)
            return left

        def advance_watermark(self) -> None:
            super().advance_watermark()
            with as_invariant_error():
                check_marked(watch.name, self.log, self._data())

        def _check(self, writes: Sequence[Write]) -> None:
            if self.ack == "fsync":
                check_flushed(watch.name, self.log.end.position, self._data())
            if any(isinstance(write, SaveState) for write in writes):
                check_state(watch.name, unsynced(folder))

        def _data(self) -> dict[str, int]:
            assert isinstance(self.log, CommitLog), "this is a member of a group"
            return unsynced(f"{folder}/data")

    return replace(watched(parts, watch), log_writer=CheckedWriter)
