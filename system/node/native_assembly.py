"""Puts together a broker without a group: a master, or a slave of one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from shaketable.system.mutants import Mutant
from shaketable.system.native.log_view import NativeLogView
from shaketable.system.native.mode import native_mode
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.ha_service import HAService
from shaketable.system.node.limits_of import checkpoint_files, limits_of
from shaketable.system.node.machine import Machine
from shaketable.system.node.native_files import NativeDataFiles
from shaketable.system.node.native_flusher import NativeFlusher
from shaketable.system.node.native_keys import NativeSettings
from shaketable.system.node.node import Node
from shaketable.system.node.node_parts import NodeParts, WriteHooks
from shaketable.system.node.reception import Reception

log = logging.getLogger("shaketable.node")


def assemble_native(
    config: NodeConfig, settings: NativeSettings, machine: Machine, mutant: Mutant
) -> Node:
    """Recover what the disk holds and build the node of these parts. Raises StoreError."""
    made_of = mutant.native
    root = str(config.store_root)
    commit_log = made_of.commit_log.open(
        machine.disk, root, str(settings.log_folder), config.data_file_bytes
    )
    log.info(
        "event=recovered role=%s begin=%d end=%d torn_bytes=%d aborted=%s",
        settings.config.role.value,
        commit_log.begin.position,
        commit_log.end.position,
        commit_log.torn_bytes,
        commit_log.was_aborted,
    )
    limits = replace(limits_of(config), ack_timeout_ms=settings.config.sync_flush_timeout_ms)
    files = checkpoint_files(config, machine, root)
    checkpoint = files.load(commit_log)
    view = NativeLogView(
        commit_log, commit_log.begin, commit_log.end, settings.config.tail_bytes_max
    )
    core = made_of.core(config.self_id, view, settings.config, now_ms=machine.clock.now_ms())
    broker = mutant.broker(
        core,
        limits,
        checkpoint=checkpoint,
        reader=files.queues,
        key_reader=files.keys if config.is_key_indexed else None,
        mode=native_mode(core, limits, made_of.group_commit),
    )
    config_files = made_of.config_files(f"{root}/config", machine, broker.tables)
    config_files.load()
    touches: list[Callable[[], None]] = []

    def touch() -> None:
        for one in touches:
            one()

    def on_flushed(index: int) -> None:
        core.flushed(index)
        touch()

    def new_flusher(hooks: WriteHooks) -> NativeFlusher:
        return NativeFlusher(commit_log, machine, settings.config, hooks, on_flushed)

    def new_replication(node_touch: Callable[[], None], _: Reception) -> HAService:
        touches.append(node_touch)
        synchronize = made_of.synchronize(machine.clock, broker.tables, node_touch)
        return HAService(
            config,
            settings,
            machine.clock,
            core,
            node_touch,
            synchronize,
            config_files,
            made_of,
        )

    parts = NodeParts(
        commit_log,
        NativeDataFiles(commit_log, config.data_file_bytes),
        new_flusher,
        new_replication,
    )
    return Node(config, machine, broker, parts, files)
