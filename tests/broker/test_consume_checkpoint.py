"""A broker's checkpoint: what damage, another log, a full and a failing disk do to it."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Iterator
from unittest.mock import patch

from checkpoint_life import FOLDER, ROOT, T0_MS, Life, Log, Node

from shaketable.system.broker.broker_state import BrokerState, encode_state, ranges_of
from shaketable.system.raft.protocol import LogEnd
from shaketable.system.sim.disk import SimDisk
from shaketable.system.store import broker_checkpoint
from shaketable.system.store.broker_checkpoint import CheckpointFiles
from shaketable.system.store.disk import DiskFailed, DiskFull, StoreError, replace_file
from shaketable.system.store.key_index import Sizes


def saved_life() -> Life:
    life = Life()
    life.run([("apply", 7), ("save", 0), ("apply", 12), ("save", 0)])
    return life


def paths_on(disk: SimDisk) -> list[str]:
    return sorted(path for path in disk.platter.inodes if not path.endswith("/checkpoint"))


def test_whatever_is_missing_costs_only_a_rebuild() -> None:
    paths = paths_on(saved_life().node.disk)
    assert len(paths) > 15
    for path in paths:
        life = saved_life()
        life.node.disk.unlink(path)
        node = Node(life.node.disk, life.log)
        assert node.loaded is None
        node.check()
        node.save(node.checkpoint())
        again = Node(life.node.disk, life.log)
        assert again.loaded is not None
        again.check()


def test_a_damaged_state_file_costs_only_a_rebuild() -> None:
    size = saved_life().node.disk.platter.written_size(f"{FOLDER}/appliedto")
    for position in range(size):
        life = saved_life()
        life.node.disk.platter.flip_bit(f"{FOLDER}/appliedto", position, position % 8)
        node = Node(life.node.disk, life.log)
        assert node.loaded is None
        node.check()


def test_bytes_that_are_no_state_cost_only_a_rebuild() -> None:
    for payload in (b"", b"\x91", encode_state(BrokerState())):
        life = saved_life()
        head = broker_checkpoint._MAGIC_AND_CRC.pack(b"applied\0", zlib.crc32(payload))
        replace_file(life.node.disk, f"{FOLDER}/appliedto", head + payload)
        assert Node(life.node.disk, life.log).loaded is None
    life = saved_life()
    life.node.save(dataclasses.replace(life.node.checkpoint(), state=encode_state(BrokerState())))
    files = CheckpointFiles(
        life.node.disk, ROOT, FOLDER, unreadable, queue_file_bytes=60, key_sizes=Sizes(3, 6)
    )
    assert files.load(life.log) is None


def unreadable(state: bytes) -> dict[tuple[bytes, int], tuple[int, int]]:
    raise StoreError("cannot be read")


def test_other_sizes_cost_only_a_rebuild() -> None:
    for queue_file_bytes, key_sizes in ((80, Sizes(3, 6)), (60, Sizes(4, 6)), (60, Sizes(3, 7))):
        life = saved_life()
        files = CheckpointFiles(
            life.node.disk,
            ROOT,
            FOLDER,
            ranges_of,
            queue_file_bytes=queue_file_bytes,
            key_sizes=key_sizes,
        )
        assert files.load(life.log) is None
        assert Node(life.node.disk, life.log).loaded is None  # it is gone for good


def test_a_checkpoint_of_another_log_is_not_taken_even_if_the_log_grows_to_fit() -> None:
    life = saved_life()
    life.log.end = 10  # the rest was lost with the page caches of a majority
    assert Node(life.node.disk, life.log).loaded is None
    life.log.end = 19
    assert Node(life.node.disk, life.log).loaded is None


def test_a_checkpoint_at_another_position_is_not_taken() -> None:
    life = saved_life()
    with patch.object(Log, "log_end_at", lambda _, index: LogEnd(index, 1, index * 99, 0)):
        assert Node(life.node.disk, life.log).loaded is None


def test_a_full_disk_at_any_operation_only_delays_a_checkpoint() -> None:
    for count in range(80):
        life = Life()
        life.run([("apply", 7), ("save", 0), ("apply", 11), ("expire", 9)])
        left = iter(range(count))

        def fill(kind: str, path: str, left: Iterator[int] = left) -> None:
            if kind in {"create", "pwrite"} and next(left, None) is None:
                raise DiskFull("no space left on device")

        life.node.disk.platter.on_operation = fill
        try:
            life.run([("save", 0)])
            assert count > 20, "nothing was full"
        except DiskFull:
            assert count < 60
        life.node.check()
        life.run([("apply", 3)])
        with contextlib.suppress(DiskFull):
            life.run([("save", 0)])
        life.node.check()
        life.node.disk.platter.on_operation = None
        life.run([("save", 0)])
        life.node.check()
        life.restart(loses_unsynced=True, seed=count)


def test_what_was_saved_already_is_passed_over() -> None:
    life = Life()
    life.run([("apply", 7)])
    older = life.node.checkpoint()
    life.run([("apply", 3)])
    checkpoint = life.node.checkpoint()
    life.node.files.save(checkpoint)  # and the broker hears of neither
    life.node.files.save(older)
    life.run([("apply", 2), ("save", 0)])
    life.node.check()
    life.restart(loses_unsynced=True, seed=0)
    assert list(life.node.files.keys.candidates(b"t", b"k1", 0, 1 << 62)) == [948, 548, 148]


def test_a_failed_sync_ends_the_node_and_the_next_one_goes_on() -> None:
    for failing in range(30):
        life = Life()
        life.run([("apply", 7), ("save", 0), ("apply", 11)])
        platter = life.node.disk.platter
        syncs = iter(range(failing))

        def fail(kind: str, path: str, platter=platter, syncs=syncs) -> None:
            if kind == "sync":
                platter.sync_failures = int(next(syncs, None) is None)

        platter.on_operation = fail
        try:
            life.run([("save", 0)])
            assert failing > 10, "nothing failed"
        except DiskFailed:
            assert failing < 25
        platter.on_operation, platter.sync_failures = None, 0
        life.restart(loses_unsynced=False, seed=0)  # what was dropped still seems to be there
        life.run([("apply", 1), ("save", 0)])
        life.restart(loses_unsynced=True, seed=failing)


def test_rocketmqs_checkpoint_page_says_up_to_which_time_all_is_durable() -> None:
    life = saved_life()
    life.restart(loses_unsynced=True, seed=1)
    file = life.node.disk.open(f"{ROOT}/checkpoint")
    store_ms = (T0_MS + 19).to_bytes(8, "big")
    assert file.pread(9999, 0) == store_ms * 3 + bytes(4096 - 24)


def test_closed_files_take_no_more() -> None:
    life = saved_life()
    life.node.files.close()
    Node(life.node.disk, life.log).check()
