"""At the end of a run: starts with broken hints, which they must do without.

Both checkpoints and the key index only save work. Where they are damaged, or of another version or
log, a start ignores and rebuilds them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from shaketable.system.broker.broker_state import ranges_of
from shaketable.system.invariants.violated import Violated
from shaketable.system.sim.broken_starts.broken_folders import Folder
from shaketable.system.sim.clients import TOPIC_BYTES
from shaketable.system.sim.member import QUEUE_FILE_BYTES
from shaketable.system.store.broker_checkpoint import CheckpointFiles
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.consume_queue_files import UNIT_BYTES, topic_folder
from shaketable.system.store.disk import DiskFailed, StoreError, read_file, replace_file
from shaketable.system.store.key_index import HEADER_BYTES, KeyIndex, Sizes
from shaketable.system.store.state_files import save_committed_index

QUERIES = 0.3
"""How often the key index is queried instead of broken."""
_AHEAD = 1_000_000
_STATE = 7
"""The place of the broker's state among the fields of its checkpoint."""
_FOREVER_MS = 1 << 60
_MAGIC_AND_CRC = struct.Struct(">8sI")
_SLOT = struct.Struct(">i")


def check_hints(folder: Folder, key: bytes | None) -> int:
    """Break the hints in a copy of a disk; return how many ways were tried. Raises Violated.

    `key` finds messages of the run; None without a key index.
    """
    try:
        log = folder.open()
        if log.plain_log is None:
            folder.plain_log = None  # it may still be configured, and need not be
        log.close()
        ahead = log.end.index + _AHEAD
        save_committed_index(folder.disk, folder.path, ahead, ahead)
        log = folder.open()
    except StoreError:
        return 0  # the disk was damaged before
    if log.committed_index > log.end.index:
        finding = f"entry {log.committed_index} is called committed"
        raise Violated("hints-are-checked", finding, folder.name)
    path = f"{folder.path}/appliedto"
    if not folder.disk.exists(path):
        return 1
    files = _files(folder)
    if files.load(log) is None:
        return 1
    if key is not None and folder.rng.chance(QUERIES):
        _check_queries(folder, files.keys, key)
        return 2
    files.close()
    way = folder.rng.choice(_WAYS)
    if not way(folder, log):
        return 1
    broken = way.__name__.replace("_", " ")
    try:
        is_used = _files(folder).load(log) is not None
    except StoreError as error:
        text = f"a start ends on{broken}: {error}"
        raise Violated("hints-are-checked", text, folder.name) from None
    if is_used:
        raise Violated("hints-are-checked", f"a start uses{broken}", folder.name)
    return 2


def _files(folder: Folder) -> CheckpointFiles:
    sizes = Sizes(folder.settings.key_slots, folder.settings.key_file_items)
    return CheckpointFiles(
        folder.disk,
        folder.root,
        folder.path,
        ranges_of,
        queue_file_bytes=QUEUE_FILE_BYTES,
        key_sizes=sizes,
    )


def _check_queries(folder: Folder, keys: KeyIndex, key: bytes) -> None:
    """Query on a failing disk, and while the index is rebuilt: neither may miss messages."""
    folder.disk.platter.is_failing = True
    try:
        found = list(keys.candidates(TOPIC_BYTES, key, 0, _FOREVER_MS))
    except DiskFailed:
        pass
    else:
        if found or keys.flush():
            raise Violated("hints-are-checked", "a disk fails and a query does not", folder.name)
    finally:
        folder.disk.platter.is_failing = False
    query = keys.candidates(TOPIC_BYTES, key, 0, _FOREVER_MS)
    newest = next(query, None)
    keys.restore(())
    if newest is not None and any(position >= newest for position in query):
        raise Violated("hints-are-checked", "a query goes back", folder.name)


# ---- ways ---------------------------------------------------------------------------------


def _a_checkpoint_of_another_version(folder: Folder, _: CommitLog) -> bool:
    return _change_checkpoint(folder, lambda fields: fields[:-1])


def _a_checkpoint_of_another_log(folder: Folder, log: CommitLog) -> bool:
    ahead = log.end.index + _AHEAD
    return _change_checkpoint(folder, lambda fields: [*fields[:2], ahead, *fields[3:]])


def _a_checkpoint_of_another_place(folder: Folder, _: CommitLog) -> bool:
    def moved(fields: list[object]) -> list[object]:
        return [*fields[:3], _AHEAD * 1000, *fields[4:]]

    return _change_checkpoint(folder, moved)


def _a_state_that_cannot_be_read(folder: Folder, _: CommitLog) -> bool:
    return _change_checkpoint(
        folder, lambda fields: [*fields[:_STATE], b"?", *fields[_STATE + 1 :]]
    )


def _a_lost_key_file(folder: Folder, _: CommitLog) -> bool:
    path = _newest_key_file(folder)
    if path:
        folder.disk.platter.lose_file(path)
    return bool(path)


def _a_short_key_file(folder: Folder, _: CommitLog) -> bool:
    path = _newest_key_file(folder)
    if path:
        folder.disk.platter.truncate_file(path, HEADER_BYTES)
    return bool(path)


def _a_lost_queue_file(folder: Folder, _: CommitLog) -> bool:
    path = _last_queue_file(folder)
    if path:
        folder.disk.platter.lose_file(path)
    return bool(path)


def _a_short_queue_file(folder: Folder, _: CommitLog) -> bool:
    path = _last_queue_file(folder)
    if path:
        folder.disk.platter.truncate_file(path, 0)
    return bool(path)


def _a_slot_of_no_item(folder: Folder, _: CommitLog) -> bool:
    return _change_slot(folder, (1 << 31) - 1)


def _a_negative_slot(folder: Folder, _: CommitLog) -> bool:
    return _change_slot(folder, -1)


_WAYS: tuple[Callable[[Folder, CommitLog], bool], ...] = (
    _a_checkpoint_of_another_version,
    _a_checkpoint_of_another_log,
    _a_checkpoint_of_another_place,
    _a_state_that_cannot_be_read,
    _a_lost_key_file,
    _a_short_key_file,
    _a_lost_queue_file,
    _a_short_queue_file,
    _a_slot_of_no_item,
    _a_negative_slot,
)


def _change_checkpoint(folder: Folder, change: Callable[[list[object]], list[object]]) -> bool:
    """Rewrite the broker's checkpoint with other fields and a valid CRC."""
    data = msgspec.msgpack.encode(change(_checkpoint(folder)))
    whole = _MAGIC_AND_CRC.pack(b"applied\0", zlib.crc32(data)) + data
    replace_file(folder.disk, f"{folder.path}/appliedto", whole)
    return True


def _checkpoint(folder: Folder) -> list[Any]:
    """Return the fields of the broker's checkpoint."""
    data = read_file(folder.disk, f"{folder.path}/appliedto")
    return list(msgspec.msgpack.decode(data[_MAGIC_AND_CRC.size :]))


def _last_queue_file(folder: Folder) -> str:
    """Return the file with the last unit of a queue that the checkpoint counts on; "" if none."""
    ranges = ranges_of(_checkpoint(folder)[_STATE])
    units = [(queue, end) for queue, (first, end) in sorted(ranges.items()) if first < end]
    if not units:
        return ""
    (topic, queue_id), end = folder.rng.choice(units)
    start = (end - 1) * UNIT_BYTES // QUEUE_FILE_BYTES * QUEUE_FILE_BYTES
    return f"{folder.root}/consumequeue/{topic_folder(topic)}/{queue_id}/{start:020}"


def _newest_key_file(folder: Folder) -> str:
    names = folder.disk.names(f"{folder.root}/index")
    return f"{folder.root}/index/{names[-1]}" if names else ""


def _change_slot(folder: Folder, number: int) -> bool:
    """Change a slot of the newest key file, and its header, as a crash may."""
    path = _newest_key_file(folder)
    if not path:
        return False
    platter = folder.disk.platter
    platter.flip_bit(path, HEADER_BYTES - 1)
    _SLOT.pack_into(platter.inodes[path].view, HEADER_BYTES, number)
    return True
