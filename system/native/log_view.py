"""What the core knows of a native commit log: begin, end, and the newest bytes."""

from __future__ import annotations

from shaketable.system.raft.batch import LogEnd
from shaketable.system.raft.log_view import LogView
from shaketable.system.raft.protocol import EntryReader
from shaketable.system.store.native.batch import native_end


class NativeLogView(LogView):
    """A log whose index is the byte's: see `system.store.native.batch`."""

    def __init__(
        self, reader: EntryReader, begin: LogEnd, end: LogEnd, tail_bytes_max: int = 16 << 20
    ) -> None:
        super().__init__(reader, (), end.index, end.position, tail_bytes_max, begin=begin)

    def end(self) -> LogEnd:
        """Return the log's end."""
        return native_end(self.end_position)

    def read_upto(self, position: int, end_position: int, bytes_max: int) -> bytes:
        """Return bytes from `position` up to `end_position`, at most `bytes_max`, of one file.

        Perhaps fewer than there are, at least one where there is one: messages need not be
        whole. Raises the reader's error where the log does not hold that place.
        """
        size = min(bytes_max, end_position - position)
        if size <= 0:
            return b""
        parts = [self._some(position, size)]
        left = size - len(parts[0])
        while left and parts[-1]:
            position += len(parts[-1])
            parts.append(self.read_some(position, left) if self._is_in_tail(position) else b"")
            left -= len(parts[-1])
        return b"".join(parts)

    def _some(self, position: int, size: int) -> bytes:
        if self._is_in_tail(position):
            return self.read_some(position, size)
        first = self._tail[0].position if self._tail else self.end_position
        return self._reader.read(position, min(size, first - position))

    def _is_in_tail(self, position: int) -> bool:
        return bool(self._tail) and self._tail[0].position <= position < self.end_position
