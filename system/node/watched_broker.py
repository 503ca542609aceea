"""A broker that reports what it is given and what it does.

A broker's class is replaced like that of a planted bug (`system.mutants.Mutant`); it passes on
every input and every effect unchanged. Simulated nodes are watched from outside
(`system.sim.trio_world.watch`), real members by themselves (`system.node.self_checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import wraps
from typing import Any, Final, Protocol

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import BrokerEffects, Connection
from shaketable.system.invariants.confirmed_reads import ConfirmedReads
from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import Effects, Message, Snapshot, Token
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import SendRequest
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint


class BrokerWatch(Protocol):
    """Receiver of a broker's reports. `reads` are told of what clients and the broker read."""

    reads: ConfirmedReads

    def stepping(self) -> AbstractContextManager[None]:
        """Return what an input is handled within."""

    def received(self, core: RaftCore, message: Message, now_ms: float) -> None:
        """A message from another member is about to be handled. It is an input."""

    def handled(self) -> None:
        """The core has handled one input."""

    def ticked(self, broker: Broker, now_ms: float) -> None:
        """The broker was ticked."""

    def took(self, core: RaftCore, effects: BrokerEffects, now_ms: float, inputs: int) -> None:
        """The effects of so many inputs that change a core's mind are about to be carried out."""

    def synced(self, write_seq: int, now_ms: float | None) -> None:
        """Writes up to `write_seq` were carried out."""

    def disk_full(self, is_full: bool) -> None:
        """The broker is told that its disk is full, or has room again."""

    def saving(self, broker: Broker, checkpoint: BrokerCheckpoint) -> None:
        """The broker gives a checkpoint to be saved."""

    def compacted(self, broker: Broker, snapshot: Snapshot) -> None:
        """The broker has replaced a part of its log by a snapshot."""


INPUTS: Final = (
    "append", "compact", "disk_full", "read", "receive", "resign", "synced", "tick", "transfer",
)  # fmt: skip
"""The methods of a core that may change its mind (`system.raft.core.RaftCore`)."""


def _handling(call: Callable[..., None], watch: BrokerWatch) -> Callable[..., None]:
    """Report an input of a core once it was handled; an error is none that it decided."""

    @wraps(call)
    def called(core: RaftCore, *args: Any, **options: Any) -> None:
        call(core, *args, **options)
        watch.handled()

    return called


def _watched_core(base: type[RaftCore], watch: BrokerWatch) -> type[RaftCore]:
    class WatchedCore(base):  # type: ignore[valid-type, misc]
        def read(self, token: Token, now_ms: float) -> None:
            super().read(token, now_ms)
            watch.reads.begun(token)

        def receive(self, message: Message, now_ms: float) -> None:
            watch.received(self, message, now_ms)
            super().receive(message, now_ms)

        def take(self) -> Effects:
            effects: Effects = super().take()
            watch.reads.settled(effects.reads_ready, effects.reads_refused)
            return effects

    for name in INPUTS:
        setattr(WatchedCore, name, _handling(getattr(WatchedCore, name), watch))
    return WatchedCore


def _watched_saves(base: type[Broker], watch: BrokerWatch) -> type[Broker]:
    """Return a broker class that reports what it gives to be saved of its state."""

    class WatchedSaves(base):  # type: ignore[valid-type, misc]
        def take_checkpoint(self) -> BrokerCheckpoint | None:
            checkpoint: BrokerCheckpoint | None = super().take_checkpoint()
            if checkpoint is not None:
                watch.saving(self, checkpoint)
            return checkpoint

        def disk_usage(self, *measured: Any, **more: Any) -> None:
            before = self.core.ledger.snapshot
            super().disk_usage(*measured, **more)
            if (snapshot := self.core.ledger.snapshot) is not before and snapshot is not None:
                watch.compacted(self, snapshot)

    return WatchedSaves


def watched(parts: Mutant, watch: BrokerWatch) -> Mutant:
    """Return the same parts, with a broker that reports its inputs and effects to `watch`."""

    class WatchedBroker(_watched_saves(parts.broker, watch)):  # type: ignore[misc]
        def handle(
            self,
            connection: Connection,
            born_host: bytes,
            requests: Sequence[SendRequest | Command],
            now_ms: float,
            wall_ms: int,
        ) -> None:
            others_serve = self._config.slave_read_enable
            watch.reads.asked(connection, requests, others_serve=others_serve)
            super().handle(connection, born_host, requests, now_ms, wall_ms)

        def connection_closed(self, connection: Connection) -> None:
            watch.reads.closed(connection)
            super().connection_closed(connection)

        _inputs = 0
        """Messages, ticks, news of the disk and requests to resign since the last step."""

        def receive(self, message: Message, now_ms: float) -> None:
            self._inputs += 1
            with watch.stepping():
                super().receive(message, now_ms)

        def tick(self, now_ms: float) -> None:
            self._inputs += 1
            with watch.stepping():
                super().tick(now_ms)
            watch.ticked(self, now_ms)

        def take(self, now_ms: float, wall_ms: int) -> BrokerEffects:
            effects: BrokerEffects = super().take(now_ms, wall_ms)
            inputs, self._inputs = self._inputs, 0
            watch.took(self.core, effects, now_ms, inputs)
            return effects

        def synced(self, write_seq: int, now_ms: float | None = None) -> None:
            watch.synced(write_seq, now_ms)
            super().synced(write_seq, now_ms)

        def disk_full(self, is_full: bool, now_ms: float) -> None:
            self._inputs += 1
            watch.disk_full(is_full)
            super().disk_full(is_full, now_ms)

        def disk_usage(self, *measured: Any, **more: Any) -> None:
            self._inputs += 1
            super().disk_usage(*measured, **more)

        def resign(self, now_ms: float) -> None:
            self._inputs += 1
            super().resign(now_ms)

    return replace(parts, core=_watched_core(parts.core, watch), broker=WatchedBroker)
