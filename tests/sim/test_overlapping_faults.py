"""Faults of one kind that overlap at a node: the end of one leaves the others in force."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shaketable.system.sim.disk import Platter, SimDisk
from shaketable.system.sim.fault_actions import FaultActions
from shaketable.system.sim.schedules.faults import (
    AnyFault,
    ClockRate,
    CrashAtOperation,
    Eio,
    FailFsync,
    FullDisk,
)
from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.store.disk import DiskFull


class Stage:
    """A world of one node, as far as faults of a node see it, and its time."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.rate = 1.0
        self.restarts: list[float] = []
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.platter = Platter()
        self.member = SimpleNamespace(
            name="n0", is_up=True, is_removed=False, loses_unsynced=True, run_clock_at=self._run_at,
            disk=SimpleNamespace(platter=self.platter), measure_disk=lambda: None,
        )  # fmt: skip
        self.world = SimpleNamespace(
            heap=self, present={"n0": self.member}, leader=lambda: None, rngs=RandomStreams(0),
            trace=SimpleNamespace(write=None), counts=SimpleNamespace(fault=lambda kind: None),
            restart=lambda _: self.restarts.append(self.now_ms),
        )  # fmt: skip
        self.actions = FaultActions(self.world)  # type: ignore[arg-type]

    def _run_at(self, rate: float) -> None:
        self.rate = rate

    def push(self, at_ms: float, do: Callable[..., None], *what: Any) -> None:
        self._due.append((at_ms, len(self._due), do, what))

    def play(self, *faults: AnyFault, until_ms: float) -> Stage:
        """Apply the faults, each at its time, and what ends them by then."""
        for fault in faults:
            self.push(fault.start_ms, self.actions.apply, fault)
        return self.go_on(until_ms)

    def go_on(self, until_ms: float) -> Stage:
        while (due := min(self._due, default=None)) is not None and due[0] <= until_ms:
            self._due.remove(due)
            self.now_ms = due[0]
            due[2](*due[3])
        return self


def at(kind: Any, start_ms: int, duration_ms: int, **more: Any) -> AnyFault:
    fault: AnyFault = kind(start_ms=start_ms, duration_ms=duration_ms, node="n0", **more)
    return fault


@pytest.mark.parametrize("lasts_ms", [(200, 200), (400, 100)], ids=["in-a-row", "within"])
def test_a_disk_fails_until_the_last_fault_ends(lasts_ms: tuple[int, int]) -> None:
    first, second = lasts_ms
    stage = Stage().play(at(Eio, 0, first), at(Eio, 100, second), until_ms=250)
    assert stage.platter.is_failing
    assert not stage.restarts
    stage.go_on(500)
    assert not stage.platter.is_failing
    assert stage.restarts == [max(first, 100 + second)]


def test_a_disk_is_full_until_the_last_fault_ends() -> None:
    stage = Stage().play(
        at(FullDisk, 0, 200, copies_on_write=True), at(FullDisk, 100, 200, spare_bytes=8192),
        until_ms=150,
    )  # fmt: skip
    platter = stage.platter
    assert (platter.capacity_bytes, platter.copies_on_write) == (0, True)
    stage.go_on(250)
    assert (platter.capacity_bytes, platter.copies_on_write) == (8192, False)
    stage.go_on(300)
    assert platter.capacity_bytes is None


def test_a_nearly_full_disk_refuses_some_writes_and_a_full_one_beside_it_all() -> None:
    stage = Stage().play(
        at(FullDisk, 0, 200, refused=0.3), at(FullDisk, 100, 50), until_ms=50
    )  # fmt: skip
    disk = SimDisk(stage.platter)

    def refused() -> int:
        count = 0
        for number in range(200):
            try:
                disk.create(f"{number}", 4096).close()
            except DiskFull:
                count += 1
        return count

    assert 30 < refused() < 90
    stage.go_on(120)
    assert refused() == 200
    stage.go_on(170)
    assert 30 < refused() < 90
    stage.go_on(250)
    assert refused() == 0


def test_a_disk_becomes_full_as_something_is_written() -> None:
    stage = Stage().play(
        at(FullDisk, 0, 100, since="/appliedto"), at(FullDisk, 0, 200, since="/index/"),
        until_ms=50,
    )  # fmt: skip
    disk = SimDisk(stage.platter)
    disk.create("store/data/0", 4096)
    disk.create("store/index/0", 0)
    with pytest.raises(DiskFull):
        disk.create("store/data/1", 4096)
    disk.create("store/appliedto", 0)
    stage.go_on(150)
    with pytest.raises(DiskFull):
        disk.create("store/data/1", 4096)
    stage.go_on(250)
    disk.create("store/data/1", 4096)
    assert stage.platter.on_operation is None

    stage = Stage().play(at(FullDisk, 0, 100, since="/index/"), until_ms=150)
    disk = SimDisk(stage.platter)
    disk.create("store/index/0", 4096)
    assert stage.restarts == []
    assert stage.platter.on_operation is None


def test_a_fault_takes_back_only_the_fsync_failure_that_it_brought() -> None:
    stage = Stage().play(at(FailFsync, 0, 200), at(FailFsync, 100, 200), until_ms=250)
    assert stage.platter.sync_failures == 1
    assert stage.go_on(300).platter.sync_failures == 0
    stage = Stage().play(at(FailFsync, 0, 200), at(FailFsync, 100, 200), until_ms=150)
    stage.platter.sync_failures -= 1  # the first has taken effect
    assert stage.go_on(250).platter.sync_failures == 1


def test_a_clock_runs_at_the_rate_of_the_last_fault_in_force() -> None:
    faults = at(ClockRate, 0, 400, rate=1.1), at(ClockRate, 100, 100, rate=0.9)
    stage = Stage().play(*faults, until_ms=150)
    assert stage.rate == 0.9
    assert stage.go_on(250).rate == 1.1
    assert stage.go_on(400).rate == 1.0


def test_a_crash_at_an_operation_that_is_to_come_is_not_called_off_by_an_older_one() -> None:
    older = at(CrashAtOperation, 0, 200, operations=50, loses_unsynced=False)
    newer = at(CrashAtOperation, 100, 200, operations=90, loses_unsynced=True)
    stage = Stage().play(older, newer, until_ms=250)
    assert stage.platter.stop_at == 90
    assert stage.go_on(300).platter.stop_at is None


@pytest.mark.parametrize(("done", "stop_at"), [(10, 50), (60, None)])
def test_an_older_crash_at_an_operation_is_in_force_again_if_it_is_still_to_come(
    done: int, stop_at: int | None
) -> None:
    older = at(CrashAtOperation, 0, 400, operations=50, loses_unsynced=False)
    newer = at(CrashAtOperation, 100, 100, operations=40, loses_unsynced=True)
    stage = Stage().play(older, newer, until_ms=150)
    stage.platter.operations = done
    stage.go_on(250)
    assert stage.platter.stop_at == stop_at
    assert stage.member.loses_unsynced == (stop_at is None)
