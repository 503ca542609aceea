"""The files in config/ when the process dies between two of its steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from master_slave_brokers import MasterSlaveBroker

from shaketable.system.broker.reput import BrokerTables
from shaketable.system.node.disks.real_disk import RealDisk, RealFile
from shaketable.system.node.machine import SystemClock
from shaketable.system.node.master_slave.config_files import ConfigFiles
from shaketable.system.store.disk import DiskFailed, DiskFull


class Dying(RealDisk):
    """The process dies where the file itself would get its new text."""

    __slots__ = ()

    def rename(self, source: str, target: str) -> None:
        if target.endswith(".json"):
            raise DiskFailed("it died here")
        super().rename(source, target)


class Full(RealDisk):
    """There is room for no more files."""

    __slots__ = ()

    def create(self, path: str, size: int, *, reserve: bool = True) -> RealFile:
        raise DiskFull(f"cannot create {path}: No space left on device")


async def at_once(work: Any) -> None:
    work()


def files_of(folder: Path, disk: RealDisk) -> tuple[ConfigFiles, BrokerTables]:
    tables = MasterSlaveBroker().broker.tables
    machine: Any = SimpleNamespace(disk=disk, clock=SystemClock(), run_disk_work=at_once)
    files = ConfigFiles(str(folder), machine, tables)
    files.load()
    return files, tables


def test_a_damaged_file_never_takes_the_place_of_what_it_said_before(tmp_path: Path) -> None:
    files, tables = files_of(tmp_path, RealDisk())
    for offset in (5, 6):
        tables.offsets.advance("g", "t", 0, offset)
        for queue_id in tables.versions:
            tables.versions[queue_id] += 1
        trio.run(files.save)
    (tmp_path / "consumerOffset.json").write_bytes(bytes(40))
    files, tables = files_of(tmp_path, Dying())
    assert tables.offsets.get("g", "t", 0) == 5
    for queue_id in tables.versions:
        tables.versions[queue_id] += 1
    with pytest.raises(DiskFailed):
        trio.run(files.save)
    files, tables = files_of(tmp_path, RealDisk())
    assert tables.offsets.get("g", "t", 0) == 5
    tables.offsets.advance("g", "t", 0, 7)
    for queue_id in tables.versions:
        tables.versions[queue_id] += 1
    for _ in range(2):
        trio.run(files.save)
    _, tables = files_of(tmp_path, RealDisk())
    assert tables.offsets.get("g", "t", 0) == 7
    (tmp_path / "consumerOffset.json").unlink()
    _, tables = files_of(tmp_path, RealDisk())
    assert tables.offsets.get("g", "t", 0) == 5


def test_what_a_full_disk_does_not_take_at_a_stop_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, tables = files_of(tmp_path, Full())
    tables.offsets.advance("g", "t", 0, 5)
    trio.run(files.save)
    lines = [record.message for record in caplog.records]
    assert len(lines) == 4
    assert f"event=config_file_lost path={tmp_path}/consumerOffset.json error=cannot" in lines[1]
