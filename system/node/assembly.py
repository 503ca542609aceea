"""Builds a node from its configuration and its machine: log, core, broker, node.

Processes (`system.node.__main__`) and simulated nodes (`system.sim.trio_world`) are both built
here, so that the simulation tests the production code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.core import Dispatch
from shaketable.system.broker.event_log import body_bytes_max
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.broker.topic_tables.taken_over import (
    encode_bodies,
    plain_dispatches,
    upgraded_snapshot,
)
from shaketable.system.master_slave.config_files import DELAYS, OFFSETS, TOPICS
from shaketable.system.mutants import Mutant
from shaketable.system.node.broker_start import (
    BrokerStart,
    Readers,
    build_broker,
    checkpoint_files,
    limits_of,
)
from shaketable.system.node.config import ConfigError, NodeConfig
from shaketable.system.node.connections.link import Reception
from shaketable.system.node.disks.data_files import DataFiles
from shaketable.system.node.flusher import Flusher
from shaketable.system.node.machine import Machine
from shaketable.system.node.master_slave.assembly import assemble_master_slave
from shaketable.system.node.master_slave.config_files import ConfigFiles
from shaketable.system.node.master_slave.self_checks import (
    MasterSlaveSelfWatch,
    self_checked_master_slave,
)
from shaketable.system.node.members import Members
from shaketable.system.node.node import Node, NodeParts, Replication, WriteHooks
from shaketable.system.node.process import planted
from shaketable.system.node.recorder import CannotRecord, Recorder
from shaketable.system.node.self_checks import SelfWatch, self_checked
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message
from shaketable.system.store.broker_checkpoint import CheckpointFiles
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.log_writer import LogWriter
from shaketable.system.store.plain_commit_log import PlainCommitLog
from shaketable.system.store.segment_files import NAME_DIGITS

log = logging.getLogger("shaketable.node")


def assemble(config: NodeConfig, machine: Machine, parts: Mutant | None = None) -> Node:
    """Recover the store from disk and build the node on it.

    `parts` are the classes to build from. The default are those of the bug that the configuration
    plants, or the correct ones. Raises ConfigError, StoreError (also LogDamaged), InvariantError.
    """
    if parts is None:
        parts = planted(config.mutant)
        if config.checks_invariants:
            return _self_checked(config, machine, parts)
    if config.master_slave is not None:
        return assemble_master_slave(config, config.master_slave, machine, parts)
    _refuse_joining_with_plain_log(config, machine)
    commit_log = _open_log(config, machine, parts)
    limits = limits_of(config)
    files = checkpoint_files(config, machine, f"{config.store_root}/dledger-{config.self_id}")
    plain_log = _plain_log(commit_log)
    start = _start(config, machine, commit_log, limits, files, plain_log)
    readers = Readers(commit_log, files.queues, files.keys)
    # A new seed in each incarnation: nodes in a crash loop must not repeat the same timeouts, or
    # they could split the vote for ever.
    rng = machine.rng(f"elections/{config.self_id}/{commit_log.state}/{commit_log.end.index}")
    writer = parts.log_writer(commit_log, config.ack_policy)
    if config.recording is None:
        broker = build_broker(start, parts, readers, rng.uniform, plain_log)
        return Node(
            config, machine, broker, _parts(config, machine, broker, commit_log, writer), files
        )
    if plain_log is not None:
        raise ConfigError("shaketableRecord cannot record a node with a plain commit log")
    try:
        recorder = Recorder(config.recording, start)
    except CannotRecord as error:
        raise ConfigError(f"shaketableRecord: {error}") from None
    uniform_ms = recorder.uniform_ms(rng.uniform)
    broker = build_broker(start, parts, recorder.readers(readers), uniform_ms)
    recorder.attach(broker)
    node_parts = _parts(config, machine, broker, commit_log, writer)
    return Node(config, machine, broker, node_parts, files, recorder)


def _self_checked(config: NodeConfig, machine: Machine, parts: Mutant) -> Node:
    """Build a node that checks its own steps."""
    if config.master_slave is not None:
        own = MasterSlaveSelfWatch(config.self_id, config.master_slave.config)
        node = assemble(config, machine, self_checked_master_slave(parts, own))
        assert isinstance(node.commit_log, PlainCommitLog), "this is no member of a group"
        own.started(node.commit_log)
        return node
    watch = SelfWatch(config.self_id, machine.clock.now_ms())
    folder = f"{config.store_root}/dledger-{config.self_id}"
    node = assemble(config, machine, self_checked(parts, watch, folder, machine.unsynced))
    assert isinstance(node.broker.core, RaftCore), "this is a member of a group"
    assert isinstance(node.commit_log, CommitLog), "this is a member of a group"
    watch.started(node.broker.core, node.commit_log.state)
    return node


def _parts(
    config: NodeConfig,
    machine: Machine,
    broker: Broker,
    commit_log: CommitLog,
    writer: LogWriter,
) -> NodeParts:
    """Return a group member's parts: how it writes its log and reaches the other members."""
    ledger = broker.core.ledger

    def new_flusher(hooks: WriteHooks) -> Flusher:
        return Flusher(
            writer,
            machine,
            hooks.on_synced,
            hooks.on_disk_full,
            lambda: ledger.checkpoint_index,
            hooks.before_install,
        )

    def new_replication(schedule_effects: Callable[[], None], reception: Reception) -> Replication:
        members = Members(config, machine.clock, broker, schedule_effects, reception)
        return ObservedReplication(members, machine.on_message) if machine.on_message else members

    return NodeParts(
        commit_log,
        DataFiles(commit_log, config.data_file_bytes),
        new_flusher,
        new_replication,
    )


def _refuse_joining_with_plain_log(config: NodeConfig, machine: Machine) -> None:
    """Raise ConfigError for a joining member that has a commit log of its own.

    Its messages never went through the group's log, so no member voted for them. Checked
    before anything is changed. A DLedger log that exists already, made without a plain one, is
    accepted: it ignores the plain log.
    """
    if not config.is_joining or config.plain_log is None:
        return
    disk, folder = machine.disk, str(config.plain_log)
    is_new = not disk.exists(f"{config.store_root}/dledger-{config.self_id}/syncedto")
    if is_new and any(len(name) == NAME_DIGITS and name.isdecimal() for name in disk.names(folder)):
        raise _joining_with_plain_log(folder)


def _joining_with_plain_log(folder: str) -> ConfigError:
    return ConfigError(
        f"shaketableJoin: a member that joins a group gets its messages from there, but "
        f"storePathCommitLog {folder} holds a plain commit log; move that away, or unset one"
    )


def _plain_log(commit_log: CommitLog) -> Callable[[], Iterable[Dispatch]] | None:
    """Return a function that iterates over the messages from before the group, if there are any."""
    plain_log = commit_log.plain_log
    if plain_log is None:
        return None
    return lambda: plain_dispatches(plain_log.messages())


def _open_log(config: NodeConfig, machine: Machine, parts: Mutant) -> CommitLog:
    commit_log = parts.commit_log.open(
        machine.disk,
        str(config.store_root),
        config.self_id,
        config.data_file_bytes,
        config.index_file_bytes,
        str(config.plain_log) if config.plain_log else None,
    )
    log.info(
        "event=recovered begin_index=%d end_index=%d term=%d voted_for=%s torn_bytes=%d "
        "committed_index=%d aborted=%s",
        commit_log.start.index,
        commit_log.end.index,
        commit_log.state.term,
        commit_log.state.voted_for or "-",
        commit_log.torn_bytes,
        commit_log.committed_index,
        commit_log.was_aborted,
    )
    return commit_log


def _start(
    config: NodeConfig,
    machine: Machine,
    commit_log: CommitLog,
    limits: BrokerConfig,
    files: CheckpointFiles,
    plain_log: Callable[[], Iterable[Dispatch]] | None,
) -> BrokerStart:
    """Return the initial state of the node's broker and core. Raises StoreError."""
    bootstrap = Membership(() if config.is_joining else tuple(sorted(config.peers)))
    checkpoint = files.load(commit_log)
    snapshot = commit_log.snapshot
    if snapshot is None and plain_log is not None:
        if config.is_joining:  # upgraded first, and configured to join later
            raise _joining_with_plain_log(str(config.plain_log))
        begin = commit_log.start
        snapshot = upgraded_snapshot(begin, bootstrap, plain_log, checkpoint, files.queues)
    return BrokerStart(
        member=config.self_id,
        raft=config.raft,
        limits=limits,
        bootstrap=bootstrap,
        memberships=tuple(commit_log.memberships),
        snapshot=snapshot,
        term=commit_log.state.term,
        voted_for=commit_log.state.voted_for,
        spans=tuple(commit_log.spans),
        begin=commit_log.start,
        end_index=commit_log.end.index,
        end_position=commit_log.end.position,
        applied_to=commit_log.committed_index,
        checkpoint=checkpoint,
        is_key_indexed=config.is_key_indexed,
        now_ms=machine.clock.now_ms(),
        mutant=config.mutant,
        to_migrate=to_migrate(config, machine, limits),
    )


# A group member's connections, with a hook that sees each message before it is sent.


class ObservedReplication:
    """Implements `system.node.node.Replication` over another one."""

    def __init__(self, replication: Replication, on_message: Callable[[Message], None]) -> None:
        self._replication = replication
        self._on_message = on_message

    @property
    def broker_id(self) -> int | None:
        """The broker id to register at name servers now, None for none."""
        return self._replication.broker_id

    @property
    def slave_port(self) -> int | None:
        """The port that it listens on for slaves, None if it serves none."""
        return self._replication.slave_port

    async def open(self) -> None:
        """Listen. Raises PortInUseError."""
        await self._replication.open()

    async def run(self) -> None:
        """Serve and keep connections until cancelled."""
        await self._replication.run()

    async def stop(self) -> None:
        """Save what is pending, after `run` was cancelled."""
        await self._replication.stop()

    def send(self, peer: str, message: Message) -> None:
        """Call the hook, then send the message."""
        self._on_message(message)
        self._replication.send(peer, message)

    def follow(self, membership: Membership) -> None:
        """Use this membership from now on."""
        self._replication.follow(membership)

    def on_registered(self, ext: Mapping[str, str]) -> bool:
        """Handle a name server's response; return False to register again soon."""
        return self._replication.on_registered(ext)

    def effects_applied(self) -> None:
        """Check whether there is more to send, after effects were carried out."""
        self._replication.effects_applied()


# Migrates the config/ folder of a broker that was upgraded to a DLedger group.
#
# Source: RocketMQ's deploy guide for DLedger: config/ is copied with the old commit log; DLEDGER.md
# D.5. The consumer group settings (subscriptionGroup.json) are not migrated.


def to_migrate(config: NodeConfig, machine: Machine, limits: BrokerConfig) -> tuple[bytes, ...]:
    """Return entry bodies with the contents of `storePathRootDir`/config, for the group's log.

    Empty without such files, and for a member that joins a group: its tables are not the group's.
    Raises StoreError for files that cannot be read.
    """
    folder = f"{config.store_root}/config"
    paths = [f"{folder}/{name}.json{end}" for name in (TOPICS, OFFSETS, DELAYS) for end in _ENDS]
    if config.is_joining or not any(map(machine.disk.exists, paths)):
        return ()
    tables = BrokerTables(limits, BrokerState())
    ConfigFiles(folder, machine, tables).load()
    state = tables.state({})
    bodies = encode_bodies(state, body_bytes_max(limits))
    offsets = sum(map(len, state.group_offsets.values()))
    log.info(
        "event=config_to_take_over folder=%s topics=%d offsets=%d",
        folder,
        len(state.topics),
        offsets,
    )
    return bodies


_ENDS = ("", ".bak")
