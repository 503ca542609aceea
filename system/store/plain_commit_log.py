"""The commit log of a master-slave broker, in RocketMQ's own format.

Files named by their first byte's position hold messages back to back, and a blank if the next one
did not fit (DLEDGER.md B.1). There is no index and no durable watermark: a torn tail and damage
cannot be distinguished, and recovery ends the log at the first byte that is no message. The
flushed position (`masterFlushedOffset` in RocketMQ's `checkpoint`) only limits how much of the log
recovery scans.

One flusher calls the writing methods, in order; `read`, `read_entries` and `log_end_at` may be
called by another thread at the same time. Source: RocketMQ's CommitLog (recoverNormally,
recoverAbnormally, truncateDirtyFiles) and StoreCheckpoint; DLEDGER.md B.2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Self

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Batch, LogEnd, Snapshot
from shaketable.system.store.broker_checkpoint import STORE_CHECKPOINT_BYTES
from shaketable.system.store.disk import Buffer, Disk, DiskFailed, DiskFull, StoreError
from shaketable.system.store.entry import ENTRY_BYTES_MAX, EntryTooLarge
from shaketable.system.store.index_units import NotContiguous
from shaketable.system.store.message import (
    BORN_HOST_V6,
    HEAD,
    HEAD_FORMAT,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    DamagedMessage,
    magic_of,
    tags_code,
    topic_and_properties,
)
from shaketable.system.store.plain_log import BLANK, BLANK_BYTES, BLANK_MAGIC, SCAN_BYTES
from shaketable.system.store.segment_files import NAME_DIGITS, OutsideLog, SegmentFiles
from shaketable.system.store.state_files import mark_running, mark_stopped

# Batches of a plain commit log: whole messages and blanks, back to back.
#
# Such a log has no numbered entries, so byte positions are used as indices: a log's end index is
# the position of its last byte. An index is thus valid across restarts. Source: RocketMQ's
# CommitLog (physical offsets).

TERM = 0
"""A plain log has no terms: all of it is in this one."""
MESSAGE_BYTES_MAX = ENTRY_BYTES_MAX
MESSAGE_BYTES_MIN = HEAD.size + 3
"""No body, no topic, no properties: the lengths of the last two take three bytes."""

_MAGIC_V1 = MAGIC_V1 & 0xFFFFFFFF
_MAGIC_V2 = MAGIC_V2 & 0xFFFFFFFF
_BLANK_MAGIC = BLANK_MAGIC & 0xFFFFFFFF
_SIZE_AND_MAGIC = struct.Struct(">iI").unpack_from
_SIZE = struct.Struct(">i").unpack_from
_FIELDS = struct.Struct(">iI4xi4xq8xi16xq").unpack_from
"""Size, magic, queue, offset, sys flag, store time (of hosts with IPv4)."""
_CHECKED = struct.Struct(">8xI16xqi").unpack_from
"""Body CRC, physical offset, sys flag."""
_U16 = struct.Struct(">H").unpack_from
_I64 = struct.Struct(">q").unpack_from
_BODY_LENGTH_AT = 84
_STORE_TIME_AT = 56
_V6_BYTES = 12
_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6
_TRANSACTION_TYPE, _PREPARED, _ROLLED_BACK = 12, 4, 12
"""Bits of a message's sys flag (MessageSysFlag)."""


class PlainBatch(Batch, frozen=True):
    """Bytes `first_index` .. `last_index` of one file: whole messages, perhaps a final blank."""

    def last_chain_crc(self) -> int:
        """Return 0: a plain log's messages are not chained."""
        return 0

    def after(self, index: int) -> PlainBatch:
        """Return the part after byte `index`, the last byte of a message."""
        skip = index + 1 - self.position
        assert 0 <= skip < len(self.data), f"{index} leaves nothing of {self.position}"
        return plain_batch(self.position + skip, self.data[skip:])

    def until(self, index: int) -> PlainBatch:
        """Return the part up to and including byte `index`, the last byte of a message."""
        keep = index + 1 - self.position
        assert 0 < keep <= len(self.data), f"{index} leaves nothing of {self.position}"
        return plain_batch(self.position, self.data[:keep])


def plain_batch(position: int, data: bytes) -> PlainBatch:
    """Return the batch of these bytes at `position` of the log."""
    return PlainBatch(position, len(data), TERM, position, data)


def plain_end(position: int) -> LogEnd:
    """Return a plain log's end (or start) at a position."""
    return LogEnd(position - 1, TERM, position)


def whole_bytes(data: bytes | memoryview) -> int:
    """Return the length of the whole messages and blanks at the front of verified bytes."""
    at, stop = 0, len(data)
    while at + BLANK_BYTES <= stop:
        (size,) = _SIZE(data, at)
        if size < BLANK_BYTES or at + size > stop:
            break
        at += int(size)
    return at


def verified_size(data: Buffer, at: int, position: int, room: int) -> int:
    """Verify the message or blank at byte `at`; return its size, 0 if `data` ends within it.

    It is at `position` of the log, whose file has `room` bytes left. Checks its sizes, magic,
    position and body CRC. Of a blank, the first 8 bytes suffice. Raises DamagedMessage.
    """
    here = len(data) - at
    if here < BLANK_BYTES:
        return 0
    size: int
    size, magic = _SIZE_AND_MAGIC(data, at)
    if magic == _BLANK_MAGIC:
        if size != room:
            raise DamagedMessage(f"a blank of {size} bytes at {position}, where {room} are left")
        return room
    if magic not in (_MAGIC_V1, _MAGIC_V2):
        raise DamagedMessage(f"magic {magic:#010x} at {position} is not a message's")
    if not MESSAGE_BYTES_MIN <= size <= min(room - BLANK_BYTES, MESSAGE_BYTES_MAX):
        raise DamagedMessage(f"a message of {size} bytes at {position}, where {room} are left")
    if here < size:
        return 0
    _check_message(data, at, size, position, is_v1=magic == _MAGIC_V1)
    return size


def _check_message(data: Buffer, at: int, size: int, position: int, *, is_v1: bool) -> None:
    crc, physical_offset, sys_flag = _CHECKED(data, at)
    if physical_offset != position:
        raise DamagedMessage(f"PHYSICALOFFSET {physical_offset} is at {position}")
    body_at = at + _BODY_LENGTH_AT + 4 + _v6_bytes(sys_flag)
    stop = at + size
    if body_at >= stop:
        raise DamagedMessage(f"the message at {position} ends within its head")
    (body_bytes,) = _SIZE(data, body_at - 4)
    topic_at = body_at + body_bytes + (1 if is_v1 else 2)
    if body_bytes < 0 or topic_at > stop:
        raise DamagedMessage(f"a body of {body_bytes} bytes in the message at {position}")
    topic_bytes = data[topic_at - 1] if is_v1 else _U16(data, topic_at - 2)[0]
    properties_at = topic_at + topic_bytes + 2
    if properties_at > stop or properties_at + _U16(data, properties_at - 2)[0] != stop:
        raise DamagedMessage(f"the fields of the message at {position} do not fill it")
    if zlib.crc32(data[body_at : body_at + body_bytes]) & 0x7FFFFFFF != crc:
        raise DamagedMessage(f"the message at {position} has another BODYCRC than its body")


def iter_plain_dispatches(
    data: bytes, position: int
) -> Iterator[tuple[tuple[bytes, int], int, int, int, int, int, bytes]]:
    """Iterate over verified messages, as `system.store.entry.iter_dispatches` does over entries.

    Skips prepared and rolled-back transaction messages, which are not in a queue
    (CommitLogDispatcherBuildConsumeQueue).
    """
    at = 0
    while at + MESSAGE_BYTES_MIN <= len(data):
        size, magic, queue_id, queue_offset, sys_flag, store_ms = _FIELDS(data, at)
        if magic == _BLANK_MAGIC:
            return  # a blank is the last in its file
        body_length_at = at + _BODY_LENGTH_AT
        if sys_flag & _HOSTS_V6:
            body_length_at += _v6_bytes(sys_flag)
            if sys_flag & BORN_HOST_V6:
                (store_ms,) = _I64(data, at + _STORE_TIME_AT + _V6_BYTES)
        topic_at = body_length_at + 4 + _SIZE(data, body_length_at)[0]
        if magic == _MAGIC_V1:
            topic_end = topic_at + 1 + data[topic_at]
            topic = data[topic_at + 1 : topic_end]
        else:
            topic_end = topic_at + 2 + _U16(data, topic_at)[0]
            topic = data[topic_at + 2 : topic_end]
        topic_end += 2
        stop = at + size
        if sys_flag & _TRANSACTION_TYPE not in (_PREPARED, _ROLLED_BACK):
            properties = data[topic_end:stop]
            tags = tags_code(data, topic_end, stop) if properties else 0
            queue = (topic, queue_id)
            yield queue, queue_offset, position + at, size, tags, store_ms, properties
        at = stop


def blank(room: int) -> bytes:
    """Return the blank that fills the last `room` bytes of a file."""
    return BLANK.pack(room, BLANK_MAGIC) + bytes(room - BLANK_BYTES)


def _v6_bytes(sys_flag: int) -> int:
    """Return by how many bytes IPv6 hosts make the head longer."""
    return _V6_BYTES * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))


# Builds a plain commit log's messages at the master, joined into batches.
#
# Source: RocketMQ's CommitLog.DefaultAppendMessageCallback (doAppend).

_HEAD = struct.Struct(">" + HEAD_FORMAT)
_HOSTS_ARE_V4 = ~(BORN_HOST_V6 | STORE_HOST_V6)


class PlainBuilder:
    """Encodes messages after `end`, and a blank if the next one does not fit into its file."""

    end: LogEnd
    """The log's end after everything added so far."""

    def __init__(self, end: LogEnd, term: int, data_file_bytes: int, store_host: bytes) -> None:
        assert term == end.term, "a plain log knows one term"
        assert len(store_host) == 8, "an IPv4 host: 4 bytes and i32 port"
        self.end = end
        self._file_bytes = data_file_bytes
        self._message_bytes_max = min(MESSAGE_BYTES_MAX, data_file_bytes - BLANK_BYTES)
        self._store_host = store_host
        self._ready: list[Batch] = []
        self._data = bytearray()
        self._start = end.position
        self._position = end.position

    def add(  # noqa: PLR0913 - a stored message has that many fields; no object a call, for speed
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        body: bytes | memoryview,
        properties: bytes = b"",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = bytes(8),
        store_ms: int = 0,
        reconsume_times: int = 0,
    ) -> int:
        """Add one message; return its byte position.

        Hosts are IPv4, so the sys flag's two IPv6 bits are cleared. Raises EntryTooLarge, with
        nothing added.
        """
        if len(topic) > TOPIC_BYTES_MAX or len(properties) > PROPERTIES_BYTES_MAX:
            raise EntryTooLarge(
                f"topic of {len(topic)} or properties of {len(properties)} bytes:"
                f" at most {PROPERTIES_BYTES_MAX}"
            )
        tail = topic_and_properties(topic, properties)
        size = _HEAD.size + len(body) + len(tail)
        if size > self._message_bytes_max:
            raise EntryTooLarge(f"message of {size} bytes: at most {self._message_bytes_max}")
        room = self._file_bytes - self._position % self._file_bytes
        if size + BLANK_BYTES > room:
            self._data += blank(room)
            self._position += room
            self._close_batch()
        position = self._position
        data = self._data
        data += _HEAD.pack(
            size,
            magic_of(topic),
            zlib.crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            queue_offset,
            position,
            sys_flag & _HOSTS_ARE_V4,
            born_ms,
            born_host,
            store_ms,
            self._store_host,
            reconsume_times,
            0,
            len(body),
        )
        data += body
        data += tail
        self._position = position + size
        self.end = plain_end(self._position)
        return position

    def add_membership(self, membership: Membership, queue_offset: int, store_ms: int) -> int:
        """Refuse: a plain log has no group. Raises EntryTooLarge."""
        raise EntryTooLarge("a broker without a group has no members to change")

    def take(self) -> list[Batch]:
        """Return what was added since the last call, one Batch per data file."""
        self._close_batch()
        batches, self._ready = self._ready, []
        return batches

    def _close_batch(self) -> None:
        if self._data:
            self._ready.append(plain_batch(self._start, bytes(self._data)))
            self._data.clear()
        self._start = self._position


# The commit log.

FILES_SCANNED_MIN = 3
"""After a crash, recovery scans at least this many of the last files (RocketMQ's number)."""
_FLUSHED = struct.Struct(">q")
_FLUSHED_AT = 24
"""Where `checkpoint` holds masterFlushedOffset."""


class PlainCommitLog:
    """The log of one broker. After a DiskFailed every later call raises it again.

    Indices are byte positions : `end.index` is `end.position` - 1.
    """

    end: LogEnd
    """The log's end, written but perhaps not durable."""
    synced: LogEnd
    """The durable end."""
    was_aborted: bool
    """The last run did not close the log: the file `abort` existed."""
    torn_bytes: int
    """How many bytes recovery removed after the last valid message."""

    def __init__(
        self, disk: Disk, root: str, folder: str, file_bytes: int, *, was_aborted: bool
    ) -> None:
        """Recover the log in a folder; use `open`."""
        self.folder = folder
        self.was_aborted = was_aborted
        self.torn_bytes = 0
        self._disk = disk
        self._root = root
        self._failure: DiskFailed | None = None
        self._leftover: int | None = None  # up to where a failed append may have written
        self._files = SegmentFiles(disk, folder, file_bytes, reserve=True)
        starts = self._files.starts
        self._check_files(starts)
        self._start = plain_end(starts[0] if starts else 0)
        self.end = self._start
        if starts:
            self.end = self._recover(starts)
        self.synced = self.end

    @classmethod
    def open(cls, disk: Disk, root: str, folder: str, file_bytes: int) -> Self:
        """Open storePathCommitLog `folder` of the store at `root`, created if new, and recover.

        Raises StoreError for a wrong file size or a missing file, DiskFailed.
        """
        disk.make_dirs(root)
        disk.make_dirs(folder)
        was_aborted = mark_running(disk, root)
        return cls(disk, root, folder, file_bytes, was_aborted=was_aborted)

    @property
    def start(self) -> LogEnd:
        """The place before the oldest byte held."""
        return self._start

    @property
    def file_bytes(self) -> int:
        """Size of its files (mappedFileSizeCommitLog)."""
        return self._files.file_bytes

    @property
    def committed_index(self) -> int:
        """The durable index: no other broker has to acknowledge."""
        return self.synced.index

    def append(self, batch: Batch) -> None:
        """Append a batch. It is not durable until `sync`.

        Raises DiskFull (nothing was appended), DiskFailed, NotContiguous.
        """
        with self._writing():
            self._remove_leftover()
            position, files = self.end.position, self._files
            if batch.position != position:
                raise NotContiguous(f"a batch at {batch.position}, the log ends at {position}")
            if not files.has(position):
                files.create(position)
            try:
                files.write([batch.data], position)
            except DiskFull:
                self._leftover = batch.end_position
                with suppress(DiskFull):
                    self._remove_leftover()
                raise
            self.end = plain_end(batch.end_position)

    def sync(self) -> None:
        """Make everything appended durable. Raises DiskFailed."""
        with self._writing():
            end = self.end
            if self.synced.position < end.position:
                self._files.sync()
                self.synced = end

    def compact(self, snapshot: Snapshot) -> None:
        """Remove the files wholly before `snapshot.end`, where one of the files starts."""
        with self._writing():
            position = snapshot.end.position
            if not self.start.position <= position <= self.end.position:
                raise NotContiguous(f"a start at {position} is not of {self.start}..{self.end}")
            self._start = plain_end(position)
            self._files.remove_below(position)

    def install(self, snapshot: Snapshot) -> None:
        """Restart the log, which holds no messages, at `snapshot.end`.

        A new slave starts where its master's last file does. Raises NotContiguous if no file can
        start there.
        """
        with self._writing():
            position = snapshot.end.position
            if position % self._files.file_bytes:
                raise NotContiguous(f"no file starts at {position}: see mappedFileSizeCommitLog")
            self._files.remove_all()
            self._files.create(position)
            self._start = self.end = self.synced = plain_end(position)

    def truncate(self, end_index: int) -> LogEnd:
        """Refuse: a master-slave log is never truncated. Raises NotContiguous."""
        raise NotContiguous(f"a plain commit log is not cut back to {end_index}")

    def save_state(self, term: int, voted_for: str | None) -> None:
        """Refuse: there are no terms and votes. Raises NotContiguous."""
        raise NotContiguous(f"a plain commit log has no term {term} and no vote for {voted_for}")

    def save_checkpoint(self, committed_index: int) -> None:
        """Save the flushed position as a hint for the next start."""
        del committed_index  # the flushed position is what counts here
        with self._writing():
            self._save_flushed(self.synced.position)

    def advance_watermark(self) -> None:
        """Do nothing: there is no durable watermark."""

    def close(self) -> None:
        """Flush all appends and close the files; after a failure only close them."""
        try:
            if self._failure is None:
                self.sync()
                with suppress(DiskFull):
                    self._save_flushed(self.synced.position)
                mark_stopped(self._disk, self._root)
        finally:
            self._files.close()

    def read(self, position: int, size: int) -> bytes:
        """Read bytes of one file. Raises OutsideLog."""
        self._check_alive()
        if self.start.position <= position and position + size <= self.end.position:
            data = self._files.read(position, size)
            if len(data) == size:
                return data
        raise OutsideLog(f"bytes {position}..{position + size} of {self.start}..{self.end}")

    def read_entries(self, first_index: int, bytes_max: int) -> PlainBatch:
        """Read whole messages from byte `first_index` on, of one file, at least one.

        Stops before `bytes_max` unless the first message is larger. Raises OutsideLog.
        """
        self._check_alive()
        end_position = self.end.position
        if not self.start.position <= first_index < end_position:
            raise OutsideLog(f"byte {first_index} of {self.start}..{self.end}")
        file_end = self._files.start_of(first_index) + self._files.file_bytes
        held = min(file_end, end_position) - first_index
        data = self._files.read(first_index, min(held, max(bytes_max, 8)))
        whole = whole_bytes(data)
        if not whole:
            size = int.from_bytes(data[:4], "big")
            if not len(data) < size <= held:
                raise OutsideLog(f"there is no message at {first_index}")
            data = self._files.read(first_index, size)
            whole = size
        return plain_batch(first_index, data[:whole])

    def log_end_at(self, index: int) -> LogEnd:
        """Return the end that the log would have after byte `index`. Raises OutsideLog."""
        if not self.start.index <= index <= self.end.index:
            raise OutsideLog(f"byte {index} of {self.start}..{self.end}")
        return plain_end(index + 1)

    # ---- recovery ---------------------------------------------------------------------

    def _check_files(self, starts: list[int]) -> None:
        """Raise StoreError if a file is too large or misplaced, or one in between is missing.

        A file may be shorter: a power loss may lose the size of one of which nothing is flushed.
        """
        file_bytes = self._files.file_bytes
        for name in self._disk.names(self.folder):
            if len(name) != NAME_DIGITS or not name.isdecimal():
                continue
            file = self._disk.open(f"{self.folder}/{name}")
            size = file.size
            file.close()
            if int(name) % file_bytes or size > file_bytes:
                raise StoreError(
                    f"{self.folder}/{name} has {size} bytes: set mappedFileSizeCommitLog to what"
                    f" the log was made with, not to {file_bytes}"
                )
        for before, start in pairwise(starts):
            if start != before + file_bytes:
                raise StoreError(f"{self._files.path(before + file_bytes)} is missing")

    def _recover(self, starts: list[int]) -> LogEnd:
        """Find the log's end, the first position with no valid message, and truncate after it.

        The scan starts at the file of the flushed position, or at one of the last files if that is
        earlier: FILES_SCANNED_MIN of them after a crash, else one.
        """
        file_bytes = self._files.file_bytes
        scanned = FILES_SCANNED_MIN if self.was_aborted else 1
        flushed = self._flushed_position()
        from_the_end = starts[-1] - (scanned - 1) * file_bytes
        start = max(starts[0], min(from_the_end, self._files.start_of(flushed)))
        end = start
        while self._files.has(end) and end == self._files.start_of(end):
            end, is_complete = self._walk(end)
            if not is_complete:
                break
        for first in starts:
            if start <= first <= end:
                self._files.fill_up(first)
        files_end = starts[-1] + file_bytes
        self.torn_bytes = sum(
            self._files.data_end(first) - first
            for first in (end, *(later for later in starts if later > end))
            if first < files_end
        )
        # Messages after the flushed position may be in the page cache only: make them durable.
        self._files.rewrite(max(start, flushed), end)
        if end < files_end:
            # An earlier start may have been killed after it wrote zeros: make those durable, too.
            self._files.cut(end, max(self._files.data_end(end), end + 1))
        else:
            self._files.sync()
        self._files.sync_names()  # the same of files that it removed
        return plain_end(end)

    def _flushed_position(self) -> int:
        """Return the position up to which the log was flushed at least, 0 if unknown."""
        path = f"{self._root}/checkpoint"
        if not self._disk.exists(path):
            return 0
        file = self._disk.open(path)
        data = file.pread(_FLUSHED.size, _FLUSHED_AT)
        file.close()
        if len(data) < _FLUSHED.size:
            return 0
        return max(0, int(_FLUSHED.unpack(data)[0]))

    def _save_flushed(self, position: int) -> None:
        path = f"{self._root}/checkpoint"
        disk = self._disk
        is_new = not disk.exists(path)
        file = disk.create(path, STORE_CHECKPOINT_BYTES) if is_new else disk.open(path)
        try:
            file.grow(STORE_CHECKPOINT_BYTES)
            file.pwrite([_FLUSHED.pack(position)], _FLUSHED_AT)
            file.sync()
        finally:
            file.close()
        if is_new:
            self._disk.sync_dir(self._root)

    def _walk(self, start: int) -> tuple[int, bool]:
        """Verify a file's messages; return where they end, and whether they fill the file."""
        at = window_at = start
        file_end = start + self._files.file_bytes
        window = memoryview(b"")
        try:
            while at < file_end:
                size = verified_size(window, at - window_at, at, file_end - at)
                if not size:
                    if window_at == at and window:
                        return at, False
                    window_at = at
                    window = memoryview(self._files.read(at, min(SCAN_BYTES, file_end - at)))
                    if not window:
                        return at, False
                at += size
        except DamagedMessage:
            return at, False
        return file_end, True

    # ---- failures ---------------------------------------------------------------------

    def _remove_leftover(self) -> None:
        """Remove what a full disk left of an append, so that it definitely did not happen."""
        if self._leftover is not None:
            self._files.zero(self.end.position, self._leftover)
            self._leftover = None

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise DiskFailed(str(self._failure)) from self._failure

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise an earlier failure again; record a new one."""
        self._check_alive()
        try:
            yield
        except DiskFailed as error:
            self._failure = error
            raise
