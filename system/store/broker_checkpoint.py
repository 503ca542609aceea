"""The broker's checkpoint: its applied state at some entry, so that a start need not replay all.

`<folder>/appliedto` holds the entry, the broker's state and the list of key index files; the
consume queues' units and the index's items are in files of their own, durable before it. A
missing or damaged checkpoint, or one of another log, only costs a rebuild from the log's start
(DLEDGER.md E21, E22).
Source: RocketMQ's DefaultMessageStore.recover and StoreCheckpoint; DLEDGER.md B.2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol

import msgspec

from shaketable.system.raft.protocol import LogEnd
from shaketable.system.store.consume_queue_files import FILE_BYTES, ConsumeQueueFiles, Queue
from shaketable.system.store.disk import Disk, StoreError, read_file, replace_file
from shaketable.system.store.key_index import KeyFile, KeyIndex, KeyItem, Sizes
from shaketable.system.store.segment_files import OutsideLog

STORE_CHECKPOINT_BYTES = 4096
"""RocketMQ's `checkpoint` is one page."""

_FORMAT = 2
_MAGIC_AND_CRC = struct.Struct(">8sI")
_MAGIC = b"applied\0"
_STORE_TIMES = struct.Struct(">qqq")

Ranges = Mapping[Queue, tuple[int, int]]
"""For each queue, the first offset retained and the offset after the last."""


@dataclass(frozen=True, slots=True)
class BrokerCheckpoint:
    """The broker's state after applying the entries up to `applied_index`, and no other.

    `applied_position` is the byte position after that entry, `state` the broker's own encoding.
    `units` are, for each queue, the first offset and the encoded units since the last saved
    checkpoint, `keys` the messages for the key index since then, in log order; both are empty in
    a loaded checkpoint. `start_position` is the log's start, `store_ms` the store time of the last
    message applied.
    """

    applied_index: int
    applied_position: int
    committed_index: int
    state: bytes
    units: Mapping[Queue, tuple[int, bytes]] = field(default_factory=dict)
    keys: Sequence[KeyItem] = ()
    start_position: int = 0
    store_ms: int = 0


class LogPlaces(Protocol):
    """The log that a checkpoint must match (`system.store.commit_log.CommitLog`)."""

    def log_end_at(self, index: int) -> LogEnd:
        """Return the end that the log would have after entry `index`. Raises OutsideLog."""


class _Stored(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The content of `appliedto` after its magic and CRC."""

    format: int
    sizes: tuple[int, int, int]
    applied_index: int
    applied_position: int
    committed_index: int
    start_position: int
    store_ms: int
    state: bytes
    key_files: list[KeyFile]


class CheckpointFiles:
    """The broker's files: under the store's `root`, and `appliedto` in the log's `folder`.

    They are separate from the log's files, so another thread may save while the log is written.
    `ranges_of` decodes the queues' ranges from a state, or raises StoreError. Reads
    (`queues.read_units`, `keys.candidates`) may run in one other thread.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        folder: str,
        ranges_of: Callable[[bytes], Ranges],
        *,
        queue_file_bytes: int = FILE_BYTES,
        key_sizes: Sizes | None = None,
    ) -> None:
        self.queues = ConsumeQueueFiles(disk, root, queue_file_bytes)
        self.keys = KeyIndex(disk, root, key_sizes)
        self._disk = disk
        self._root = root
        self._path = f"{folder}/appliedto"
        self._ranges_of = ranges_of
        self._saved_index, self._saved_position = -1, 0
        self._saved_keys: tuple[KeyFile, ...] = ()
        self._saved_first_offsets: dict[Queue, int] = {}
        self._is_saving = False

    def load(self, log: LogPlaces) -> BrokerCheckpoint | None:
        """Return the last saved checkpoint and cut the files to it; call once, before `save`.

        None if there is none, if it is damaged, or if `log` does not hold its entry: then the
        files are empty, and all entries must be applied again from the log's start. Raises
        DiskFailed.
        """
        stored = self._read()
        loaded = self._restore(stored, log) if stored is not None else None
        if loaded is None:
            self._discard()
        return loaded

    def save(self, checkpoint: BrokerCheckpoint) -> None:
        """Make a checkpoint durable: units and keys first, then `appliedto`.

        Entries up to `applied_index` must be durable in the log. Raises DiskFailed, DiskFull;
        after DiskFull the next checkpoint must include the same units and keys again. An older
        checkpoint, and keys that are already saved, are ignored.
        """
        if checkpoint.applied_index < self._saved_index:
            return
        if self._is_saving:  # the previous save failed on a full disk
            self.keys.restore(self._saved_keys)
        self._is_saving = True
        for queue, (offset, units) in checkpoint.units.items():
            self.queues.write_units(queue, offset, units)
        self.keys.put_messages(
            [item for item in checkpoint.keys if item[2] >= self._saved_position]
        )
        self.keys.forget_below(checkpoint.start_position)
        key_files = self.keys.flush()
        self.queues.sync()
        _save_store_checkpoint(self._disk, self._root, checkpoint.store_ms)
        replace_file(self._disk, self._path, self._encode(checkpoint, key_files))
        self._note_saved(checkpoint, key_files)
        self._is_saving = False
        self._delete_expired(checkpoint)

    def close(self) -> None:
        """Close the files."""
        self.queues.close()
        self.keys.close()

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """The sizes that the files are created with; files of other sizes cannot be read."""
        return (self.queues.file_bytes, *self.keys.sizes)

    def _read(self) -> _Stored | None:
        """Read `appliedto`; None if it is missing, damaged, or has other file sizes than ours."""
        if not self._disk.exists(self._path):
            return None
        # A process that died after the rename may not have synced the name: do it now.
        self._disk.sync_dir(str(PurePosixPath(self._path).parent))
        data = read_file(self._disk, self._path)
        payload = data[_MAGIC_AND_CRC.size :]
        if data[: _MAGIC_AND_CRC.size] != _MAGIC_AND_CRC.pack(_MAGIC, zlib.crc32(payload)):
            return None
        try:
            stored = msgspec.msgpack.decode(payload, type=_Stored)
        except (msgspec.ValidationError, msgspec.DecodeError):
            return None
        return stored if (stored.format, stored.sizes) == (_FORMAT, self._sizes) else None

    def _restore(self, stored: _Stored, log: LogPlaces) -> BrokerCheckpoint | None:
        """Restore the files to the checkpoint; None if they or the log do not match it."""
        try:
            log_end = log.log_end_at(stored.applied_index)
        except OutsideLog:
            return None
        try:
            ranges = self._ranges_of(stored.state)
        except StoreError:
            return None
        if log_end.position != stored.applied_position:
            return None
        if not all(self.queues.holds(queue, *ends) for queue, ends in ranges.items()):
            return None
        key_files = tuple(stored.key_files)
        if not self.keys.restore(key_files):
            return None
        for queue, ends in ranges.items():
            self.queues.cut(queue, *ends)
        self._saved_first_offsets = {queue: first for queue, (first, _) in ranges.items()}
        loaded = BrokerCheckpoint(
            stored.applied_index,
            stored.applied_position,
            stored.committed_index,
            stored.state,
            start_position=stored.start_position,
            store_ms=stored.store_ms,
        )
        self._note_saved(loaded, key_files)
        return loaded

    def _note_saved(self, checkpoint: BrokerCheckpoint, key_files: tuple[KeyFile, ...]) -> None:
        self._saved_index = checkpoint.applied_index
        self._saved_position = checkpoint.applied_position
        self._saved_keys = key_files

    def _discard(self) -> None:
        """Remove the checkpoint; `appliedto` first, lest it match a later log by chance."""
        if self._disk.exists(self._path):
            self._disk.unlink(self._path)
            self._disk.sync_dir(str(PurePosixPath(self._path).parent))
        self.keys.restore(())

    def _encode(self, checkpoint: BrokerCheckpoint, key_files: Sequence[KeyFile]) -> bytes:
        stored = _Stored(
            _FORMAT,
            self._sizes,
            checkpoint.applied_index,
            checkpoint.applied_position,
            checkpoint.committed_index,
            checkpoint.start_position,
            checkpoint.store_ms,
            checkpoint.state,
            list(key_files),
        )
        payload = msgspec.msgpack.encode(stored)
        return _MAGIC_AND_CRC.pack(_MAGIC, zlib.crc32(payload)) + payload

    def _delete_expired(self, checkpoint: BrokerCheckpoint) -> None:
        """Remove the files that the checkpoint just saved no longer needs."""
        for queue, (first, _) in self._ranges_of(checkpoint.state).items():
            if first > self._saved_first_offsets.get(queue, 0):
                self.queues.delete_below(queue, first)
                self._saved_first_offsets[queue] = first
        self.keys.delete_forgotten()


def _save_store_checkpoint(disk: Disk, root: str, store_ms: int) -> None:
    """Write RocketMQ's `checkpoint`: the store time up to which log, queues and index are durable.

    For RocketMQ's tools only; we read `appliedto`. Source: RocketMQ's StoreCheckpoint.
    """
    path = f"{root}/checkpoint"
    is_new = not disk.exists(path)
    file = disk.create(path, STORE_CHECKPOINT_BYTES) if is_new else disk.open(path)
    try:
        file.grow(STORE_CHECKPOINT_BYTES)  # a crash may have left it short
        file.pwrite([_STORE_TIMES.pack(store_ms, store_ms, store_ms)], 0)
        file.sync()
    finally:
        file.close()
    if is_new:
        disk.sync_dir(root)
