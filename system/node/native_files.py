"""Which files of a native commit log are full, and how old they are.

Source: RocketMQ's DefaultMessageStore.CleanCommitLogService, which looks at when a file was last
modified; here it is the store time of the first message behind it.
"""

from __future__ import annotations

from shaketable.system.broker.expiry import DataFile
from shaketable.system.store.native_batch import iter_native_dispatches, native_end
from shaketable.system.store.native_commit_log import NativeCommitLog


class NativeDataFiles:
    """The full files of a log, looked at once each."""

    def __init__(self, log: NativeCommitLog, file_bytes: int) -> None:
        self._log = log
        self._file_bytes = file_bytes
        self._found: list[DataFile] = []

    def until(self, index: int) -> list[DataFile]:
        """Return the full files in front of byte `index`, oldest first. Raises DiskFailed."""
        log = self._log
        begin = log.begin.position
        self._found = [file for file in self._found if file.end.position > begin]
        last = self._found[-1].end.position if self._found else begin
        behind = last - last % self._file_bytes + self._file_bytes
        while behind <= index:
            batch = log.read_entries(behind, 1)
            for dispatch in iter_native_dispatches(batch.data, batch.position):
                self._found.append(DataFile(native_end(behind), dispatch[5]))
                break
            else:
                break  # no message of a queue: what follows it says how old this file is
            behind += self._file_bytes
        return list(self._found)
