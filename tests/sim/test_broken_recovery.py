"""Starts that do not come to their end: what they cut off stays away, what they keep stays."""

from __future__ import annotations

import pytest

from shaketable.system.invariants.violated import Violated
from shaketable.system.sim.broken_starts.broken_folders import Folder, check_recovery
from shaketable.system.sim.schedules.random_streams import open_stream
from shaketable.system.sim.schedules.schedule import Call, Schedule, Settings
from shaketable.system.sim.world import PLAIN_FOLDER, ROOT, World
from shaketable.system.store.segment_files import SegmentFiles
from shaketable.system.store.state_files import DurableWatermark

SETTINGS = Settings(members=1, run_ms=4_000, clients=1, queues=1, ack="page-cache")
TIMES = 40


@pytest.fixture(scope="module")
def world() -> World:
    calls = tuple(Call(at_ms, 0, "batch", 0, 5, 0, 400) for at_ms in range(1_000, 3_999, 40))
    world = World(Schedule(seed=7, settings=SETTINGS, faults=(), calls=calls))
    assert world.run() is None
    return world


def recover(world: World) -> None:
    member, rng = world.members["n0"], open_stream(7, "test")
    folder = Folder(member.disk, ROOT, "n0", PLAIN_FOLDER, SETTINGS, rng)
    for _ in range(TIMES):
        assert check_recovery(
            member.disk,
            folder.end_on,
            f"{folder.path}/data",
            SETTINGS.data_file_bytes,
            rng,
            "n0",
        )


def test_a_torn_tail_that_was_cut_off_stays_away(world: World) -> None:
    recover(world)


def test_what_a_start_keeps_and_does_not_make_durable_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SegmentFiles, "sync", lambda _: None)
    with pytest.raises(Violated, match="lost power after a start"):
        recover(world)


def test_a_tail_that_is_not_cut_off_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentFiles, "zero", lambda *_: None)
    with pytest.raises(Violated, match="of a torn tail are back"):
        recover(world)


def test_a_cut_that_an_fsync_dropped_and_nobody_remembers_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = DurableWatermark.move
    monkeypatch.setattr(DurableWatermark, "move", lambda mark, end, _=0: move(mark, end))
    with pytest.raises(Violated, match="of a torn tail are back"):
        recover(world)
