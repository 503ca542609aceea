"""Reports to the invariants what a node does, from between its broker and its shell.

The broker's class is replaced like that of a planted bug (`system.mutants.Mutant`); it passes on
every input and every effect unchanged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Protocol

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.mutants import Mutant
from shaketable.system.node.node import Node
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import Message, RoleChange, Write
from shaketable.system.sim.rules.bounds import check_answered, check_bounds
from shaketable.system.sim.rules.invariants import Invariants
from shaketable.system.sim.rules.shadow import Shadow
from shaketable.system.sim.rules.violation import Violated
from shaketable.system.store.commit_log import CommitLog


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

    def received(self, role: str, message: Message) -> None:
        """The node is about to receive a message from another member."""
        ...


class Watch:
    """One incarnation of a node, as the invariants see it."""

    def __init__(self, name: str, invariants: Invariants, reporter: Reporter) -> None:
        self.shadow: Shadow | None = None
        self.writes: deque[tuple[int, Write]] = deque()
        """Handed to the disk and not reported as carried out, by number."""
        self._name = name
        self._invariants = invariants
        self._reporter = reporter

    def started(self, node: Node) -> None:
        """The node has recovered."""
        core, log = node.broker.core, node.commit_log
        assert isinstance(core, RaftCore), "this is a member of a group"
        assert isinstance(log, CommitLog), "this is a member of a group"
        before = self._invariants.shadows.get(self._name)
        if before is not None:
            before.log = log  # for entries no longer in memory: the old log's disk is dead
        try:
            self.shadow = self._invariants.started(self._name, core, log)
        except Violated as found:
            self._reporter.violated(found)

    def took(self, core: RaftCore, effects: BrokerEffects) -> None:
        """The broker's effects are about to be carried out."""
        shadow = self.shadow
        if shadow is None:
            return
        try:
            self._invariants.ordered(shadow, effects.writes)
            first = effects.write_seq - len(effects.writes) + 1
            self.writes.extend(enumerate(effects.writes, first))
            self._invariants.committed(shadow, core.ledger.commit_index)
            for change in effects.role_changes:
                self._invariants.changed_role(shadow, change)
                self._reporter.changed_role(change)
        except Violated as found:
            self._reporter.violated(found)

    def synced(self, write_seq: int) -> None:
        """Writes up to `write_seq` were carried out."""
        done: list[Write] = []
        while self.writes and self.writes[0][0] <= write_seq:
            done.append(self.writes.popleft()[1])
        if self.shadow is not None:
            self._invariants.synced(self.shadow, done)

    def received(self, core: RaftCore, message: Message) -> None:
        """A message is about to be handled."""
        self._reporter.received(core.role.value, message)

    def ended(self, *, loses_unsynced: bool) -> None:
        """The process is gone; writes in flight may have been carried out or not."""
        del loses_unsynced  # only what is durable counts here
        if self.shadow is not None:
            self.shadow.in_flight = tuple(write for _, write in self.writes)
            self.shadow.is_up = False
            self.shadow = None

    def ticked(self, broker: Broker, now_ms: float) -> None:
        """The node was ticked."""
        core = broker.core
        assert isinstance(core, RaftCore), "this is a member of a group"
        try:
            check_answered(self._name, broker, now_ms)
            check_bounds(self._name, broker, core)
            self._reporter.served(broker)
        except Violated as found:
            self._reporter.violated(found)

    def watched(self, parts: Mutant) -> Mutant:
        """Return the same parts, with a broker that reports its inputs and effects here."""
        watch = self

        class WatchedBroker(parts.broker):  # type: ignore[name-defined, misc]
            def receive(self, message: Message, now_ms: float) -> None:
                watch.received(self.core, message)
                super().receive(message, now_ms)

            def tick(self, now_ms: float) -> None:
                super().tick(now_ms)
                watch.ticked(self, now_ms)

            def take(self, now_ms: float, wall_ms: int) -> BrokerEffects:
                effects: BrokerEffects = super().take(now_ms, wall_ms)
                watch.took(self.core, effects)
                return effects

            def synced(self, write_seq: int, now_ms: float | None = None) -> None:
                watch.synced(write_seq)
                super().synced(write_seq, now_ms)

        return replace(parts, broker=WatchedBroker)
