"""Reports to the invariants what a node does, from between its broker and its shell.

`Watch` does so for a member of a group, `MasterSlaveWatch` for a broker without one. The classes of
the broker, and of what else is watched, are replaced like those of a planted bug
(`system.mutants.Mutant`); they pass on every input and every effect unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.invariants.confirmed_reads import ConfirmedReads
from shaketable.system.invariants.durability import check_reported, checked_commit
from shaketable.system.invariants.queues import (
    check_answered,
    check_appends,
    check_bounds,
    check_woken,
)
from shaketable.system.invariants.saved_files import SavedFiles, check_checkpoint, check_snapshot
from shaketable.system.invariants.steps import Steps
from shaketable.system.invariants.ticks import Ticks
from shaketable.system.invariants.violated import Violated
from shaketable.system.master_slave.core import MasterSlaveCore
from shaketable.system.master_slave.ha import HAError, MasterConnection
from shaketable.system.mutants import Mutant
from shaketable.system.node.master_slave.config_files import ConfigFiles
from shaketable.system.node.node import Node
from shaketable.system.node.watched_broker import watched
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import Append, Message, RoleChange, Snapshot, Write
from shaketable.system.sim.rules.invariants import Invariants
from shaketable.system.sim.rules.master_slave_invariants import (
    MasterSlaveInvariants,
    MasterSlaveShadow,
)
from shaketable.system.sim.rules.shadow import Shadow
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import StoreError
from shaketable.system.store.log_writer import WritableLog
from shaketable.system.store.plain_commit_log import PlainCommitLog


class Reporter(Protocol):
    """Receiver of a watch's reports."""

    def violated(self, found: Violated) -> None:
        """An invariant was violated: the run ends."""
        ...

    def served(self, broker: Broker) -> None:
        """The node's broker was ticked. Raises Violated."""
        ...

    def changed_role(self, change: RoleChange) -> None:
        """The node's role, term or leader changed."""
        ...

    def ordered(self, writes: Sequence[Write]) -> None:
        """The node is about to hand writes to its disk."""
        ...

    def received(self, role: str, message: Message) -> None:
        """The node is about to receive a message from another member."""
        ...


class Watch:
    """One incarnation of a node, as the invariants see it."""

    def __init__(self, name: str, invariants: Invariants, reporter: Reporter) -> None:
        self.shadow: Shadow | None = None
        self.writes: deque[tuple[int, Write]] = deque()
        """Handed to the disk and not reported as carried out, by number."""
        self.steps: Steps | None = None
        self.reads = ConfirmedReads(name)
        self._ticks = Ticks(name)
        self._stalled_since_ms = float("inf")
        self._name = name
        self._invariants = invariants
        self._reporter = reporter

    def started(self, node: Node, now_ms: float) -> None:
        """The node has recovered, at a time of its own clock."""
        core, log = node.broker.core, node.commit_log
        assert isinstance(core, RaftCore), "this is a member of a group"
        assert isinstance(log, CommitLog), "this is a member of a group"
        before = self._invariants.shadows.get(self._name)
        if before is not None:
            before.log = log  # for entries no longer in memory: the old log's disk is dead
        try:
            self.shadow = self._invariants.started(self._name, core, log, now_ms)
            self.steps = Steps(self._name, core)
        except Violated as found:
            self._reporter.violated(found)

    def took(self, core: RaftCore, effects: BrokerEffects, now_ms: float, inputs: int) -> None:
        """The broker's effects are about to be carried out."""
        shadow = self.shadow
        if shadow is None:
            return
        try:
            self._invariants.ordered(shadow, effects.writes)
            first = effects.write_seq - len(effects.writes) + 1
            self._reporter.ordered(effects.writes)
            if effects.writes and not self.writes:
                self._stalled_since_ms = now_ms
            self.writes.extend(enumerate(effects.writes, first))
            self._invariants.committed(shadow, core.ledger.commit_index)
            self._stepped(effects, now_ms, inputs)
            self.reads.check(effects.replies)
            self._ticks.stepped(core, now_ms)
            for peer, message in effects.messages:
                shadow.stickiness.check_vote(self._name, peer, message)
            for change in effects.role_changes:
                self._invariants.changed_role(shadow, change)
                self._reporter.changed_role(change)
        except Violated as found:
            self._reporter.violated(found)

    def _stepped(self, effects: BrokerEffects, now_ms: float, inputs: int) -> None:
        if self.steps is not None:
            stalled_ms = now_ms - self._stalled_since_ms
            self.steps.stepped(
                effects.writes, effects.messages, now_ms, stalled_ms=stalled_ms, inputs=inputs
            )

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Judge no step of a node any more that an error ended half way: the node ends of it."""
        try:
            yield
        except BaseException:
            self.steps = None
            raise

    def saving(self, broker: Broker, checkpoint: BrokerCheckpoint) -> None:
        """The broker gives a checkpoint to be saved."""
        self._check(partial(check_checkpoint, self._name, broker, checkpoint))

    def compacted(self, broker: Broker, snapshot: Snapshot) -> None:
        """The broker has replaced a part of its log by a snapshot."""
        self._check(partial(check_snapshot, self._name, broker, snapshot.state))

    def _check(self, check: Callable[[], None]) -> None:
        _reported(self._reporter.violated, check)

    def disk_full(self, is_full: bool) -> None:
        """The broker is told that its disk is full, or has room again."""
        if self.steps is not None:
            self.steps.disk_full(is_full)

    def synced(self, write_seq: int, now_ms: float | None) -> None:
        """Writes up to `write_seq` were carried out."""
        done: list[Write] = []
        while self.writes and self.writes[0][0] <= write_seq:
            done.append(self.writes.popleft()[1])
        if not self.writes:
            self._stalled_since_ms = float("inf")
        elif done and now_ms is not None:
            self._stalled_since_ms = now_ms
        if self.shadow is not None:
            self._invariants.synced(self.shadow, done)

    def received(self, core: RaftCore, message: Message, now_ms: float) -> None:
        """A message is about to be handled."""
        if self.shadow is not None:
            self.shadow.stickiness.received(core, message, now_ms)
        if self.steps is not None:
            self.steps.heard(message)
        self._reporter.received(core.role.value, message)

    def ended(self, *, loses_unsynced: bool) -> None:
        """The process is gone; writes in flight may have been carried out or not."""
        del loses_unsynced  # only what is durable counts here
        if self.shadow is not None:
            self.shadow.in_flight = tuple(write for _, write in self.writes)
            self.shadow.is_up = False
            self.shadow = self.steps = None

    def handled(self) -> None:
        """The core has handled one input."""
        if self.steps is not None:
            self._check(self.steps.handled)

    def ticked(self, broker: Broker, now_ms: float) -> None:
        """The node was ticked."""
        core = broker.core
        assert isinstance(core, RaftCore), "this is a member of a group"
        self._ticks.ticked(now_ms)
        try:
            check_answered(self._name, broker, now_ms)
            check_woken(self._name, broker)
            check_bounds(self._name, broker, core)
            if self.steps is not None:
                self.steps.ticked(now_ms)
            self._reporter.served(broker)
        except Violated as found:
            self._reporter.violated(found)

    def watched(self, parts: Mutant) -> Mutant:
        """Return the same parts, with a broker that reports its inputs and effects here."""
        return watched(parts, self)


# The files of a broker without a group.


Report = Callable[[Violated], None]


def watched_config_files(
    base: type[ConfigFiles], saved: SavedFiles, report: Report
) -> type[ConfigFiles]:
    """Return the files class with each load checked; `report` gets violations."""

    class Watched(base):  # type: ignore[valid-type, misc]
        def load(self) -> None:
            try:
                super().load()
            except StoreError as error:
                _reported(report, partial(saved.unreadable, error))
                raise
            _reported(report, partial(saved.check, self._tables))

        def _replace(self, name: str, data: bytes) -> None:
            saved.replacing(name, data)
            super()._replace(name, data)
            saved.done(name)

    return Watched


def _reported(report: Report, check: Callable[[], None]) -> None:
    try:
        check()
    except Violated as found:
        report(found)


# What a broker without a group does.


class MasterSlaveWatch:
    """One incarnation of a broker, as the invariants see it."""

    def __init__(
        self, name: str, invariants: MasterSlaveInvariants, reporter: Reporter, saved: SavedFiles
    ) -> None:
        self._name = name
        self._saved = saved
        self._invariants = invariants
        self._reporter = reporter
        self._shadow: MasterSlaveShadow | None = None
        self._log: PlainCommitLog | None = None
        self._is_full = self._was_full = False
        self._writes: deque[tuple[int, Write]] = deque()
        """Handed to the disk and not reported as carried out, by number."""

    def started(self, node: Node, now_ms: float) -> None:
        """The broker has recovered."""
        del now_ms  # no lease depends on it
        self._log = plain_log(node.commit_log)
        master_slave = node.config.master_slave
        assert master_slave is not None, "this is no member of a group"
        try:
            self._shadow = self._invariants.started(
                self._name, master_slave.broker_name, master_slave.config, self._log
            )
        except Violated as found:
            self._reporter.violated(found)

    def ended(self, *, loses_unsynced: bool) -> None:
        """The process is gone; writes in flight may have been carried out or not."""
        if self._shadow is not None:
            self._invariants.ended(self._shadow, loses_unsynced=loses_unsynced)
            self._shadow = None

    def took(self, effects: BrokerEffects) -> None:
        """The broker's effects are about to be carried out."""
        shadow, log = self._shadow, self._log
        if shadow is None or log is None:
            return
        try:
            self._check_full(shadow, effects.writes)
            self._invariants.ordered(shadow, effects.writes)
            first = effects.write_seq - len(effects.writes) + 1
            self._writes.extend(enumerate(effects.writes, first))
            self._invariants.flushed(shadow, log.synced.position)
            for replies in effects.replies.values():
                for reply in replies:
                    self._invariants.replied(shadow, reply)
        except Violated as found:
            self._reporter.violated(found)

    def _check_full(self, shadow: MasterSlaveShadow, writes: Sequence[Write]) -> None:
        """A master whose disk is full takes no messages. Raises Violated."""
        was_full, self._was_full = self._was_full, self._is_full
        takes = any(isinstance(write, Append) for write in writes)
        if takes and was_full and self._is_full and shadow.config.is_master:
            raise Violated("full-disk-takes-nothing", "it takes on messages", self._name)

    def disk_full(self, is_full: bool) -> None:
        """The broker is told that its disk is full, or has room again."""
        self._is_full = is_full

    def synced(self, write_seq: int) -> None:
        """Writes up to `write_seq` were carried out."""
        done: list[Write] = []
        while self._writes and self._writes[0][0] <= write_seq:
            done.append(self._writes.popleft()[1])
        if self._shadow is not None:
            self._invariants.synced(self._shadow, done)

    def watched(self, parts: Mutant) -> Mutant:
        """Return the same parts, with a broker that reports its inputs and effects here."""
        watch = self

        class WatchedBroker(parts.broker):  # type: ignore[name-defined, misc]
            def tick(self, now_ms: float) -> None:
                super().tick(now_ms)
                watch.ticked(self, now_ms)

            def take(self, now_ms: float, wall_ms: int) -> BrokerEffects:
                effects: BrokerEffects = super().take(now_ms, wall_ms)
                watch.took(effects)
                return effects

            def take_checkpoint(self) -> BrokerCheckpoint | None:
                checkpoint: BrokerCheckpoint | None = super().take_checkpoint()
                if checkpoint is not None:
                    watch.saving(self, checkpoint)
                return checkpoint

            def synced(self, write_seq: int, now_ms: float | None = None) -> None:
                watch.synced(write_seq)
                super().synced(write_seq, now_ms)

            def disk_full(self, is_full: bool, now_ms: float) -> None:
                watch.disk_full(is_full)
                super().disk_full(is_full, now_ms)

        files = watched_config_files(
            parts.master_slave.config_files, self._saved, self._reporter.violated
        )
        master = checked_connection(parts.master_slave.master_connection, self._reporter.violated)
        commit = checked_commit(parts.master_slave.group_commit, self._reporter.violated)
        master_slave = replace(
            parts.master_slave,
            core=self._watched_core(parts.master_slave.core),
            config_files=files,
            master_connection=master,
            group_commit=commit,
        )
        return replace(parts, broker=WatchedBroker, master_slave=master_slave)

    def _watched_core(self, base: type[MasterSlaveCore]) -> type[MasterSlaveCore]:
        watch = self

        class WatchedCore(base):  # type: ignore[valid-type, misc]
            def slave_reported(self, connection: int, position: int) -> None:
                check = partial(check_reported, watch._name, position, self.sent_position)
                _reported(watch._reporter.violated, check)
                super().slave_reported(connection, position)

        return WatchedCore

    def saving(self, broker: Broker, checkpoint: BrokerCheckpoint) -> None:
        """The broker gives a checkpoint to be saved."""
        check = partial(check_checkpoint, self._name, broker, checkpoint)
        _reported(self._reporter.violated, check)

    def ticked(self, broker: Broker, now_ms: float) -> None:
        """The broker was ticked."""
        try:
            check_answered(self._name, broker, now_ms)
            check_woken(self._name, broker)
            check_appends(self._name, broker)
        except Violated as found:
            self._reporter.violated(found)


def plain_log(log: WritableLog) -> PlainCommitLog:
    """Return the log of a broker without a group."""
    assert isinstance(log, PlainCommitLog), "this is no member of a group"
    return log


def checked_connection(
    base: type[MasterConnection], report: Callable[[Violated], None]
) -> type[MasterConnection]:
    """Return a slave's connection class that reports every message it cannot understand.

    Up to the first copied message both sides may find that their logs differ; after that they
    agree, unless bits were flipped on the way (`was_damaged`).
    """

    class Checked(base):  # type: ignore[valid-type, misc]
        def __init__(self, core: Any, *args: Any) -> None:
            super().__init__(core, *args)
            self._copied = core.log
            self._has_copied = False

        def received(self, data: bytes, now_ms: float) -> None:
            before = self._copied.end_position
            try:
                super().received(data, now_ms)
            except HAError as error:
                if self._has_copied and not getattr(self, "was_damaged", False):
                    report(Violated("streams-are-understood", str(error)))
                raise
            finally:
                self._has_copied = self._has_copied or self._copied.end_position > before

    return Checked
