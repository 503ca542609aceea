"""Recovery: finds the log's end by reading every entry, and truncates a torn tail.

Damage behind the synced-to mark is a torn tail; damage in front of it is LogDamaged. Everything
is read, because a vote may rest on any entry. Source: DLedger's DLedgerMmapFileStore.recover
(which starts at the third file from the end); DLEDGER.md B.3; DESIGN.md decision 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from system.raft.batch import ENTRY_HEADER_BYTES, LogEnd
from system.store.entry import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    ENTRY_MAGIC,
    DamagedEntry,
    verify_entry,
)
from system.store.hard_state import LogDamaged
from system.store.index_units import IndexRebuilder
from system.store.segment_files import SegmentFiles
from system.store.synced_mark import Mark, SyncedMark

SCAN_BYTES = 8 << 20
"""Bytes read at once: more than the largest entry."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the scan found: the end, the spans (first index, term), the torn bytes cut off."""

    end: LogEnd
    spans: tuple[tuple[int, int], ...]
    torn_bytes: int


def recover(data: SegmentFiles, index: SegmentFiles, mark: SyncedMark) -> Recovered:
    """Scan the log, cut its torn tail, mend its index, and make what is kept durable.

    Entries behind the mark may stand in the page cache alone, even after an fsync that failed;
    they are written again before they are synced, and only then count. So are the zeros of a cut.
    Raises LogDamaged, DiskFailed, DiskFull.
    """
    scan = _Scan(data, index, mark.mark)
    scan.run()
    end = scan.end
    for start in data.starts:
        if start <= end.position:
            data.fill_up(start)
    data_end = data.data_end(end.position)
    later = [start for start in data.starts if start > end.position]
    torn_bytes = data_end - end.position + sum(data.data_end(start) - start for start in later)
    file_end = data.start_of(end.position) + data.file_bytes
    cut_until = max(data_end, min(mark.mark.cut_until, file_end))
    if cut_until > end.position:
        mark.move(mark.mark.end, cut_until)
    data.cut(end.position, cut_until)
    data.rewrite(mark.mark.end.position, end.position)
    data.sync()
    data.sync_names()
    scan.rebuilder.finish()
    mark.move(end)
    return Recovered(end, tuple(scan.spans), torn_bytes)


class _Scan:
    """One walk over the data files, from the mark's begin to the first thing that is no entry."""

    def __init__(self, data: SegmentFiles, index: SegmentFiles, mark: Mark) -> None:
        self.end = mark.begin
        self.spans: list[tuple[int, int]] = []
        self.rebuilder = IndexRebuilder(index, mark.begin.index + 1)
        self._data = data
        self._mark = mark
        self._position = mark.begin.position
        self._window = memoryview(b"")
        self._window_position = 0

    def run(self) -> None:
        """Walk; raises LogDamaged if the walk ends in front of the mark."""
        try:
            while True:
                self._step()
        except DamagedEntry as error:
            if self.end.index < self._mark.end.index:
                raise self._damage(str(error)) from None

    def _step(self) -> None:
        """Take one entry or one blank; raises DamagedEntry where there is neither."""
        position = self._position
        start = self._data.start_of(position)
        if not self._data.has(position):
            raise DamagedEntry("the file is missing")
        left = start + self._data.file_bytes - position
        self._look_at(position, ENTRY_HEADER_BYTES)
        at = position - self._window_position
        if len(self._window) - at < BLANK_BYTES:
            raise DamagedEntry("the file ends here")
        magic, size = BLANK.unpack_from(self._window, at)
        if magic == BLANK_MAGIC and size == left and position > start:
            self._position = start + self._data.file_bytes
            return
        if magic == ENTRY_MAGIC and ENTRY_HEADER_BYTES < size <= left - BLANK_BYTES:
            self._look_at(position, size)
            at = position - self._window_position
        found = verify_entry(self._window, at, self.end, position)
        if found.index == self._mark.end.index and found != self._mark.end:
            raise self._damage(f"this is not the entry that was synced, {self._mark.end}")
        if found.term != self.end.term or not self.spans:
            self.spans.append((found.index, found.term))
        self.rebuilder.add(position, found.position - position, found.index, found.term)
        self.end = found
        self._position = found.position

    def _look_at(self, position: int, size: int) -> None:
        """Have `size` bytes from `position` on in the window, where the file has them."""
        behind = self._window_position + len(self._window)
        if self._window_position <= position and position + size <= behind:
            return
        self._window = memoryview(self._data.read(position, max(SCAN_BYTES, size)))
        self._window_position = position

    def _damage(self, finding: str) -> LogDamaged:
        start = self._data.start_of(self._position)
        return LogDamaged(
            self._data.path(start),
            f"byte {self._position - start}, entry {self.end.index + 1}: {finding}"
            f" (synced up to entry {self._mark.end.index})",
        )
