"""The core's view of its log: terms by index, start and end, and the recent entries' bytes.

Terms are kept as spans, since a term's entries are contiguous; older bytes are read
back through an `EntryReader`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from shaketable.system.raft.batch import Batch, LogEnd
from shaketable.system.raft.protocol import CompactedError, EntryReader, InvariantError


class LogView:
    """Terms, start, end and tail of one member's log.

    `start` is the last entry that is no longer kept, with the byte position after it: a snapshot
    replaces that entry and all before it. In a new log it is where the first entry goes. `spans`
    lists (first_index, term) of the kept entries, both rising; internally a span before them
    holds the term of `start`. An empty log ends where it starts. Not thread-safe.
    """

    def __init__(
        self,
        reader: EntryReader,
        spans: Iterable[tuple[int, int]] = (),
        end_index: int = -1,
        end_position: int = 0,
        tail_bytes_max: int = 16 << 20,
        *,
        start: LogEnd | None = None,
    ) -> None:
        self._reader = reader
        self.start = start or LogEnd()
        self._firsts: list[int] = [self.start.index]
        self._terms: list[int] = [self.start.term]
        for first, term in spans:
            if first > self.start.index and term != self._terms[-1]:
                self._firsts.append(first)
                self._terms.append(term)
        self.end_index = max(end_index, self.start.index)
        self.end_position = max(end_position, self.start.position)
        self._tail: list[Batch] = []
        self._before_tail = self.end_position  # where the entry before the tail ends
        self._tail_bytes = 0
        self._tail_bytes_max = tail_bytes_max
        self._stored_index = self.end_index  # entries up to here can be read back

    @property
    def end_term(self) -> int:
        """Term of the last entry; in an empty log the term of `start` (-1 for a new log)."""
        return self._terms[-1]

    def term_starts_after(self, index: int) -> list[int]:
        """Return the first index of each term that starts after `index` (>= the log's start)."""
        return self._firsts[bisect_right(self._firsts, index) :]

    def end(self) -> LogEnd:
        """Return the log's end with its chain CRC, for the encoder of the next entries."""
        if self.end_index == self.start.index:
            return self.start
        last = (
            self._tail[-1]
            if self._tail
            else self._reader.read_entries(self.end_index, 1).until(self.end_index)
        )
        return LogEnd(self.end_index, self.end_term, self.end_position, last.last_chain_crc())

    def term_at(self, index: int) -> int:
        """Return the term of entry `index`, or of the log's start (-1 in a new log)."""
        firsts = self._firsts
        if index >= firsts[-1]:
            assert index <= self.end_index, f"no entry {index}, the log ends at {self.end_index}"
            return self._terms[-1]
        assert index >= firsts[0], f"no entry {index}, the log starts at {self.start.index}"
        return self._terms[bisect_right(firsts, index) - 1]

    def last_at_most(self, index: int, term: int) -> int:
        """Return the largest index <= `index` (and <= the end) whose term is <= `term`.

        `start.index - 1` if that lies before the log's start. Leader and follower use it to skip
        a whole term in one comparison (Raft section 5.3).
        """
        at = min(index, self.end_index)
        span = bisect_right(self._firsts, at) - 1
        while span >= 0 and self._terms[span] > term:
            at = self._firsts[span] - 1
            span -= 1
        return at if span >= 0 else self.start.index - 1

    def append(self, batch: Batch) -> None:
        """Append a batch. Raises InvariantError if it does not continue the log."""
        if batch.first_index != self.end_index + 1 or batch.position < self.end_position:
            raise InvariantError(
                f"batch {batch.first_index}@{batch.position} does not follow "
                f"{self.end_index}@{self.end_position}"
            )
        if batch.term < self.end_term:
            raise InvariantError(f"term falls from {self.end_term} to {batch.term}")
        if batch.term != self.end_term:
            self._firsts.append(batch.first_index)
            self._terms.append(batch.term)
        if not self._tail:
            self._before_tail = self.end_position
        self.end_index = batch.last_index
        self.end_position = batch.end_position
        self._tail.append(batch)
        self._tail_bytes += len(batch.data)
        self._trim()

    def truncate(self, end_index: int) -> None:
        """Remove every entry after `end_index`, which is not before the log's start."""
        assert self.start.index <= end_index < self.end_index
        while self._firsts[-1] > end_index:
            self._firsts.pop()
            self._terms.pop()
        while self._tail and self._tail[-1].last_index > end_index:
            last = self._tail.pop()
            self._tail_bytes -= len(last.data)
            if last.first_index <= end_index:
                kept = last.until(end_index)
                self._tail.append(kept)
                self._tail_bytes += len(kept.data)
        self.end_index = end_index
        self._stored_index = min(self._stored_index, end_index)
        if self._tail:
            self.end_position = self._tail[-1].end_position
        elif end_index == self.start.index:
            self.end_position = self.start.position
        else:
            self.end_position = (
                self._reader.read_entries(end_index, 1).until(end_index).end_position
            )

    def compact(self, start: LogEnd) -> None:
        """Remove the entries up to `start`, which is the end of one of them."""
        assert self.start.index < start.index <= self.end_index, f"{start} is not in the log"
        assert self.term_at(start.index) == start.term, f"{start} is not of this log"
        span = bisect_right(self._firsts, start.index) - 1
        del self._firsts[:span], self._terms[:span]
        self._firsts[0] = start.index
        drop = 0
        while drop < len(self._tail) and self._tail[drop].last_index <= start.index:
            self._tail_bytes -= len(self._tail[drop].data)
            drop += 1
        self._drop(drop)
        self.start = start

    def reset(self, end: LogEnd) -> None:
        """Remove everything: the log starts and ends at `end` (a snapshot was installed)."""
        self.start = end
        self._firsts[:] = [end.index]
        self._terms[:] = [end.term]
        self.end_index = self._stored_index = end.index
        self.end_position = end.position
        self._tail.clear()
        self._tail_bytes = 0

    def stored(self, index: int) -> None:
        """Note entries up to `index` as written: they can be read back and leave memory."""
        self._stored_index = max(self._stored_index, min(index, self.end_index))
        self._trim()

    def batches_from(self, first_index: int, bytes_max: int) -> tuple[Batch, ...]:
        """Return contiguous batches from `first_index` on: one term, one file, at least one.

        At most about `bytes_max` bytes; the first batch is returned even if it is larger. Raises
        CompactedError for an entry at or before the log's start.
        """
        if first_index <= self.start.index:
            raise CompactedError(
                f"entry {first_index} is gone, the log starts after {self.start.index}"
            )
        assert first_index <= self.end_index
        if not self._tail or first_index < self._tail[0].first_index:
            found = self._reader.read_entries(first_index, bytes_max)
            # The files may still hold entries that a truncation has not removed yet: from its
            # first entry on, the tail is what counts.
            last = self._tail[0].first_index - 1 if self._tail else self.end_index
            return (found.until(last) if found.last_index > last else found,)
        at = len(self._tail) - 1
        if first_index < self._tail[at].first_index:
            at = bisect_right(self._tail, first_index, key=_first_index) - 1
        needed = self._tail[at : at + _PUSH_BATCHES_MAX]
        if needed[0].first_index < first_index:
            needed[0] = needed[0].after(first_index - 1)
        return _sendable(needed, bytes_max)

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes of one entry from byte `position` of the log on.

        For bytes before the log's start the reader decides: it finds them in the plain commit
        log that an upgraded group started with, or raises.
        """
        if not self._tail or position < self._tail[0].position:
            return self._reader.read(position, size)
        batch = self._tail[bisect_right(self._tail, position, key=_position) - 1]
        at = position - batch.position
        assert at + size <= len(batch.data), f"{size} bytes at {position} span batches"
        return batch.data[at : at + size]

    def read_some(self, position: int, size: int) -> bytes:
        """Return at most `size` bytes of the log from any position, perhaps none.

        For a position that a client sent: no message need start there. Raises the reader's error
        if it does not hold that many bytes.
        """
        if not self._tail:
            return self._reader.read(position, size)
        if position < self._tail[0].position:
            # The tail may begin in a new file. Between the entry before it and there, the files
            # may still hold entries that a truncation has not removed yet.
            there = min(size, self._before_tail - position)
            return self._reader.read(position, there) if there > 0 else b""
        batch = self._tail[bisect_right(self._tail, position, key=_position) - 1]
        at = position - batch.position
        return batch.data[at : at + size]

    def _trim(self) -> None:
        """Drop the oldest quarter of a tail that is over its limit, as far as it is stored."""
        if self._tail_bytes <= self._tail_bytes_max:
            return
        drop = 0
        while (
            drop < len(self._tail) - 1
            and self._tail_bytes > self._tail_bytes_max * 3 // 4
            and self._tail[drop].last_index <= self._stored_index
        ):
            self._tail_bytes -= len(self._tail[drop].data)
            drop += 1
        self._drop(drop)

    def _drop(self, count: int) -> None:
        """Forget the tail's first batches: they are read back from the files."""
        if count:
            self._before_tail = self._tail[count - 1].end_position
            del self._tail[:count]


_PUSH_BATCHES_MAX = 256


def _first_index(batch: Batch) -> int:
    return batch.first_index


def _position(batch: Batch) -> int:
    return batch.position


def _sendable(batches: list[Batch], bytes_max: int) -> tuple[Batch, ...]:
    """Return the leading batches that fit into one push: one term, one file, `bytes_max`."""
    if len(batches) == 1:
        return (batches[0],)
    out = [batches[0]]
    size = len(batches[0].data)
    for batch in batches[1:]:
        size += len(batch.data)
        contiguous = batch.term == out[0].term and batch.position == out[-1].end_position
        if not contiguous or size > bytes_max:
            break
        out.append(batch)
    return tuple(out)
