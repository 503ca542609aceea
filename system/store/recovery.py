"""Recovery: find the log's end by verifying every entry, and truncate a torn tail.

Damage after the durable watermark is a torn tail. Damage before it raises LogDamaged: to truncate
there would drop acknowledged entries, and a vote may depend on any of them, so all are read.
Source: DLedger's DLedgerMmapFileStore.recover (which starts at the third file from the end);
DLEDGER.md B.3; DESIGN.md decision 2.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import ENTRY_HEADER_BYTES, LogEnd
from shaketable.system.store.entry import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    ENTRY_MAGIC,
    DamagedEntry,
    sound_messages,
    verify_entry,
)
from shaketable.system.store.group_events import (
    MEMBERSHIP_CHANNEL,
    DamagedMembership,
    membership_of,
)
from shaketable.system.store.index_units import UNIT_BYTES, IndexRebuilder
from shaketable.system.store.segment_files import SegmentFiles
from shaketable.system.store.state_files import DurableWatermark, LogDamaged, WatermarkRecord

SCAN_BYTES = 8 << 20
"""Bytes read at once: more than the largest entry."""
_CHANNEL_AT_32 = struct.Struct(">32xi").unpack_from


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of recovery.

    `spans` are (first index, term), `memberships` the (index, membership) of membership
    entries, `torn_bytes` the size of the torn tail.
    """

    end: LogEnd
    spans: tuple[tuple[int, int], ...]
    memberships: tuple[tuple[int, Membership], ...]
    torn_bytes: int


def recover(
    data: SegmentFiles, index: SegmentFiles, watermark: DurableWatermark, scan_type: type[LogScan]
) -> Recovered:
    """Scan the log, truncate its torn tail, repair its index, and make what is kept durable.

    Entries after the watermark may be in the page cache only, as clean pages after a failed
    fsync: they are written again and synced before they count, and so are the zeros of a
    truncation. Files wholly before the log's start are left from an interrupted compaction, and
    are removed. Raises LogDamaged, DiskFailed, DiskFull.
    """
    scan = scan_type(data, index, watermark.record)
    scan.run()
    end = scan.end
    for start in data.starts:
        if start <= end.position:
            data.fill_up(start)
    data_end = data.data_end(end.position)
    later = [start for start in data.starts if start > end.position]
    torn_bytes = data_end - end.position + sum(data.data_end(start) - start for start in later)
    file_end = data.start_of(end.position) + data.file_bytes
    cut_until = max(data_end, min(watermark.record.cut_until, file_end))
    if cut_until > end.position:
        # Before zeros are written: a restart in the middle must write all of them again.
        watermark.move(watermark.record.end, cut_until)
    data.rewrite(watermark.record.end.position, end.position)
    data.cut(end.position, cut_until)
    data.sync()
    data.sync_names()
    scan.rebuilder.finish()
    watermark.move(end)
    data.remove_below(scan.first_position)
    index.remove_below((watermark.record.start.index + 1) * UNIT_BYTES)
    return Recovered(end, tuple(scan.spans), tuple(scan.memberships), torn_bytes)


class LogScan:
    """A scan of the data files, from the log's start to the first bytes that are no valid entry."""

    end: LogEnd
    """The end of the last entry found."""
    first_position: int
    """Position of the first entry; that of the log's start if there is none."""

    def __init__(self, data: SegmentFiles, index: SegmentFiles, record: WatermarkRecord) -> None:
        self.end = record.start
        self.first_position = record.start.position
        self.spans: list[tuple[int, int]] = []
        self.memberships: list[tuple[int, Membership]] = []
        self.rebuilder = IndexRebuilder(index, record.start.index + 1)
        self._data = data
        self._record = record
        self._position = record.start.position
        self._window = memoryview(b"")
        self._window_position = self._window_end = self._file_end = 0

    def run(self) -> None:
        """Scan all entries. Raises LogDamaged if the scan ends before the watermark."""
        if self._position % self._data.file_bytes and not self._data.has(self._position):
            # The file with the log's start held only a blank after it, and was removed.
            self._position = self._data.start_of(self._position) + self._data.file_bytes
        try:
            while True:
                self._take_messages()
                self.step()
        except DamagedEntry as error:
            if self.end.index < self._record.end.index:
                raise self._damage(str(error)) from None

    def _take_messages(self) -> None:
        """Take the messages that follow in the window and the term.

        Not the watermark's entry, which `step` compares with what was synced.
        """
        if not self.spans:
            return  # `step` notes where the log's first entry is; no window is loaded before it
        add, until_index = self.rebuilder.add, self._record.end.index
        at = self._position - self._window_position
        for found in sound_messages(self._window, at, self.end, self._position):
            if found.index == until_index:
                return
            position = self._position
            add(position, found.position - position, found.index, found.term)
            self.end, self._position = found, found.position

    def step(self) -> None:
        """Read one entry or one blank. Raises DamagedEntry if there is neither."""
        position, end = self._position, self.end
        if position + ENTRY_HEADER_BYTES > self._window_end:
            self._load_window(position, ENTRY_HEADER_BYTES)
        at, left = position - self._window_position, self._file_end - position
        if self._window_end - position < BLANK_BYTES:
            raise DamagedEntry("the file ends here")
        magic, size = BLANK.unpack_from(self._window, at)
        if magic == BLANK_MAGIC and size == left < self._data.file_bytes:
            self._position = self._file_end
            return
        if position + size > self._window_end and (
            magic == ENTRY_MAGIC and ENTRY_HEADER_BYTES < size <= left - BLANK_BYTES
        ):
            self._load_window(position, size)
            at = 0
        found = self._verify(self._window, at, position)
        if found.index == self._record.end.index and found != self._record.end:
            raise self._damage(f"this is not the entry that was synced, {self._record.end}")
        if _CHANNEL_AT_32(self._window, at)[0] == MEMBERSHIP_CHANNEL:
            self._note_membership(at, found)
        if not self.spans:
            self.first_position = position
        if found.term != end.term or not self.spans:
            self.spans.append((found.index, found.term))
        self.rebuilder.add(position, found.position - position, found.index, found.term)
        self.end = found
        self._position = found.position

    def _verify(self, window: memoryview, at: int, position: int) -> LogEnd:
        """Verify the entry at byte `at`; return the log's end after it. Raises DamagedEntry."""
        return verify_entry(window, at, self.end, position)

    def _note_membership(self, at: int, found: LogEnd) -> None:
        """Record the membership of the verified membership entry at byte `at` of the window."""
        stop = at + found.position - self._position
        try:
            membership = membership_of(self._window[at:stop])
        except DamagedMembership as error:  # its CRCs match: not torn, but we never wrote this
            raise self._damage(str(error)) from None
        self.memberships.append((found.index, membership))

    def _load_window(self, position: int, size: int) -> None:
        """Read the window again, from `position` on: `size` bytes, if the file has them, or more.

        Raises DamagedEntry without a file.
        """
        if not self._data.has(position):
            raise DamagedEntry("the file is missing")
        self._window = memoryview(self._data.read(position, max(SCAN_BYTES, size)))
        self._window_position = position
        self._window_end = position + len(self._window)
        self._file_end = self._data.start_of(position) + self._data.file_bytes

    def _damage(self, finding: str) -> LogDamaged:
        start = self._data.start_of(self._position)
        return LogDamaged(
            self._data.path(start),
            f"byte {self._position - start}, entry {self.end.index + 1}: {finding}"
            f" (synced up to entry {self._record.end.index})",
        )
