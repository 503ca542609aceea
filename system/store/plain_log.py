"""RocketMQ's own commit log from before an upgrade to DLedger: read only after the upgrade.

Files named by their first byte's position hold messages (DLEDGER.md B.1) back to back; a full
file ends with a blank: i32 remaining bytes, i32 0xCBD43194. The upgrade fills the last file with a
blank; DLedger's files start where it ends, at the position that RocketMQ calls
dividedCommitlogOffset.
Source: RocketMQ's CommitLog (recoverNormally) and DLedgerCommitLog (recover); DLEDGER.md D.5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from shaketable.system.store.disk import Disk, StoreError
from shaketable.system.store.message import (
    MAGIC_V1,
    MAGIC_V2,
    DamagedMessage,
    Message,
    decode_message,
)
from shaketable.system.store.segment_files import NAME_DIGITS, OutsideLog, SegmentFiles

BLANK_MAGIC = 0xCBD43194 - (1 << 32)
BLANK = struct.Struct(">ii")
BLANK_BYTES = BLANK.size
"""Every message leaves room for a blank after it (END_FILE_MIN_BLANK_LENGTH)."""
SCAN_BYTES = 8 << 20

_SIZE_AND_MAGIC = struct.Struct(">ii")
_POSITION_AT_28 = struct.Struct(">28xq")
_MAGICS = tuple(_SIZE_AND_MAGIC.pack(0, magic)[4:] for magic in (MAGIC_V1, MAGIC_V2))


class PlainLogDamaged(StoreError):  # noqa: N818 - a finding about the files
    """The plain commit log cannot be upgraded as it is; nothing was changed."""


def upgrade_plain_log(disk: Disk, folder: str, file_bytes: int) -> int:
    """Verify a plain log and end it with a blank; return where it ends, 0 without messages.

    A torn tail is removed, and empty files after the last used one are ignored. The result is
    deterministic: the same after a crash and on every node with the same messages, so that all
    nodes' first entries have the same position. Raises PlainLogDamaged.
    """
    _check_files(disk, folder, file_bytes)
    files = SegmentFiles(disk, folder, file_bytes, reserve=True)
    used = [start for start in files.starts if files.data_end(start) > start]
    files.close()
    if not used:
        return 0
    log = PlainLog(disk, folder, file_bytes, used[-1] + file_bytes)
    try:
        log.end_with_blank()
    finally:
        log.close()
    return log.end if log.end > log.start else 0


def remove_plain_log(disk: Disk, folder: str, file_bytes: int, end: int) -> None:
    """Remove the files of an upgraded plain log: the DLedger log no longer starts at its end."""
    files = SegmentFiles(disk, folder, file_bytes, reserve=True)
    files.remove_below(end)
    files.close()


class PlainLog:
    """The plain commit log in one folder. `read` may run in another thread than the writer's."""

    start: int
    """Position of the oldest byte held."""
    end: int
    """End of the last file, where DLedger's entries start: dividedCommitlogOffset."""
    torn_bytes: int
    """How many bytes of a torn tail the upgrade removed."""

    def __init__(self, disk: Disk, folder: str, file_bytes: int, end: int) -> None:
        """Open a log that an earlier start upgraded; its oldest files may have expired.

        Raises PlainLogDamaged if a file's size is not `file_bytes`, or if the last file before
        `end` or one in between is missing.
        """
        _check_files(disk, folder, file_bytes)
        self._files = SegmentFiles(disk, folder, file_bytes, reserve=True)
        self.start = min([start for start in self._files.starts if start < end], default=end)
        self.end = end
        self.torn_bytes = 0
        self._window = memoryview(b"")
        self._window_position = 0
        for start in (end - file_bytes, *range(self.start, end, file_bytes)):
            if not self._files.has(start):
                self.close()
                raise PlainLogDamaged(
                    f"{self._files.path(start)} is missing: messages of before the upgrade to"
                    " DLedger are there (storePathCommitLog)"
                )

    def read(self, position: int, size: int) -> bytes:
        """Read bytes of one file. Raises OutsideLog."""
        if self.start <= position and position + size <= self.end:
            data = self._files.read(position, size)
            if len(data) == size:
                return data
        raise OutsideLog(f"bytes {position}..{position + size} of {self.start}..{self.end}")

    def messages(self, position: int | None = None) -> Iterator[tuple[Message, int]]:
        """Yield (message, its size) from the message at `position` on, or from the first.

        For consume queues and the key index; a message's physical_offset is its position.
        Only one iteration at a time. Raises PlainLogDamaged.
        """
        at = self.start if position is None else position
        while at < self.end:
            try:
                message = self._message_at(at)
            except DamagedMessage as error:
                raise self._damage(at, str(error)) from None
            if message is None:
                at = self._files.start_of(at) + self._files.file_bytes
                continue
            size = self._size_at(at)
            yield message, size
            at += size
        self._window = memoryview(b"")

    def remove(self) -> None:
        """Remove its files: the DLedger log no longer starts at its end."""
        self._files.remove_below(self.end)
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def end_with_blank(self) -> None:
        """Verify every message, and end the last file with a blank, durably."""
        tail = self.start
        for start in range(self.start, self.end, self._files.file_bytes):
            is_last = start + self._files.file_bytes == self.end
            tail = self._walk_to_end(start, is_last=is_last)
        if self.torn_bytes and tail % self._files.file_bytes == 0:
            self._files.zero(tail, self._files.data_end(tail))
            self._files.sync()
            self.end = tail  # the last file held no whole message; other nodes may not have it
        else:
            self._fill_with_blank(tail)
        self._window = memoryview(b"")

    def _walk_to_end(self, start: int, *, is_last: bool) -> int:
        """Verify one file; return the position of its blank, or in the last file its place."""
        at = start
        try:
            while (message := self._message_at(at)) is not None:
                del message
                at += self._size_at(at)
        except DamagedMessage as error:
            if not is_last or self._finds_message_after(at):
                raise self._damage(at, str(error)) from None
            self.torn_bytes = self._files.data_end(at) - at
        return at

    def _message_at(self, position: int) -> Message | None:
        """Return the verified message at `position`, None for a blank. Raises DamagedMessage."""
        file_end = self._files.start_of(position) + self._files.file_bytes
        self._load_window(position, _SIZE_AND_MAGIC.size)
        size = self._size_at(position)
        if size < BLANK_BYTES or position + size > file_end:
            raise DamagedMessage(f"a message of {size} bytes where {file_end - position} are left")
        if position + size == file_end:
            _, magic = _SIZE_AND_MAGIC.unpack_from(self._window, position - self._window_position)
            if magic == BLANK_MAGIC:
                return None
            raise DamagedMessage("a message leaves no room for a blank")
        self._load_window(position, size)
        at = position - self._window_position
        message = decode_message(self._window[at : at + size])
        if message.physical_offset != position:
            raise DamagedMessage(f"PHYSICALOFFSET is {message.physical_offset}, not {position}")
        return message

    def _size_at(self, position: int) -> int:
        at = position - self._window_position
        if at + _SIZE_AND_MAGIC.size > len(self._window):
            raise DamagedMessage("the file ends here")
        size: int = _SIZE_AND_MAGIC.unpack_from(self._window, at)[0]
        return size

    def _load_window(self, position: int, size: int) -> None:
        """Ensure that the window holds `size` bytes from `position` on, if the file does."""
        window_end = self._window_position + len(self._window)
        if self._window_position <= position and position + size <= window_end:
            return
        self._window = memoryview(self._files.read(position, max(SCAN_BYTES, size)))
        self._window_position = position

    def _finds_message_after(self, position: int) -> bool:
        """Whether a whole message follows a damaged one: then this is damage, not a torn tail."""
        data_end = self._files.data_end(position)
        data = self._files.read(position, max(0, data_end - position))
        for magic in _MAGICS:
            found = data.find(magic, 5)
            while found >= 0:
                at = found - 4
                if _POSITION_AT_28.size + at <= len(data):
                    (stored,) = _POSITION_AT_28.unpack_from(data, at)
                    if stored == position + at and self._is_message(position + at):
                        return True
                found = data.find(magic, found + 1)
        return False

    def _is_message(self, position: int) -> bool:
        try:
            return self._message_at(position) is not None
        except DamagedMessage:
            return False

    def _fill_with_blank(self, position: int) -> None:
        """End the last file with a blank at `position`, and make the verified messages durable.

        Bytes after `position` are removed. The whole of the last file is written again: what an
        earlier start wrote may be in the page cache only, after a failed fsync.
        """
        start = self.end - self._files.file_bytes
        data_end = self._files.data_end(position)
        self._files.rewrite(start, position)
        self._files.write([BLANK.pack(self.end - position, BLANK_MAGIC)], position)
        self._files.zero(position + BLANK_BYTES, data_end)
        self._files.sync()
        self._files.sync_names()

    def _damage(self, position: int, finding: str) -> PlainLogDamaged:
        start = self._files.start_of(position)
        return PlainLogDamaged(
            f"{self._files.path(start)}: byte {position - start}: {finding};"
            " repair the plain commit log before its upgrade to DLedger"
        )


def _check_files(disk: Disk, folder: str, file_bytes: int) -> None:
    for name in disk.names(folder):
        if len(name) != NAME_DIGITS or not name.isdecimal():
            continue
        file = disk.open(f"{folder}/{name}")
        size = file.size
        file.close()
        if size != file_bytes or int(name) % file_bytes:
            raise PlainLogDamaged(
                f"{folder}/{name} has {size} bytes: files of a plain commit log have as many as"
                f" mappedFileSizeCommitLog says ({file_bytes}), and a multiple of it as name"
            )
