"""Finds the full data files of the log and their age, for expiry.

Source: DLedger's DLedgerMmapFileStore.CleanSpaceService, which checks files the same way.
"""

from __future__ import annotations

from shaketable.system.broker.limits import DataFile
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.entry import iter_dispatches


class DataFiles:
    """The full data files of a log. Each is examined once: committed entries never change."""

    def __init__(self, log: CommitLog, data_file_bytes: int) -> None:
        self._log = log
        self._file_bytes = data_file_bytes
        self._found: list[DataFile] = []

    def full_files(self, index: int) -> list[DataFile]:
        """Return the full files whose entries all have indexes up to `index`, oldest first.

        `index` is committed and durable. Raises DiskFailed, and OutsideLog while the log is being
        replaced: retry later.
        """
        begin = self._log.start
        self._found = [file for file in self._found if file.end.index > begin.index]
        last = self._found[-1].end if self._found else begin
        end_position = self._log.end.position
        while last.index < index:
            start = self._start_of(last.index + 1)
            if start + self._file_bytes > end_position:
                break
            file_end = start + self._file_bytes
            if self._log.read_entries(index, 1).position < file_end:
                break  # entries after `index` may still be in this file
            file_last = self._last_before(file_end, last.index + 1, index - 1)
            last = self._log.log_end_at(file_last)
            self._found.append(DataFile(last, self._store_ms(file_last)))
        return list(self._found)

    def _start_of(self, index: int) -> int:
        position = self._log.read_entries(index, 1).position
        return position - position % self._file_bytes

    def _last_before(self, file_end: int, low: int, high: int) -> int:
        """Return the last index in low..high whose entry is before byte `file_end`.

        A binary search: positions increase with the index.
        """
        while low < high:
            middle = (low + high + 1) // 2
            if self._log.log_end_at(middle).position <= file_end:
                low = middle
            else:
                high = middle - 1
        return low

    def _store_ms(self, index: int) -> int:
        batch = self._log.read_entries(index, 1).until(index)
        return next(dispatch[5] for dispatch in iter_dispatches(batch.data, batch.position))
