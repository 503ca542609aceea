"""Crashes at every operation of the disk while a broker's checkpoint is saved.

After each restart, the checkpoint and the replay of the log behind it must give the queues and
the key index that a dispatch of the whole log gives. Planted bugs must be found by this test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from unittest.mock import patch

import pytest
from checkpoint_life import Life, Node, crash_at_all, crash_points
from hypothesis import given
from hypothesis import strategies as st

from shaketable.system.broker.consume_queue import ConsumeQueues
from shaketable.system.sim.disk import PowerLoss
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint, CheckpointFiles
from shaketable.system.store.consume_queue_files import ConsumeQueueFiles
from shaketable.system.store.disk import StoreError
from shaketable.system.store.key_index import KeyFileWriter, KeyIndex
from shaketable.system.store.segment_files import OpenFiles


def test_a_crash_at_every_operation_loses_nothing() -> None:
    points = list(crash_points())
    assert len(points) > 400
    crash_at_all(points)


LIVES = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.sampled_from(("apply", "apply", "expire", "save", "save")), st.integers(0, 9)
            ),
            max_size=8,
        ),
        st.none() | st.integers(1, 60),  # stops at this operation of the disk
        st.none() | st.integers(1, 12),  # and this one of the next start
        st.booleans(),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=4,
)


@given(LIVES)
def test_lives_with_crashes_in_saves_and_in_starts(lives) -> None:
    life = Life()
    for steps, operation, operation_of_start, loses_unsynced, seed in lives:
        platter = life.node.disk.platter
        platter.stop_at = platter.operations + operation if operation else None
        with contextlib.suppress(PowerLoss):
            life.run(steps)
        if operation_of_start:
            disk = life.node.disk.restart(loses_unsynced=loses_unsynced, rng=Random(seed))
            platter.stop_at = platter.operations + operation_of_start
            with contextlib.suppress(PowerLoss):
                Node(disk, life.log)
            life.node.disk = disk
        life.restart(loses_unsynced=loses_unsynced, seed=seed + 1)


# ---- planted bugs ---------------------------------------------------------------------


def state_first(self: CheckpointFiles, checkpoint: BrokerCheckpoint) -> None:
    """Plant: `appliedto` names units that are not durable."""
    with patch.object(ConsumeQueueFiles, "sync", lambda _: None):
        SAVE(self, checkpoint)


def names_unsynced(self: ConsumeQueueFiles, folder: str, path: str) -> None:
    """Plant: a unit file's name is left to a power loss."""
    with patch.object(type(self._disk), "sync_dir", lambda *_: None):
        PREPARE(self, folder, path)


def slots_first(self: KeyFileWriter) -> None:
    """Plant: slots may be durable when their items are not."""
    real = type(self._file).sync
    skipped: list[object] = []

    def sync(file: object) -> None:
        if skipped:
            real(file)
        skipped.append(file)

    with patch.object(type(self._file), "sync", sync):
        FLUSH(self)


def deletes_too_much(self: ConsumeQueueFiles, queue: tuple[bytes, int], offset: int) -> None:
    """Plant: the file that holds the queue's begin goes too."""
    DELETE(self, queue, offset + self.file_bytes // 20)


def deletes_early(self: KeyIndex, position: int) -> None:
    """Plant: index files go while the last checkpoint still names them."""
    FORGET(self, position)
    self.delete_forgotten()


def evicts_unsynced(self: OpenFiles) -> None:
    """Plant: a written file is closed for want of handles, and never synced."""
    while len(self._files) >= 2:
        self.drop(next(iter(self._files)))


def confirms_all(self: ConsumeQueues, _: object) -> None:
    """Plant: units that came during the save count as saved."""
    CHECKPOINTED(self, self.units_since_checkpoint())


def skips_a_unit(self: ConsumeQueues, *args: object) -> int:
    """Plant: the begin after expiry is one too high."""
    offset = OFFSET_AT(self, *args)
    return min(offset + 1, args[1].max_offset) if offset > args[1].min_offset else offset


SAVE, PREPARE = CheckpointFiles.save, ConsumeQueueFiles._prepare
FLUSH, DELETE = KeyFileWriter.flush, ConsumeQueueFiles.delete_below
FORGET = KeyIndex.forget_below
CHECKPOINTED, OFFSET_AT = ConsumeQueues.checkpointed, ConsumeQueues._offset_at
PLANTS: list[tuple[type, str, Callable[..., object]]] = [
    (CheckpointFiles, "save", state_first),
    (ConsumeQueueFiles, "_prepare", names_unsynced),
    (ConsumeQueueFiles, "delete_below", deletes_too_much),
    (OpenFiles, "_make_room", evicts_unsynced),
    (KeyFileWriter, "flush", slots_first),
    (KeyFileWriter, "cut", lambda _: True),
    (KeyIndex, "forget_below", deletes_early),
    (ConsumeQueues, "_offset_at", skips_a_unit),
]


@pytest.mark.parametrize(("owner", "name", "planted"), PLANTS)
def test_planted_bugs_are_found(owner: type, name: str, planted: Callable[..., object]) -> None:
    points = list(crash_points())
    Random(0).shuffle(points)
    with patch.object(owner, name, planted), pytest.raises((AssertionError, StoreError)):
        crash_at_all(points)


def test_units_that_come_during_a_save_are_due_at_the_next() -> None:
    def life_with_a_slow_save() -> None:
        life = Life()
        life.run([("apply", 5)])
        checkpoint = life.node.checkpoint()
        life.node.apply(5)
        life.node.save(checkpoint)
        life.node.check()
        life.saved = life.saving = 4
        life.run([("save", 0)])
        life.restart(loses_unsynced=True, seed=0)

    life_with_a_slow_save()
    with patch.object(ConsumeQueues, "checkpointed", confirms_all), pytest.raises(AssertionError):
        life_with_a_slow_save()
