"""A broker that reports what it is given and what it does.

A broker's class is replaced like that of a planted bug (`system.mutants.Mutant`); it passes on
every input and every effect unchanged. Simulated nodes are watched from outside
(`system.sim.trio_world.watch`), real members by themselves (`system.node.self_checks`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import Message


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
