"""Files of dead nodes whose logs cannot be read: wiped, damaged, rolled back, and power lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from shaketable.harness.contracts.abilities import DurableRange
from shaketable.harness.contracts.capabilities import Damage
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Address, Launch, NodeLayout
from shaketable.harness.runtime.processes.disks import (
    Damages,
    Member,
    ProcessMachines,
    watch_disks,
)
from shaketable.harness.runtime.processes.nodes import NodeProcess
from shaketable.harness.runtime.processes.steered import SteeredNodes
from shaketable.harness.volatile_disk.disk import VolatileDisk

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("fuse")]

NODE = """
import os
os.makedirs("disk/data", exist_ok=True)
file = os.open("disk/data/log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
os.write(file, b"s" * 100)
os.fsync(file)
os.write(file, b"u" * 10)
print("up", flush=True)
while True:
    os.read(0, 1) or os.kill(os.getpid(), 19)
"""


class Files:
    """A target whose files may be damaged, and whose logs are not read."""

    name = "files"

    def stored_ranges(self, layout: NodeLayout) -> Sequence[DurableRange]:
        return [DurableRange(self.store(layout) / "log", 0, 100)]

    def store(self, layout: NodeLayout) -> Path:
        return layout.directory / "disk" / "data"

    def _not_here(self, *_: Any) -> Any:
        raise AssertionError

    why_no_disk_may_go = why_not_now = renew = readmit = _not_here


class Starter:
    def __init__(self, process: NodeProcess) -> None:
        self.process = process

    async def kill(self, node: str) -> dict[str, Any]:
        await self.process.kill()
        return {"incarnation": self.process.incarnation}

    async def restart(self, node: str, incarnation: int) -> None:
        self.process.start()

    def start(self, node: str) -> None:
        self.process.start()


@contextmanager
def a_node(folder: Path, *, has_disk: bool) -> Iterator[Member]:
    at = Address("127.0.0.1", 1)
    layout = NodeLayout("n0", folder / "n0", at, at, {})
    (layout.directory / "disk").mkdir(parents=True)
    disk = VolatileDisk("n0", layout.directory / "disk") if has_disk else None
    try:
        if disk is not None:
            disk.ready()
        prefix = () if disk is None else disk.enter_command(layout.directory)
        launch = Launch(("python3", "-I", "-S", "-c", NODE))
        log = layout.directory / "node.log"
        process = NodeProcess("n0", launch, layout.directory, log, 0, prefix)
        yield Member(layout, process, None, disk)
    finally:
        if disk is not None:
            disk.close()


async def started(member: Member) -> None:
    process = member.process
    process.start()
    with trio.fail_after(30):
        while process.log.read_text().split().count("up") < process.incarnation:
            await trio.sleep(0.01)


both = pytest.mark.parametrize("has_disk", [True, False])


@both
def test_a_wiped_store_is_empty_and_its_bytes_are_told(has_disk: bool, tmp_path: Path) -> None:
    async def wiped(member: Member) -> dict[str, Any]:
        await started(member)
        await member.process.kill()
        machines = ProcessMachines({"n0": member}, Starter(member.process), None)
        store = Files().store(member.layout)
        lost = await machines.lose("n0", store)
        assert not (store / "log").exists()
        assert store.exists() is has_disk, "a disk can get it only now"
        await started(member)
        await member.process.kill()
        assert (store / "log").stat().st_size == 110
        await machines.empty("n0", store)
        return lost

    with a_node(tmp_path, has_disk=has_disk) as member:
        lost = trio.run(wiped, member)
    assert lost == {"files": 1, "bytes": 110, "messages": 0, "has_log": False}


def damages(member: Member, answers: Callable[[str], bool]) -> Damages:
    return Damages(Files(), {"n0": member}, answers, None)  # type: ignore[arg-type]


@both
def test_damage_is_seen_by_the_node_and_serving_with_it_is_no_remark(
    has_disk: bool, tmp_path: Path
) -> None:
    async def damaged(member: Member) -> bytes:
        await started(member)
        await member.process.kill()
        found = damages(member, lambda _: True)
        done = await found.damage("n0", Damage(how="flip", bytes_=3, seed="1"))
        assert done["bytes"] == 3
        member.process.start()
        assert await found.watch("n0") == {"refused": None, "serves": True}
        assert found.remarks == []
        await member.process.kill()
        return (Files().store(member.layout) / "log").read_bytes()[:100]

    with a_node(tmp_path, has_disk=has_disk) as member:
        left = trio.run(damaged, member)
    assert sum(byte != ord("s") for byte in left) == 3


@both
def test_a_rollback_tells_how_much_was_put_back(has_disk: bool, tmp_path: Path) -> None:
    async def rolled_back(member: Member) -> None:
        await started(member)
        await member.process.kill()
        found = damages(member, lambda _: True)
        copy = await found.copy("n0")
        same = await found.damage("n0", Damage(how="rollback", copy=copy))
        assert same == {"file": ".", "bytes": 0, "entries": 0, "has_log": False}
        copy = await found.copy("n0")
        await started(member)
        await member.process.kill()
        log = Files().store(member.layout) / "log"
        assert log.stat().st_size > 110
        done = await found.damage("n0", Damage(how="rollback", copy=copy))
        assert done["bytes"] > 110
        assert log.stat().st_size == 110

    with a_node(tmp_path, has_disk=has_disk) as member:
        trio.run(rolled_back, member)


def test_a_power_loss_takes_what_was_not_synced(tmp_path: Path) -> None:
    async def lost(member: Member) -> dict[str, Any]:
        nodes = SteeredNodes(Files(), {"n0": member}, Starter(member.process))  # type: ignore[arg-type]
        await started(member)
        found = await nodes.lose_power(["n0"])
        again = await nodes.lose_power(["n0"])
        assert again["lost_bytes"] == {"n0": 0}, "it was lost before"
        return found

    with a_node(tmp_path, has_disk=True) as member:
        found = trio.run(lost, member)
        assert (Files().store(member.layout) / "log").read_bytes() == b"s" * 100
    assert found["lost_bytes"] == {"n0": 10}
    assert found["lost_entries"] == {"n0": 0}


def test_a_disk_that_ends_by_itself_is_told(tmp_path: Path) -> None:
    async def watched(member: Member) -> None:
        assert member.disk is not None
        os.kill(member.disk.pid, signal.SIGKILL)
        with trio.fail_after(30):
            await watch_disks({"n0": member})

    with (
        a_node(tmp_path, has_disk=True) as member,
        pytest.raises(HarnessError, match="the disk of n0 ended"),
    ):
        trio.run(partial(watched, member))
