"""Tells the invariants what a broker without a group does, as `watch` does of a group's member."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.mutants import Mutant
from shaketable.system.node.node import Node
from shaketable.system.raft.protocol import Write
from shaketable.system.sim.bounds import check_answered, check_appends
from shaketable.system.sim.native_invariants import NativeInvariants, NativeShadow
from shaketable.system.sim.stream_invariants import understanding
from shaketable.system.sim.trio_world.config_watch import SavedFiles, watched
from shaketable.system.sim.trio_world.watch import Reporter
from shaketable.system.sim.violation import Violated
from shaketable.system.store.log_writer import WritableLog
from shaketable.system.store.native_commit_log import NativeCommitLog


class NativeWatch:
    """One incarnation of a broker, as the invariants see it."""

    def __init__(
        self, name: str, invariants: NativeInvariants, reporter: Reporter, saved: SavedFiles
    ) -> None:
        self._name = name
        self._saved = saved
        self._invariants = invariants
        self._reporter = reporter
        self._shadow: NativeShadow | None = None
        self._log: NativeCommitLog | None = None
        self._writes: deque[tuple[int, Write]] = deque()
        """Given to the disk and not known to be carried out, by number."""

    def started(self, node: Node) -> None:
        """The broker has recovered."""
        self._log = native_log(node.commit_log)
        native = node.config.native
        assert native is not None, "this is no member of a group"
        try:
            self._shadow = self._invariants.started(
                self._name, native.broker_name, native.config, self._log
            )
        except Violated as found:
            self._reporter.violated(found)

    def ended(self, *, loses_unsynced: bool) -> None:
        """The process is gone; what was under way may have been carried out or not."""
        if self._shadow is not None:
            self._invariants.ended(self._shadow, loses_unsynced=loses_unsynced)
            self._shadow = None

    def took(self, effects: BrokerEffects) -> None:
        """The broker's effects are about to be carried out."""
        shadow, log = self._shadow, self._log
        if shadow is None or log is None:
            return
        try:
            self._invariants.ordered(shadow, effects.writes)
            first = effects.write_seq - len(effects.writes) + 1
            self._writes.extend(enumerate(effects.writes, first))
            self._invariants.flushed(shadow, log.synced.position)
            for replies in effects.replies.values():
                for reply in replies:
                    self._invariants.replied(shadow, reply)
        except Violated as found:
            self._reporter.violated(found)

    def synced(self, write_seq: int) -> None:
        """Writes up to that number were carried out."""
        done: list[Write] = []
        while self._writes and self._writes[0][0] <= write_seq:
            done.append(self._writes.popleft()[1])
        if self._shadow is not None:
            self._invariants.synced(self._shadow, done)

    def watched(self, parts: Mutant) -> Mutant:
        """Return the same parts, with a broker that tells this watch what it is asked and does."""
        watch = self

        class WatchedBroker(parts.broker):  # type: ignore[name-defined, misc]
            def tick(self, now_ms: float) -> None:
                super().tick(now_ms)
                watch.ticked(self, now_ms)

            def take(self, now_ms: float, wall_ms: int) -> BrokerEffects:
                effects: BrokerEffects = super().take(now_ms, wall_ms)
                watch.took(effects)
                return effects

            def synced(self, write_seq: int, now_ms: float | None = None) -> None:
                watch.synced(write_seq)
                super().synced(write_seq, now_ms)

        files = watched(parts.native.config_files, self._saved, self._reporter.violated)
        master = understanding(parts.native.master_connection, self._reporter.violated)
        native = replace(parts.native, config_files=files, master_connection=master)
        return replace(parts, broker=WatchedBroker, native=native)

    def ticked(self, broker: Broker, now_ms: float) -> None:
        """Time has passed for the broker."""
        try:
            check_answered(self._name, broker, now_ms)
            check_appends(self._name, broker)
        except Violated as found:
            self._reporter.violated(found)


def native_log(log: WritableLog) -> NativeCommitLog:
    """Return the log of a broker without a group."""
    assert isinstance(log, NativeCommitLog), "this is no member of a group"
    return log
