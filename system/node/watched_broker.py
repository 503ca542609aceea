"""A broker that reports what it is given and what it does, and a node's own check of that.

A broker's class is replaced like that of a planted bug (`system.mutants.Mutant`); it passes on
every input and every effect unchanged. Simulated nodes are watched from outside
(`system.sim.trio_world.watch`), real members by themselves if broker.conf says
`shaketableInvariants=true`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.invariants.queues import (
    check_answered,
    check_bounds,
    check_transfer,
    check_woken,
)
from shaketable.system.invariants.steps import Steps
from shaketable.system.invariants.stickiness import LeaderStickiness
from shaketable.system.invariants.violated import Violated
from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import InvariantError, Message


class BrokerWatch(Protocol):
    """Receiver of a broker's reports."""

    def stepping(self) -> AbstractContextManager[None]:
        """Return what an input is handled within."""

    def received(self, core: RaftCore, message: Message, now_ms: float) -> None:
        """A message from another member is about to be handled."""

    def ticked(self, broker: Broker, now_ms: float) -> None:
        """The broker was ticked."""

    def took(self, core: RaftCore, effects: BrokerEffects, now_ms: float) -> None:
        """The broker's effects are about to be carried out."""

    def synced(self, write_seq: int, now_ms: float | None) -> None:
        """Writes up to `write_seq` were carried out."""

    def disk_full(self, is_full: bool) -> None:
        """The broker is told that its disk is full, or has room again."""


def watched(parts: Mutant, watch: BrokerWatch) -> Mutant:
    """Return the same parts, with a broker that reports its inputs and effects to `watch`."""

    class WatchedBroker(parts.broker):  # type: ignore[name-defined, misc]
        def receive(self, message: Message, now_ms: float) -> None:
            watch.received(self.core, message, now_ms)
            with watch.stepping():
                super().receive(message, now_ms)

        def tick(self, now_ms: float) -> None:
            with watch.stepping():
                super().tick(now_ms)
            watch.ticked(self, now_ms)

        def take(self, now_ms: float, wall_ms: int) -> BrokerEffects:
            effects: BrokerEffects = super().take(now_ms, wall_ms)
            watch.took(self.core, effects, now_ms)
            return effects

        def synced(self, write_seq: int, now_ms: float | None = None) -> None:
            watch.synced(write_seq, now_ms)
            super().synced(write_seq, now_ms)

        def disk_full(self, is_full: bool, now_ms: float) -> None:
            watch.disk_full(is_full)
            super().disk_full(is_full, now_ms)

    return replace(parts, broker=WatchedBroker)


class SelfWatch:
    """A member that checks its own steps, and ends at the first that violates an invariant."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._steps: Steps | None = None
        self._stickiness = LeaderStickiness()
        self._inputs = 0
        self._writing: deque[int] = deque()
        """The numbers of the last of the writes of each step that are not carried out yet."""

    def started(self, core: RaftCore) -> None:
        """The member has recovered."""
        self._steps = Steps(self._name, core, is_timely=False)

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
        self._inputs += 1
        self._stickiness.received(core, message, now_ms)
        if self._steps is not None:
            self._steps.heard(message)

    def ticked(self, broker: Broker, now_ms: float) -> None:
        """Check that nothing waits too long, or without a limit. Raises InvariantError."""
        self._inputs += 1
        if self._steps is None:
            return
        core = broker.core
        assert isinstance(core, RaftCore), "this is a member of a group"
        with _as_invariant_error():
            check_answered(self._name, broker, now_ms)
            check_woken(self._name, broker)
            check_bounds(self._name, broker, core)
            check_transfer(self._name, core, now_ms)

    def took(self, core: RaftCore, effects: BrokerEffects, now_ms: float) -> None:
        """Check a step. Raises InvariantError."""
        del core
        inputs, self._inputs = self._inputs, 0
        if effects.writes:
            self._writing.append(effects.write_seq)
        if self._steps is None:
            return
        stalled_ms = 1.0 if self._writing else 0.0  # for how long is not judged here
        with _as_invariant_error():
            self._steps.stepped(
                effects.writes, effects.messages, now_ms, stalled_ms=stalled_ms, inputs=inputs
            )
            for peer, message in effects.messages:
                self._stickiness.check_vote(self._name, peer, message)

    def synced(self, write_seq: int, now_ms: float | None) -> None:
        """Forget the writes that were carried out."""
        del now_ms
        while self._writing and self._writing[0] <= write_seq:
            self._writing.popleft()

    def disk_full(self, is_full: bool) -> None:
        """Note how the disk is."""
        if self._steps is not None:
            self._steps.disk_full(is_full)


@contextmanager
def _as_invariant_error() -> Iterator[None]:
    try:
        yield
    except Violated as found:
        raise InvariantError(str(found)) from found
