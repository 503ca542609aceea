"""A master-slave broker's own check of what it acknowledges, copies, reports and loads.

The rules are those that one broker can judge alone. What takes both sides of a copy is judged in
simulations (`system.sim.rules.master_slave_invariants`), which these leave alone: a broker that
breaks a rule ends, as a member of a group does (docs/adr/0060).

Source: RocketMQ's GroupCommitService, GroupTransferService, HAClient and ConfigManager; DLEDGER.md
D.2.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.invariants.durability import (
    acknowledged_positions,
    check_reported,
    checked_commit,
)
from shaketable.system.invariants.queues import check_answered, check_woken
from shaketable.system.invariants.saved_files import (
    WATCHED,
    check_checkpoint,
    older_offset,
    table_of,
)
from shaketable.system.invariants.violated import Violated, as_invariant_error
from shaketable.system.master_slave.config_files import encode_tables, load_tables
from shaketable.system.master_slave.core import BrokerRole, MasterSlaveConfig, MasterSlaveCore
from shaketable.system.master_slave.ha import REPORT, MasterConnection
from shaketable.system.master_slave.mode import GroupCommit
from shaketable.system.mutants import Mutant
from shaketable.system.node.master_slave.config_files import ConfigFiles
from shaketable.system.remoting.command import CommandError
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint
from shaketable.system.store.disk import read_file
from shaketable.system.store.plain_commit_log import PlainCommitLog

UNWAITED_MAX = 10_000
"""Replies to senders that do not wait (WAIT=false) of which so many are remembered, the newest."""


class MasterSlaveSelfWatch:
    """A broker without a group that checks itself. Each method raises InvariantError.

    `name` is the broker's in what is reported. A position counts as stored where the log on the
    disk has got beyond it: what is written and flushed ends with a whole message.
    """

    def __init__(self, name: str, config: MasterSlaveConfig) -> None:
        self.name = name
        self._config = config
        self._log: PlainCommitLog | None = None
        self._copied = 0
        """Up to where some slave has said that it has the log."""
        self._unwaited: dict[bytes, None] = {}
        """Replies to senders that wait for neither disk nor slave, and are not answered yet."""

    def started(self, log: PlainCommitLog) -> None:
        """The broker has recovered."""
        self._log = log

    def took(self, effects: BrokerEffects) -> None:
        """The broker's effects are about to be carried out."""
        if self._log is None:
            return
        with as_invariant_error():
            for replies in effects.replies.values():
                for reply in replies:
                    waits = reply not in self._unwaited
                    self._unwaited.pop(reply, None)
                    for position in acknowledged_positions(reply):
                        self._check_kept(position, waits=waits)

    def unwaited(self, reply: bytes) -> None:
        """Note a reply that says no more than that the message is written."""
        self._unwaited[reply] = None
        if len(self._unwaited) > UNWAITED_MAX:  # of connections that were closed
            del self._unwaited[next(iter(self._unwaited))]

    def reported(self, position: int, sent_position: int) -> None:
        """A master believes that a slave has the log up to `position`."""
        with as_invariant_error():
            check_reported(self.name, position, sent_position)
        self._copied = max(self._copied, position)

    def reporting(self, position: int, begin: int) -> None:
        """A slave is about to report that it has the log up to `position`; it starts at `begin`."""
        has = max(begin, self._stored(is_flushed=self._config.is_sync_flush))
        if position > has:
            what = f"it reports {position}, its disk has {has}"
            with as_invariant_error():
                raise Violated("reported-is-stored", what, self.name)

    def copied(self, position: int, expected: int) -> None:
        """A slave has taken bytes that its master sent as those from `position` on."""
        if expected and position != expected:
            what = f"it takes bytes {position} of its master as what follows {expected}"
            with as_invariant_error():
                raise Violated("slave-copies-master", what, self.name)

    def _stored(self, *, is_flushed: bool) -> int:
        assert self._log is not None, "it has recovered"
        return (self._log.synced if is_flushed else self._log.end).position

    def _check_kept(self, position: int, *, waits: bool) -> None:
        has = self._stored(is_flushed=waits and self._config.is_sync_flush)
        if position >= has:
            what = f"the message at {position} is acknowledged, the disk has {has} bytes"
            raise Violated("acknowledged-is-flushed", what, self.name)
        is_sync_master = self._config.role is BrokerRole.SYNC_MASTER
        if waits and is_sync_master and position >= self._copied:
            what = f"the message at {position} is acknowledged, slaves have {self._copied} bytes"
            raise Violated("acknowledged-is-copied", what, self.name)


def self_checked_master_slave(parts: Mutant, watch: MasterSlaveSelfWatch) -> Mutant:
    """Return the same parts, of which `watch` checks what they do."""
    own = parts.master_slave
    checked = replace(
        own,
        core=_checked_core(own.core, watch),
        group_commit=_checked_commit(own.group_commit, watch),
        master_connection=_checked_connection(own.master_connection, watch),
        config_files=_checked_files(own.config_files),
    )
    return replace(parts, broker=_checked_broker(parts.broker, watch), master_slave=checked)


def _checked_broker(base: type[Broker], watch: MasterSlaveSelfWatch) -> type[Broker]:
    class CheckedBroker(base):  # type: ignore[valid-type, misc]
        def tick(self, now_ms: float) -> None:
            super().tick(now_ms)
            with as_invariant_error():
                check_answered(watch.name, self, now_ms)
                check_woken(watch.name, self)

        def take(self, now_ms: float, wall_ms: int) -> BrokerEffects:
            effects: BrokerEffects = super().take(now_ms, wall_ms)
            watch.took(effects)
            return effects

        def take_checkpoint(self) -> BrokerCheckpoint | None:
            checkpoint: BrokerCheckpoint | None = super().take_checkpoint()
            if checkpoint is not None:
                with as_invariant_error():
                    check_checkpoint(watch.name, self, checkpoint)
            return checkpoint

    return CheckedBroker


def _checked_core(
    base: type[MasterSlaveCore], watch: MasterSlaveSelfWatch
) -> type[MasterSlaveCore]:
    class CheckedCore(base):  # type: ignore[valid-type, misc]
        def slave_reported(self, connection: int, position: int) -> None:
            watch.reported(position, self.sent_position)
            super().slave_reported(connection, position)

    return CheckedCore


def _checked_commit(base: type[GroupCommit], watch: MasterSlaveSelfWatch) -> type[GroupCommit]:
    class CheckedCommit(base):  # type: ignore[valid-type, misc]
        def acknowledge(self, index: int) -> None:
            for append in takewhile(lambda each: each.last_index <= index, self.waiting):
                if not append.wait_store_ok:
                    watch.unwaited(append.reply)
            super().acknowledge(index)

    def report(found: Violated) -> None:
        with as_invariant_error():
            raise Violated(found.invariant, found.finding, watch.name)

    return checked_commit(CheckedCommit, report)


def _checked_connection(
    base: type[MasterConnection], watch: MasterSlaveSelfWatch
) -> type[MasterConnection]:
    class CheckedConnection(base):  # type: ignore[valid-type, misc]
        def next_report(self, now_ms: float) -> bytes | None:
            report: bytes | None = super().next_report(now_ms)
            if report is not None:
                (position,) = REPORT.unpack(report)
                watch.reporting(position, self._core.log.start.position)
            return report

        def _receive_body(self, position: int, body: bytes, now_ms: float) -> None:
            expected = self._core.log.end_position + len(self._partial)
            super()._receive_body(position, body, now_ms)
            watch.copied(position, expected)

    return CheckedConnection


def _checked_files(base: type[ConfigFiles]) -> type[ConfigFiles]:
    class CheckedFiles(base):  # type: ignore[valid-type, misc]
        def load(self) -> None:
            super().load()
            for name in WATCHED:
                with suppress(CommandError), as_invariant_error():  # too large to be compared
                    self._check_loaded(name)

        def _check_loaded(self, name: str) -> None:
            saved, loaded = self._saved_offsets(name), encode_tables(name, self._tables, 0)
            if saved is not None and (older := older_offset(table_of(loaded), saved)):
                raise Violated("saved-is-loaded", f"{name}: {older}")

        def _saved_offsets(self, name: str) -> Any:
            """Return what the file has, or its copy where it cannot be decoded; None: neither."""
            for path in (self._path(name), f"{self._path(name)}.bak"):
                if self._disk.exists(path):
                    alone = BrokerTables(BrokerConfig(), BrokerState({}))
                    with suppress(CommandError):
                        load_tables(name, read_file(self._disk, path), alone)
                        return table_of(encode_tables(name, alone, 0))
            return None

    return CheckedFiles
