"""Consume queues on disk: consumequeue/<topic>/<queue id>/<first byte's position, 20 digits>.

A unit is 20 bytes: position of the message in the log i64, its size i32, tags code i64; a file
holds a fixed number of them. Units are made of committed entries only, so they never change: those
that a crash left after a queue's end are overwritten with the same bytes, or cut off.
Source: RocketMQ's ConsumeQueue and MappedFileQueue; DLEDGER.md B.2.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

from shaketable.system.store.disk import Buffer, Disk, StoreError
from shaketable.system.store.segment_files import NAME_DIGITS, OpenFiles

Queue = tuple[bytes, int]
"""Topic and queue id."""

UNIT_BYTES = 20
FILE_BYTES = 300_000 * UNIT_BYTES
"""mappedFileSizeConsumeQueue's default, in bytes."""
OPEN_FILES_MAX = 256
"""For the writing and the reading side each."""

_UNIT = struct.Struct(">qiq")
_LEGAL_IN_NAMES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-%|")
"""What RocketMQ allows in a topic (TopicValidator)."""
_NAME_BYTES_MAX = 200
_CHUNK_BYTES = 1 << 20
_REMEDY = "remove the node's file appliedto, and the queues are built anew from the log"

assert _UNIT.size == UNIT_BYTES


class DamagedUnits(StoreError):  # noqa: N818 - a finding about the files
    """Units that a checkpoint wrote are lost or damaged. A rebuild from the log repairs them."""

    def __init__(self, path: str, finding: str) -> None:
        super().__init__(f"{path}: {finding}; {_REMEDY}")


def topic_folder(topic: bytes) -> str:
    """Return the name of a topic's folder: the topic itself if it is legal in RocketMQ.

    Any other byte becomes = and two hex digits, so no topic can name a folder elsewhere, and no
    two topics share one; a name too long for a file system is replaced by a digest.
    """
    name = "".join([chr(byte) if byte in _LEGAL_IN_NAMES else f"={byte:02X}" for byte in topic])
    if len(name) > _NAME_BYTES_MAX:
        return "==" + hashlib.sha256(topic).hexdigest()
    return name or "="


class ConsumeQueueFiles:
    """The units of all queues under `<root>/consumequeue`.

    One thread calls the methods except `read_units`, another may call that at the same time for
    units that a `sync` has made durable: the two share no file handle.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        file_bytes: int = FILE_BYTES,
        *,
        open_files_max: int = OPEN_FILES_MAX,
    ) -> None:
        assert file_bytes % UNIT_BYTES == 0
        self.file_bytes = file_bytes
        self._disk = disk
        self._root = f"{root}/consumequeue"
        self._written = OpenFiles(disk, open_files_max)
        self._read = OpenFiles(disk, open_files_max)
        self._named: set[str] = set()  # files whose names this process has made durable

    def write_units(self, queue: Queue, offset: int, units: Buffer) -> None:
        """Write encoded units from `offset` on, across file boundaries.

        File names are durable on return, units after `sync`. Raises DiskFull, after which the
        same units may be written again, and DiskFailed.
        """
        folder = self._folder(queue)
        view = memoryview(units)
        position = offset * UNIT_BYTES
        while view:
            start = self._start_of(position)
            path = _path(folder, start)
            self._prepare(folder, path)
            room = start + self.file_bytes - position
            self._written.write(path, [view[:room]], position - start)
            position += len(view[:room])
            view = view[room:]

    def read_units(self, queue: Queue, offset: int, count: int) -> bytes:
        """Return exactly `count` encoded units from `offset` on. Raises DamagedUnits."""
        folder = self._folder(queue)
        parts = []
        position, end = offset * UNIT_BYTES, (offset + count) * UNIT_BYTES
        while position < end:
            start = self._start_of(position)
            size = min(start + self.file_bytes, end) - position
            parts.append(self._read_file(_path(folder, start), size, position - start))
            position += size
        units = b"".join(parts)
        for number, (at, size, _) in enumerate(_UNIT.iter_unpack(units)):
            if at < 0 or size <= 0:
                raise DamagedUnits(folder, f"the unit of offset {offset + number} is empty")
        return units

    def holds(self, queue: Queue, first_offset: int, end_offset: int) -> bool:
        """Whether the files of a range exist, each with its first and last unit."""
        units_a_file = self.file_bytes // UNIT_BYTES
        offset = first_offset
        try:
            while offset < end_offset:
                last = min(offset // units_a_file * units_a_file + units_a_file, end_offset) - 1
                self.read_units(queue, offset, 1)
                self.read_units(queue, last, 1)
                offset = last + 1
        except DamagedUnits:
            return False
        return True

    def cut(self, queue: Queue, first_offset: int, end_offset: int) -> None:
        """Keep only the units `first_offset` to `end_offset`, and those before in the first file.

        Zeros after the end are durable after `sync`, unless they were found there: a process that
        was killed may have written them. They may be gone after a loss of power, and a removed file
        may reappear, until the next cut.
        """
        folder = self._folder(queue)
        end_position = end_offset * UNIT_BYTES
        for start in self._starts(folder):
            is_below = start + self.file_bytes <= first_offset * UNIT_BYTES
            if is_below or start >= end_position or first_offset == end_offset:
                self._remove(_path(folder, start))
            elif start + self.file_bytes > end_position:
                self._zero_from(_path(folder, start), end_position - start)

    def delete_below(self, queue: Queue, offset: int) -> None:
        """Remove the files all of whose units are below `offset`."""
        folder = self._folder(queue)
        for start in self._starts(folder):
            if start + self.file_bytes <= offset * UNIT_BYTES:
                self._remove(_path(folder, start))

    def sync(self) -> None:
        """Make all units written durable. Raises DiskFailed."""
        self._written.sync()

    def close(self) -> None:
        """Close the files without a sync."""
        self._written.close()
        self._read.close()

    def _folder(self, queue: Queue) -> str:
        return f"{self._root}/{topic_folder(queue[0])}/{queue[1]}"

    def _start_of(self, position: int) -> int:
        return position // self.file_bytes * self.file_bytes

    def _starts(self, folder: str) -> Iterator[int]:
        """Yield the start positions of the folder's files, in order."""
        for name in self._disk.names(folder):
            if len(name) == NAME_DIGITS and name.isdecimal():
                yield int(name)

    def _prepare(self, folder: str, path: str) -> None:
        """Ensure that the file exists at full size and with a durable name."""
        if path in self._named:
            return
        if self._disk.exists(path):  # its creator may have died before it synced the name
            self._written.grow(path, self.file_bytes)
        else:
            self._disk.make_dirs(folder)
            self._written.create(path, self.file_bytes)
        self._disk.sync_dir(folder)
        self._named.add(path)

    def _read_file(self, path: str, size: int, position: int) -> bytes:
        if not self._read.has(path) and not self._disk.exists(path):
            raise DamagedUnits(path, "the file is missing")
        data = self._read.get(path).pread(size, position)
        if len(data) != size:
            raise DamagedUnits(path, "the file is too short")
        return data

    def _zero_from(self, path: str, position: int) -> None:
        """Overwrite all nonzero bytes from `position` on with zeros."""
        file = self._written.get(path)
        for first, stop in file.data_ranges(position):
            for at in range(max(first, position), stop, _CHUNK_BYTES):
                chunk = file.pread(min(_CHUNK_BYTES, stop - at), at)
                if chunk.strip(b"\0"):
                    self._written.write(path, [bytes(len(chunk))], at)

    def _remove(self, path: str) -> None:
        self._named.discard(path)
        self._written.drop(path)
        self._disk.unlink(path)


def _path(folder: str, start: int) -> str:
    return f"{folder}/{start:0{NAME_DIGITS}}"
