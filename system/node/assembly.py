"""Puts a node together from its configuration and its machine: log, core, broker, node.

A process (`system.node.__main__`) and a simulated node (`system.sim.trio_world`) are both
made here, so that what is simulated is what runs.
"""

from __future__ import annotations

import contextlib
import logging

from system import mutants
from system.broker.broker import Broker
from system.broker.limits import BrokerConfig
from system.node.abort_marker import place_abort_marker
from system.node.config import ConfigError, NodeConfig
from system.node.machine import Machine
from system.node.node import Node
from system.raft.core import RaftCore
from system.raft.log_view import LogView
from system.store.commit_log import CommitLog
from system.store.message import host_bytes

log = logging.getLogger("shaketable.node")


def assemble(config: NodeConfig, machine: Machine) -> Node:
    """Recover what the disk holds and build the node on it.

    Raises ConfigError, StoreError (also LogDamaged) or InvariantError.
    """
    was_aborted = place_abort_marker(machine.disk, str(config.store_root))
    if was_aborted:
        log.info("event=aborted_before node=%s", config.self_id)
    commit_log = _open_log(config, machine)
    try:
        core = _core(config, machine, commit_log)
        limits = BrokerConfig(
            data_file_bytes=config.data_file_bytes,
            store_host=host_bytes(config.host, config.listen_port),
        )
        broker = Broker(core, limits, applied_to=commit_log.committed_index)
    except BaseException:
        commit_log.close()
        raise
    return Node(config, machine, broker, commit_log)


def _open_log(config: NodeConfig, machine: Machine) -> CommitLog:
    commit_log = CommitLog.open(
        machine.disk,
        str(config.store_root),
        config.self_id,
        config.data_file_bytes,
        config.index_file_bytes,
    )
    log.info(
        "event=recovered end_index=%d term=%d voted_for=%s torn_bytes=%d committed_index=%d",
        commit_log.end.index,
        commit_log.state.term,
        commit_log.state.voted_for or "-",
        commit_log.torn_bytes,
        commit_log.committed_index,
    )
    return commit_log


def _core(config: NodeConfig, machine: Machine, commit_log: CommitLog) -> RaftCore:
    core_type = RaftCore
    if config.mutant:
        with contextlib.suppress(KeyError):
            core_type = mutants.load(config.mutant).core
        if core_type is RaftCore:
            raise ConfigError(f"no mutant {config.mutant}; there are {', '.join(mutants.names())}")
        log.warning("event=mutant name=%s", config.mutant)
    view = LogView(
        commit_log,
        commit_log.spans,
        commit_log.end.index,
        commit_log.end.position,
    )
    # Other draws in each incarnation: a crash loop must not repeat the same timeouts.
    dice = machine.dice(f"elections/{config.self_id}/{commit_log.state}/{commit_log.end.index}")
    return core_type(
        config.self_id,
        [peer for peer in config.peers if peer != config.self_id],
        view,
        term=commit_log.state.term,
        voted_for=commit_log.state.voted_for,
        uniform_ms=dice.uniform,
        now_ms=machine.clock.now_ms(),
    )
