"""Which data files of the log are written to their end, and how old they are.

Source: DLedger's DLedgerMmapFileStore.CleanSpaceService, which looks at files the same way.
"""

from __future__ import annotations

from shaketable.system.broker.expiry import DataFile
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.entry import iter_dispatches


class DataFiles:
    """The full data files of a log, found once each: what is committed never changes."""

    def __init__(self, log: CommitLog, data_file_bytes: int) -> None:
        self._log = log
        self._file_bytes = data_file_bytes
        self._found: list[DataFile] = []

    def until(self, index: int) -> list[DataFile]:
        """Return the full files whose entries all stand at or in front of `index`, oldest first.

        `index` is committed and durable. Raises DiskFailed; OutsideLog where the log is being
        replaced: ask again later.
        """
        begin = self._log.start
        self._found = [file for file in self._found if file.end.index > begin.index]
        last = self._found[-1].end if self._found else begin
        end_position = self._log.end.position
        while last.index < index:
            start = self._start_of(last.index + 1)
            if start + self._file_bytes > end_position:
                break
            behind = start + self._file_bytes
            if self._log.read_entries(index, 1).position < behind:
                break  # whether more of the file follows is not known yet
            file_last = self._last_in(behind, last.index + 1, index - 1)
            last = self._log.log_end_at(file_last)
            self._found.append(DataFile(last, self._store_ms(file_last)))
        return list(self._found)

    def _start_of(self, index: int) -> int:
        position = self._log.read_entries(index, 1).position
        return position - position % self._file_bytes

    def _last_in(self, behind: int, low: int, high: int) -> int:
        """Return the last index in low..high whose entry stands in front of byte `behind`."""
        while low < high:
            middle = (low + high + 1) // 2
            if self._log.read_entries(middle, 1).position < behind:
                low = middle
            else:
                high = middle - 1
        return low

    def _store_ms(self, index: int) -> int:
        batch = self._log.read_entries(index, 1).until(index)
        return next(dispatch[5] for dispatch in iter_dispatches(batch.data, batch.position))
