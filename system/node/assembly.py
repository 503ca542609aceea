"""Puts a node together from its configuration and its machine: log, core, broker, node.

A process (`system.node.__main__`) and a simulated node (`system.sim.trio_world`) are both
made here, so that what is simulated is what runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from system import mutants
from system.broker.broker_state import ranges_of
from system.broker.limits import BrokerConfig
from system.broker.native import native_dispatches
from system.broker.reput import Dispatch
from system.mutants import Mutant
from system.node.config import ConfigError, NodeConfig
from system.node.machine import Machine
from system.node.node import Node
from system.raft.core import RaftCore
from system.raft.log_view import LogView
from system.raft.membership import Membership
from system.store.broker_checkpoint import CheckpointFiles
from system.store.commit_log import CommitLog
from system.store.key_file import Sizes
from system.store.message import host_bytes

KEY_ITEMS_MAX = 100_000
"""Messages with keys that may wait for the next checkpoint; past that, applying waits."""

log = logging.getLogger("shaketable.node")


def assemble(config: NodeConfig, machine: Machine, parts: Mutant | None = None) -> Node:
    """Recover what the disk holds and build the node on it.

    `parts` are what the node is made of; without them, those of the bug that the configuration
    plants, or the right ones. Raises ConfigError, StoreError (also LogDamaged), InvariantError.
    """
    if parts is None:
        parts = _planted(config)
    commit_log = _open_log(config, machine, parts)
    core = _core(config, machine, commit_log, parts)
    limits = BrokerConfig(
        data_file_bytes=config.data_file_bytes,
        store_host=host_bytes(config.host, config.listen_port),
        key_items_max=KEY_ITEMS_MAX if config.is_key_indexed else 0,
        expiry=config.expiry,
    )
    root = str(config.store_root)
    files = CheckpointFiles(
        machine.disk,
        root,
        f"{root}/dledger-{config.self_id}",
        ranges_of,
        queue_file_bytes=config.queue_file_bytes,
        key_sizes=Sizes(config.hash_slots, config.index_items_max),
    )
    broker = parts.broker(
        core,
        limits,
        applied_to=commit_log.committed_index,
        checkpoint=files.load(commit_log),
        reader=files.queues,
        key_reader=files.keys if config.is_key_indexed else None,
        native=_native(commit_log),
    )
    writer = parts.log_writer(commit_log, config.ack_policy)
    return Node(config, machine, broker, writer, files)


def _native(commit_log: CommitLog) -> Callable[[], Iterable[Dispatch]] | None:
    """Return what walks the messages from before the group, where there are any."""
    native = commit_log.native
    if native is None:
        return None
    return lambda: native_dispatches(native.messages())


def _planted(config: NodeConfig) -> Mutant:
    if not config.mutant:
        return mutants.HEALTHY
    try:
        mutant = mutants.load(config.mutant)
    except KeyError:
        known = ", ".join(mutants.names())
        raise ConfigError(f"no mutant {config.mutant}; there are {known}") from None
    log.warning("event=mutant name=%s", config.mutant)
    return mutant


def _open_log(config: NodeConfig, machine: Machine, parts: Mutant) -> CommitLog:
    commit_log = parts.commit_log.open(
        machine.disk,
        str(config.store_root),
        config.self_id,
        config.data_file_bytes,
        config.index_file_bytes,
        str(config.native_log) if config.native_log else None,
    )
    log.info(
        "event=recovered begin_index=%d end_index=%d term=%d voted_for=%s torn_bytes=%d "
        "committed_index=%d aborted=%s",
        commit_log.begin.index,
        commit_log.end.index,
        commit_log.state.term,
        commit_log.state.voted_for or "-",
        commit_log.torn_bytes,
        commit_log.committed_index,
        commit_log.was_aborted,
    )
    return commit_log


def _core(config: NodeConfig, machine: Machine, commit_log: CommitLog, parts: Mutant) -> RaftCore:
    view = LogView(
        commit_log,
        commit_log.spans,
        commit_log.end.index,
        commit_log.end.position,
        config.raft.tail_bytes_max,
        begin=commit_log.begin,
    )
    # Other draws in each incarnation: a crash loop must not repeat the same timeouts.
    dice = machine.dice(f"elections/{config.self_id}/{commit_log.state}/{commit_log.end.index}")
    return parts.core(
        config.self_id,
        (),
        view,
        term=commit_log.state.term,
        voted_for=commit_log.state.voted_for,
        uniform_ms=dice.uniform,
        now_ms=machine.clock.now_ms(),
        config=config.raft,
        membership=Membership(() if config.is_joining else tuple(sorted(config.peers))),
        memberships=commit_log.memberships,
        snapshot=commit_log.snapshot,
    )
