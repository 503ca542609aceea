"""Builds a master-slave broker's node: a master, or a slave."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import trio

from shaketable.system.broker.limits import DataFile
from shaketable.system.master_slave.core import MasterSlaveConfig, PlainLogView
from shaketable.system.master_slave.mode import master_slave_mode
from shaketable.system.mutants import Mutant
from shaketable.system.node.broker_start import checkpoint_files, limits_of
from shaketable.system.node.config import MasterSlaveSettings, NodeConfig
from shaketable.system.node.connections.link import Reception
from shaketable.system.node.machine import Machine
from shaketable.system.node.master_slave.ha_service import HAService
from shaketable.system.node.node import Node, NodeParts, WriteHooks
from shaketable.system.raft.protocol import Install, Write
from shaketable.system.store.disk import DiskFull
from shaketable.system.store.log_writer import LogWriter
from shaketable.system.store.plain_commit_log import (
    PlainCommitLog,
    iter_plain_dispatches,
    plain_end,
)

log = logging.getLogger("shaketable.node")


def assemble_master_slave(
    config: NodeConfig, settings: MasterSlaveSettings, machine: Machine, mutant: Mutant
) -> Node:
    """Recover the store from disk and build the node on it. Raises StoreError."""
    classes = mutant.master_slave
    root = str(config.store_root)
    commit_log = classes.commit_log.open(
        machine.disk, root, str(settings.log_folder), config.data_file_bytes
    )
    log.info(
        "event=recovered role=%s begin=%d end=%d torn_bytes=%d aborted=%s",
        settings.config.role.value,
        commit_log.start.position,
        commit_log.end.position,
        commit_log.torn_bytes,
        commit_log.was_aborted,
    )
    limits = replace(limits_of(config), ack_timeout_ms=settings.config.sync_flush_timeout_ms)
    files = checkpoint_files(config, machine, root)
    checkpoint = files.load(commit_log)
    view = PlainLogView(
        commit_log, commit_log.start, commit_log.end, settings.config.tail_bytes_max
    )
    core = classes.core(config.self_id, view, settings.config, now_ms=machine.clock.now_ms())
    broker = mutant.broker(
        core,
        limits,
        checkpoint=checkpoint,
        reader=files.queues,
        key_reader=files.keys if config.is_key_indexed else None,
        mode=master_slave_mode(core, limits, classes.group_commit),
    )
    config_files = classes.config_files(f"{root}/config", machine, broker.tables)
    config_files.load()
    schedulers: list[Callable[[], None]] = []

    def schedule_effects() -> None:
        for one in schedulers:
            one()

    def on_flushed(index: int) -> None:
        core.flushed(index)
        schedule_effects()

    def new_flusher(hooks: WriteHooks) -> MasterSlaveFlusher:
        return MasterSlaveFlusher(commit_log, machine, settings.config, hooks, on_flushed)

    def new_replication(schedule_node_effects: Callable[[], None], _: Reception) -> HAService:
        schedulers.append(schedule_node_effects)
        synchronize = classes.synchronize(machine.clock, broker.tables, schedule_node_effects)
        return HAService(
            config,
            settings,
            machine.clock,
            core,
            schedule_node_effects,
            synchronize,
            config_files,
            classes,
        )

    parts = NodeParts(
        commit_log,
        PlainDataFiles(commit_log, config.data_file_bytes),
        new_flusher,
        new_replication,
    )
    return Node(config, machine, broker, parts, files)


# Finds the full data files of a master-slave broker's commit log and their age, for expiry.
#
# Source: RocketMQ's DefaultMessageStore.CleanCommitLogService, which uses a file's modification
# time; here its age is the store time of the first message after it.


class PlainDataFiles:
    """The full files of a log. Each is examined once."""

    def __init__(self, log: PlainCommitLog, file_bytes: int) -> None:
        self._log = log
        self._file_bytes = file_bytes
        self._found: list[DataFile] = []

    def full_files(self, index: int) -> list[DataFile]:
        """Return the full files that end at or before byte `index`, oldest first.

        Raises DiskFailed.
        """
        log = self._log
        begin = log.start.position
        self._found = [file for file in self._found if file.end.position > begin]
        last = self._found[-1].end.position if self._found else begin
        file_end = last - last % self._file_bytes + self._file_bytes
        while file_end <= index:
            batch = log.read_entries(file_end, 1)
            for dispatch in iter_plain_dispatches(batch.data, batch.position):
                self._found.append(DataFile(plain_end(file_end), dispatch[5]))
                break
            else:
                break  # not a message of a queue, so the file's age is not known yet
            file_end += self._file_bytes
        return list(self._found)


# Writes a master-slave broker's commit log and flushes it: at once, or periodically.
#
# Writes are reported twice: when they are in the page cache, and when they are on disk.
# Source: RocketMQ's GroupCommitService (SYNC_FLUSH) and FlushRealTimeService (ASYNC_FLUSH).

CHECKPOINT_INTERVAL_MS = 3000.0
FULL_RETRY_MS = 200.0
"""How soon writes are retried after the disk was full."""


class MasterSlaveFlusher:
    """Carries out writes in order; `on_flushed(index)` reports the durable watermark."""

    def __init__(
        self,
        log: PlainCommitLog,
        machine: Machine,
        config: MasterSlaveConfig,
        hooks: WriteHooks,
        on_flushed: Callable[[int], None],
    ) -> None:
        self._log = log
        self._writer = LogWriter(log, "page-cache")
        self._clock = machine.clock
        self._run_disk_work = machine.run_disk_work
        self._config = config
        self._hooks = hooks
        self._on_flushed = on_flushed
        self._writes: list[Write] = []
        self._write_seq = 0
        self._written_seq = 0
        self._flushed_seq = 0
        self._advanced = trio.Event()
        self._wake = trio.Event()
        self._is_full = False
        self._is_running = False
        self._retry_due_ms = math.inf
        self._flush_due_ms = math.inf
        self._checkpoint_due_ms = machine.clock.now_ms() + CHECKPOINT_INTERVAL_MS
        self._saved_index = log.synced.index

    def add(self, writes: Sequence[Write], write_seq: int) -> None:
        """Queue writes with consecutive numbers, of which the last is `write_seq`."""
        self._writes += writes
        self._write_seq = write_seq
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is written."""
        return self._written_seq >= self._write_seq

    async def until_durable(self) -> None:
        """Wait until everything added so far is durable; flush here if `run` is not running."""
        if not self._is_running and self.is_idle:
            await self._flush()
        seq = self._write_seq
        while self._flushed_seq < seq:
            if self._flushed_seq < self._written_seq:
                self._flush_due_ms = -math.inf
                self._wake.set()
            await self._advanced.wait()

    async def run(self) -> None:
        """Write and flush until cancelled. Raises DiskFailed: the node must stop."""
        self._is_running = True
        try:
            await self._run()
        finally:
            self._is_running = False

    async def _run(self) -> None:
        while True:
            due_ms = min(self._retry_due_ms, self._flush_due_ms, self._checkpoint_due_ms)
            with self._clock.move_on_at(max(due_ms, 0.0)):
                await self._wake.wait()
            self._wake = trio.Event()
            now_ms = self._clock.now_ms()
            if self._writes and (not self._is_full or now_ms >= self._retry_due_ms):
                await self._write()
            now_ms = self._clock.now_ms()
            if now_ms >= self._flush_due_ms:
                await self._flush()
            if now_ms >= self._checkpoint_due_ms:
                self._checkpoint_due_ms = now_ms + CHECKPOINT_INTERVAL_MS
                await self._run_disk_work(self._save_checkpoint)

    async def _write(self) -> None:
        """Carry out all pending writes; keep those that a full disk leaves undone for a retry."""
        writes, self._writes = self._writes, []
        seq = self._write_seq
        if any(isinstance(write, Install) for write in writes):
            await self._hooks.before_install()
        left = await self._run_disk_work(partial(self._writer.carry_out, writes))
        self._writes[:0] = left
        now_ms = self._clock.now_ms()
        if len(left) < len(writes):
            self._written_seq = seq - len(left)
            self._notify_advanced()
            self._hooks.on_synced(self._written_seq)
            interval_ms = 0.0 if self._config.is_sync_flush else self._config.flush_interval_ms
            self._flush_due_ms = min(self._flush_due_ms, now_ms + interval_ms)
        self._retry_due_ms = now_ms + FULL_RETRY_MS if left else math.inf
        if bool(left) != self._is_full:
            self._is_full = bool(left)
            self._hooks.on_disk_full(self._is_full)

    async def _flush(self) -> None:
        self._flush_due_ms = math.inf
        seq = self._written_seq
        await self._run_disk_work(self._writer.sync)
        self._flushed_seq = seq
        self._on_flushed(self._log.synced.index)
        self._notify_advanced()

    def _notify_advanced(self) -> None:
        self._advanced.set()
        self._advanced = trio.Event()

    def _save_checkpoint(self) -> None:
        index = self._log.synced.index
        if index > self._saved_index:
            self._saved_index = index
            with suppress(DiskFull):  # only a hint for recovery; the next one replaces it
                self._log.save_checkpoint(index)
