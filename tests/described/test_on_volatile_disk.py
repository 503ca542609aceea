"""A described target whose data is on a volatile disk: where that is, and how it comes back."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from shaketable.harness import described, discovery
from shaketable.harness.contracts.abilities import (
    HasVolatileDisk,
    LosesDisks,
    NoticesDamage,
    SteersNodes,
    StoresFiles,
)
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.errors import IndefiniteError, UsageError
from shaketable.harness.contracts.plugins import Address, NodeLayout, NodeStatus
from shaketable.harness.described.running import targets_of
from shaketable.harness.described.target import DescribedTarget, TargetOnVolatileDisk
from shaketable.harness.runtime import availability, rig
from shaketable.harness.volatile_disk import disk as disks

pytestmark = pytest.mark.usefixtures("fuse")

CLIENT = "def read(s, k): ...\ndef write(s, k, v): ...\ndef cas(s, k, e, v): ...\n"
FAULTS = ("power", "disk-full", "disk-errors", "disk-slow", "disk-stall", "wipe", "damage",
          "rollback")  # fmt: skip


def target_of(folder: Path, more: str) -> DescribedTarget:
    (folder / "client.py").write_text(CLIENT)
    file = folder / described.FILE_NAME
    file.write_text(f'[targets.kvs]\nstart = ["cat", "{{data}}"]\nclient = "client.py"\n{more}\n')
    return targets_of(file)[0]


def layout_of(folder: Path) -> NodeLayout:
    at = Address("127.0.0.1", 1)
    return NodeLayout("n0", folder / "n0", at, at, {})


def volatile(folder: Path, more: str = "") -> TargetOnVolatileDisk:
    target = target_of(folder, f'disk = "volatile"\n{more}')
    assert isinstance(target, TargetOnVolatileDisk)
    return target


def test_its_data_is_in_a_folder_of_the_disk(tmp_path: Path) -> None:
    target, layout = volatile(tmp_path), layout_of(tmp_path)
    assert target.prepare(layout).argv == ("cat", f"{tmp_path}/n0/disk/data")
    assert target.disk(layout) == tmp_path / "n0" / "disk"
    assert target.store(layout).is_dir()
    assert target.store(layout).parent == target.disk(layout)


def test_it_can_do_what_the_faults_ask_for(tmp_path: Path) -> None:
    target = volatile(tmp_path)
    for ability in (HasVolatileDisk, LosesDisks, StoresFiles):
        assert isinstance(target, ability)
    for ability in (SteersNodes, NoticesDamage):
        assert not isinstance(target, ability)


def why(target: DescribedTarget, fault: str, **options: str) -> str | None:
    given = {"disk": "volatile", "victims": [], "nodes": ["n0"], "world": "process", **options}
    plugin = discovery.get("faults", fault).configured(given)
    lacks = availability.lacking(plugin, "process", target, given)
    return lacks if lacks is not None else plugin.unavailable(target, ["n0"])


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_of_disks_is_there(fault: str, tmp_path: Path) -> None:
    assert why(volatile(tmp_path), fault) is None


@pytest.mark.parametrize("fault", FAULTS)
def test_without_such_a_disk_each_is_refused_with_a_reason(fault: str, tmp_path: Path) -> None:
    reason = why(target_of(tmp_path, ""), fault)
    assert reason
    assert "kvs" in reason


def test_power_needs_the_disk_and_says_how_to_get_it(tmp_path: Path) -> None:
    reason = why(target_of(tmp_path, ""), "power")
    assert reason is not None
    assert 'disk = "volatile" in shaketable.toml' in reason
    assert why(volatile(tmp_path), "power", disk="real") == availability.CACHED


def test_a_machine_without_fuse_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = disks.Trial(False, "cannot open /dev/fuse: Permission denied", "let root do it")
    monkeypatch.setattr(disks, "tried_here", lambda: refused)
    assert why(volatile(tmp_path), "disk-stall") == f"{refused.what}; {refused.advice}"
    assert why(volatile(tmp_path), "wipe") is None, "its files are still its files"


@pytest.mark.parametrize(
    ("needed", "disk", "works", "is_mounted"),
    [
        (Capability.POWER, "volatile", True, True),
        (Capability.DISK_SLOW, "volatile", True, True),
        (Capability.KILL, "volatile", True, False),
        (Capability.CLOCK, "volatile", True, False),
        (Capability.POWER, "real", True, False),
        (Capability.POWER, "volatile", False, False),
    ],
)
def test_it_is_mounted_only_where_a_fault_needs_it_and_it_works(
    needed: Capability, disk: str, works: bool, is_mounted: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(disks, "tried_here", lambda: disks.Trial(works, "so it is"))
    layout = replace(layout_of(tmp_path), options={"disk": disk, "steering": True})
    mounted = rig._mounted(volatile(tmp_path), layout, {Capability.KILL, needed})
    if mounted is not None:
        mounted.ready()
        mounted.close()
    assert (mounted is not None) is is_mounted


def test_a_set_up_is_synced_and_done_once_a_disk(tmp_path: Path) -> None:
    target = volatile(tmp_path, 'setup = ["touch", "{data}/made"]')
    layout = layout_of(tmp_path)
    argv = target.prepare(layout).argv
    assert "sync" in argv[-1]
    data = target.data(layout)

    def start() -> None:
        subprocess.run(argv, capture_output=True, check=False, timeout=30)

    start()
    assert (data / "made").exists()
    (data / "made").unlink()
    start()
    assert not (data / "made").exists(), "it is set up"
    trio.run(partial(target.renew, {"n0": layout}, "n0", {"n0": 1}))
    start()
    assert (data / "made").exists(), "a new disk is set up again"


def test_a_node_is_back_when_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, layout = volatile(tmp_path), layout_of(tmp_path)
    answers: list[NodeStatus | None] = [None, NodeStatus("n0", "leader", 0, "n0", -1, -1)]

    async def status(_: NodeLayout, __: float) -> NodeStatus | None:
        await trio.lowlevel.checkpoint()
        return answers.pop(0) if answers else None

    monkeypatch.setattr(target, "status", status)
    trio.run(partial(target.readmit, {"n0": layout}, "n0", {}, 30.0))
    assert not answers
    with pytest.raises(IndefiniteError, match="n0 was not ready"):
        trio.run(partial(target.readmit, {"n0": layout}, "n0", {}, 0.05))


def test_no_disk_is_taken_while_another_node_is_missing(tmp_path: Path) -> None:
    target = volatile(tmp_path)
    assert target.why_no_disk_may_go(["n0"]) is None
    assert target.why_not_now("n0", []) is None
    assert target.why_not_now("n0", ["n1", "n2"]) == "n1, n2 is not back"


def test_damage_leaves_zeros_at_the_end_of_files_alone(tmp_path: Path) -> None:
    target, layout = volatile(tmp_path), layout_of(tmp_path)
    target.prepare(layout)
    data = target.data(layout)
    (data / "log").write_bytes(b"x" * 5 + bytes(3 << 20))
    (data / "zeros").write_bytes(bytes(10))
    (data / "link").symlink_to("log")
    ranges = target.stored_ranges(layout)
    assert [(each.path.name, each.start, each.end) for each in ranges] == [("log", 0, 5)]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('disk = "soft"', "disk"),
        ('disk = "volatile"\nhosts = { ssh = ["a"] }\nready = { http = "http://x" }', "hosts"),
    ],
)
def test_what_has_no_such_disk_is_refused_in_a_line(more: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        target_of(tmp_path, more)
    assert "\n" not in str(caught.value)


def test_a_group_that_runs_already_has_no_such_disk(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    file = tmp_path / described.FILE_NAME
    file.write_text(
        '[targets.kvs]\nnodes = ["127.0.0.1:1"]\nclient = "client.py"\ndisk = "volatile"\n'
    )
    with pytest.raises(UsageError, match="disk is for nodes that shaketable starts"):
        targets_of(file)

    assert Capability.POWER in availability.PROCESS
