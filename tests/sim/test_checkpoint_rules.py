"""What a node keeps beside its log: each rule catches a planted fault."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from shaketable.system.broker.broker_state import BrokerState, encode_state
from shaketable.system.invariants.violated import Violated
from shaketable.system.mutants import Mutant
from shaketable.system.raft.protocol import Compact, LogEnd
from shaketable.system.sim.disk import SimDisk
from shaketable.system.sim.key_queries import KeyQueries
from shaketable.system.sim.rules.kept_files import check_blames_no_disk, check_loaded, check_saved
from shaketable.system.sim.schedules.faults import Expire, FullDisk
from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.sim.schedules.schedule import Call, Schedule, Settings
from shaketable.system.sim.world import run_seed
from shaketable.system.store.broker_checkpoint import CheckpointFiles
from shaketable.system.store.disk import DiskFull
from shaketable.system.store.log_writer import LogWriter
from shaketable.system.store.message import Message, encode_message, tags_in
from shaketable.system.store.state_files import LogDamaged

NO_KEYS = SimpleNamespace(_saved_keys=())
LOG = SimpleNamespace(start=LogEnd(9, 1, 900), end=LogEnd(99, 1, 9900))


def broken(name: str):
    return pytest.raises(Violated, match=f"^{name}:")


def key_file(name_ms: int, earliest_ms: int) -> SimpleNamespace:
    return SimpleNamespace(name_ms=name_ms, earliest_ms=earliest_ms)


def checkpoint(first_offset: int = 0, end_offset: int = 0) -> SimpleNamespace:
    """Return what a checkpoint covers of the topic t's queue 0."""
    ranges = {(b"t", 0): (first_offset, end_offset)}
    return SimpleNamespace(state=encode_state(BrokerState(ranges, {}, {})))


def test_what_a_checkpoint_covers_is_durable_first():
    disk = SimDisk()
    disk.make_dirs("/store/consumequeue/t/0")
    file = disk.create("/store/consumequeue/t/0/00000000000000000000", 200)
    file.pwrite([bytes(20)], 40)
    with broken("checkpoint-covers-what-is-durable"):
        check_saved("n0", disk.platter, "/store", checkpoint(0, 3), NO_KEYS)
    for outside in (checkpoint(0, 2), checkpoint(3, 5), checkpoint(3, 3)):
        check_saved("n0", disk.platter, "/store", outside, NO_KEYS)
    file.sync()
    check_saved("n0", disk.platter, "/store", checkpoint(0, 3), NO_KEYS)


def test_keys_that_a_checkpoint_covers_are_durable_first():
    disk = SimDisk()
    disk.make_dirs("/store/index")
    file = disk.create("/store/index/20260101000000000", 100)
    file.pwrite([b"key"], 40)
    with broken("checkpoint-covers-what-is-durable"):
        check_saved("n0", disk.platter, "/store", checkpoint(), NO_KEYS)
    file.sync()
    check_saved("n0", disk.platter, "/store", checkpoint(), NO_KEYS)


def test_key_files_are_named_by_their_first_message():
    platter = SimDisk().platter
    good = SimpleNamespace(_saved_keys=(key_file(5, 5), key_file(6, 2)))
    check_saved("n0", platter, "/store", checkpoint(), good)
    for files in ((key_file(4, 5),), (key_file(5, 5), key_file(5, 5))):
        with broken("key-files-are-named-by-time"):
            check_saved("n0", platter, "/store", checkpoint(), SimpleNamespace(_saved_keys=files))


def test_a_start_uses_the_checkpoint_that_was_saved():
    check_loaded("n0", 50, SimpleNamespace(applied_index=50), LOG)
    for unknown in (-1, 9, 100):
        check_loaded("n0", unknown, None, LOG)
    with broken("saved-checkpoint-is-used"):
        check_loaded("n0", 50, None, LOG)
    with broken("saved-checkpoint-is-used"):
        check_loaded("n0", 50, SimpleNamespace(applied_index=49), LOG)


def test_damage_is_no_full_disk():
    platter = SimDisk().platter
    check_blames_no_disk("n0", LogDamaged("snapshot", "its CRC does not fit"), platter)
    with broken("damage-is-called-damage"):
        check_blames_no_disk("n0", DiskFull("no room"), platter)
    platter.capacity_bytes = 10
    check_blames_no_disk("n0", DiskFull("no room"), platter)


@pytest.mark.parametrize("properties", ["TAGS\x01größer", "TAGS\x01red\x02TAGS\x01\x02", ""])
def test_the_tags_of_a_message_are_in_its_unit(properties: str):
    message = Message(b"t", 0, 0, 700, b"1.", properties.encode())
    queues: dict[tuple[bytes, int], list[bytes]] = {}
    queries = KeyQueries(RandomStreams(1), b"t", queues)
    queues[b"t", 0] = [encode_message(message)]
    code = tags_in(properties.encode())

    def units(found: int) -> SimpleNamespace:
        return SimpleNamespace(read_units=lambda *_: struct.pack(">qiq", 700, 100, found))

    queries.check_tags(units(code), 0, 1000)
    queries.check_tags(units(code + 1), 800, 1000)
    with broken("units-are-the-messages"):
        queries.check_tags(units(code + 1), 0, 1000)


class Lowering(LogWriter):
    """Forgets how far the log is durable as its start moves up."""

    def _write(self, write):
        super()._write(write)
        if isinstance(write, Compact):
            self.log._watermark.move(self.log.start)


def test_a_watermark_that_falls_is_noticed():
    calls = tuple(Call(at, at // 20 % 3, "batch", 0, 6, 0, 100) for at in range(500, 5_000, 20))
    expired = Expire(start_ms=3000, duration_ms=900)
    settings = Settings(run_ms=6_000, data_file_bytes=8192)
    schedule = Schedule(seed=5, settings=settings, faults=(expired,), calls=calls)
    assert run_seed(5, schedule=schedule).violation is None
    planted = Mutant("lowering", log_writer=Lowering)
    found = run_seed(5, schedule=schedule, mutant=planted).violation
    assert found.invariant == "watermark-never-falls"


def test_keys_that_a_full_disk_leaves_in_the_index_twice_are_noticed(monkeypatch):
    calls = tuple(Call(at, at // 20 % 3, "batch", 0, 6, 0, 100) for at in range(500, 7_000, 20))
    full = FullDisk(
        start_ms=3000, duration_ms=900, node="n1", copies_on_write=True, since="/appliedto"
    )
    settings = Settings(
        run_ms=8_000,
        data_file_bytes=8192,
        checkpoint_interval_ms=1_000.0,
        key_items_max=2_000,
        keyed=1.0,
    )
    schedule = Schedule(seed=5, settings=settings, faults=(full,), calls=calls)
    result = run_seed(5, schedule=schedule)
    assert result.violation is None
    assert result.counts.faults == {"full_disk": 1}
    save = CheckpointFiles.save

    def takes_nothing_back(files, checkpoint):
        files._is_saving = False
        save(files, checkpoint)

    monkeypatch.setattr(CheckpointFiles, "save", takes_nothing_back)
    found = run_seed(5, schedule=schedule).violation
    assert found is not None
    assert found.invariant == "keys-find-messages"
