"""Invariants of what a node keeps beside its log: checkpoints, queue files, key files, watermark.

All of it can be rebuilt from the log, so that a fault in it costs a client nothing but time,
until a loss of power, a tool or a clock falls into the right moment. Here each save shows it.
Source: DLEDGER.md B.2 and B.3; RocketMQ's IndexService (a key file is named by its first
message's time).
"""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter

from shaketable.system.broker.broker_state import ranges_of
from shaketable.system.invariants.durability import check_flushed, check_marked, watermark_of
from shaketable.system.invariants.queues import check_limit
from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.protocol import LogEnd
from shaketable.system.sim.disk import Inode, Platter, SimDisk
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint, CheckpointFiles, Ranges
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.consume_queue_files import UNIT_BYTES, topic_folder
from shaketable.system.store.disk import DiskFull, StoreError

HANDLES_MAX = 4
"""Handles of one file: its writer's, its readers', and one temporary. A leaked handle stays open
as long as the node runs."""

_key_files = attrgetter("_saved_keys")


def check_saved(
    name: str, platter: Platter, root: str, checkpoint: BrokerCheckpoint, files: CheckpointFiles
) -> None:
    """Raise Violated where a checkpoint was saved before what it covers was durable.

    It covers the key files, and the units between each queue's first and end offset. What a killed
    process left outside of them, without a sync, every start cuts off.
    """
    for path, inode in platter.inodes.items():
        if not inode.unsynced_bytes:
            continue
        lost = 0
        if path.startswith(f"{root}/index/"):
            lost = inode.unsynced_bytes
        elif path.startswith(f"{root}/consumequeue/"):
            lost = _unsynced_units(path, inode, root, ranges_of(checkpoint.state))
        if lost:
            text = f"{lost} bytes of {path} are not, as it is saved"
            raise Violated("checkpoint-covers-what-is-durable", text, name)
    _check_names(name, files)


def _unsynced_units(path: str, inode: Inode, root: str, ranges: Ranges) -> int:
    """Return how many bytes of a queue's file are within the queue's range and not durable."""
    folder, _, file_name = path.rpartition("/")
    for (topic, queue_id), (first_offset, end_offset) in ranges.items():
        if folder == f"{root}/consumequeue/{topic_folder(topic)}/{queue_id}":
            start = int(file_name)
            return inode.unsynced_between(
                first_offset * UNIT_BYTES - start, end_offset * UNIT_BYTES - start
            )
    return 0


def _check_names(name: str, files: CheckpointFiles) -> None:
    """Each key file is named by its first message's time, or later than the file before."""
    found = _key_files(files)
    for file in found:
        if file.name_ms < file.earliest_ms:
            text = f"one of {file.name_ms} has a message of {file.earliest_ms}"
            raise Violated("key-files-are-named-by-time", text, name)
    for one, other in pairwise(found):
        if one.name_ms >= other.name_ms:
            text = f"{other.name_ms} comes after {one.name_ms}"
            raise Violated("key-files-are-named-by-time", text, name)


def check_loaded(
    name: str, saved_index: int, loaded: BrokerCheckpoint | None, log: CommitLog
) -> None:
    """Raise Violated where a start does not go on from the last checkpoint of a whole disk.

    `saved_index`: up to where the last checkpoint covers the log; -1 if none was saved, or a fault
    has damaged a file since.
    """
    if not log.start.index < saved_index <= log.end.index:
        return
    if loaded is None or loaded.applied_index < saved_index:
        index = "none" if loaded is None else f"one of {loaded.applied_index}"
        raise Violated(
            "saved-checkpoint-is-used",
            f"one of entry {saved_index} was saved, it uses {index}",
            name,
        )


def check_watermark_synced(name: str, log: CommitLog, platter: Platter, folder: str) -> None:
    """Raise Violated where the watermark of the log in `folder` is ahead of what is synced."""
    check_marked(name, log, _unsynced_data(platter, folder))


def check_end_synced(name: str, log: CommitLog, platter: Platter, folder: str) -> None:
    """Raise Violated where what was just flushed of the log in `folder` is not synced."""
    check_flushed(name, log.end.position, _unsynced_data(platter, folder))


def _unsynced_data(platter: Platter, folder: str) -> dict[str, int]:
    data = f"{folder}/data/"
    return {
        path: first
        for path, inode in platter.inodes.items()
        if path.startswith(data) and (first := inode.first_unsynced) is not None
    }


def check_watermark(name: str, before: LogEnd, log: CommitLog) -> None:
    """Raise Violated where the watermark has moved down although no entry was removed.

    What was durable after it would be taken for a torn tail, and damage there go unnoticed.
    """
    after = watermark_of(log)
    if after.index < before.index:
        raise Violated("watermark-never-falls", f"from {before.index} to {after.index}", name)


def check_blames_no_disk(name: str, error: StoreError, platter: Platter) -> None:
    """Raise Violated where a damaged file is reported as a full disk, which has room.

    An operator would make room again and again, and the node wait for it.
    """
    if isinstance(error, DiskFull) and platter.capacity_bytes is None:
        raise Violated("damage-is-called-damage", f"{type(error).__name__}: {error}", name)


def check_handles(name: str, disk: SimDisk) -> None:
    """Raise Violated where a file has more handles open at once than needed."""
    path, count = disk.most_opened
    check_limit(name, f"handles of {path}", count, HANDLES_MAX)
