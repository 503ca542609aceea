"""Saves a master-slave broker's topics, offsets, delays and groups in config/*.json.

Topics are saved soon after a change, offsets every 5 s, delays and groups every 10 s, and all of
them at a clean stop. A file is replaced atomically; its previous contents are kept as `.bak`.
Source: RocketMQ 4.9's ConfigManager, MixAll.string2File and BrokerController.initialize
(flushConsumerOffsetInterval, flushDelayOffsetInterval); DLEDGER.md B.2.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial

from shaketable.system.broker.broker_tables import BrokerTables
from shaketable.system.native.config_files import (
    DELAYS,
    GROUPS,
    OFFSETS,
    TOPICS,
    delivery_offsets,
    encode_tables,
    load_tables,
)
from shaketable.system.node.clock import sleep
from shaketable.system.node.machine import Machine
from shaketable.system.remoting.command import CommandError
from shaketable.system.store.disk import DiskFull, StoreError, read_file, replace_file
from shaketable.system.store.group_events import OFFSET_QUEUE, TOPIC_QUEUE

POLL_INTERVAL_MS = 500.0
INTERVALS_MS = {TOPICS: 0.0, OFFSETS: 5_000.0, DELAYS: 10_000.0, GROUPS: 10_000.0}

log = logging.getLogger("shaketable.node")


class ConfigFiles:
    """The configuration files in one folder, and the tables that they store."""

    def __init__(self, folder: str, machine: Machine, tables: BrokerTables) -> None:
        self._folder = folder
        self._disk = machine.disk
        self._clock = machine.clock
        self._run_disk_work = machine.run_disk_work
        self._tables = tables
        self._due_ms = {name: machine.clock.now_ms() + ms for name, ms in INTERVALS_MS.items()}
        self._saved: dict[str, object] = {}
        self._unreadable: set[str] = set()

    def load(self) -> None:
        """Load each file, or its `.bak` if it cannot be decoded.

        All files are written again when they are due, since a checkpoint may hold newer state.
        Raises StoreError if neither can be decoded.
        """
        self._disk.make_dirs(self._folder)
        for name in INTERVALS_MS:
            self._load(name)

    async def run(self) -> None:
        """Save changed tables when they are due, until cancelled. Raises DiskFailed."""
        while True:
            await sleep(self._clock, POLL_INTERVAL_MS)
            now_ms = self._clock.now_ms()
            for name, due_ms in self._due_ms.items():
                if now_ms >= due_ms:
                    self._due_ms[name] = now_ms + INTERVALS_MS[name]
                    await self._save(name)

    async def save(self) -> None:
        """Save all changed tables. Raises DiskFailed."""
        for name in INTERVALS_MS:
            await self._save(name)

    async def _save(self, name: str) -> None:
        state = self._state(name)
        if self._saved.get(name) == state:
            return
        data = encode_tables(name, self._tables, self._clock.wall_ms())
        with suppress(DiskFull):  # retried when it is due again
            await self._run_disk_work(partial(self._replace, name, data))
            self._saved[name] = state

    def _replace(self, name: str, data: bytes) -> None:
        path = self._path(name)
        if self._disk.exists(path) and path not in self._unreadable:
            replace_file(self._disk, f"{path}.bak", read_file(self._disk, path))
        replace_file(self._disk, path, data)
        self._unreadable.discard(path)

    def _load(self, name: str) -> None:
        path, problem = self._path(name), ""
        for candidate in (path, f"{path}.bak"):
            if not self._disk.exists(candidate):
                continue
            try:
                load_tables(name, read_file(self._disk, candidate), self._tables)
            except CommandError as error:
                problem = f"{candidate}: {error}"
                self._unreadable.add(candidate)
                log.warning("event=config_file_unreadable path=%s error=%s", candidate, error)
            else:
                return
        if problem:
            raise StoreError(f"{problem}; repair it, or remove it and its .bak to begin without")

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}.json"

    def _state(self, name: str) -> object:
        """Return a value that changes whenever the file's contents would change."""
        tables = self._tables
        if name == TOPICS:
            return tables.versions[TOPIC_QUEUE]
        if name == OFFSETS:
            return tables.versions[OFFSET_QUEUE]
        if name == GROUPS:
            return tables.offsets.groups(), dict(tables.groups)
        return delivery_offsets(tables)
