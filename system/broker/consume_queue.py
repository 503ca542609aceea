"""Consume queues: the log positions of each queue's messages, from committed entries only.

A unit is one message's position, size and tags code. The newest units of each queue are in
memory, encoded as on disk; older ones are read from the files that checkpoints write.
Source: RocketMQ's ConsumeQueue and DefaultMessageStore.ReputMessageService (which in
DLedger mode reads up to committedPos only); DLEDGER.md sections 0 (row 1) and B.2.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Protocol

from shaketable.system.raft.protocol import InvariantError

Queue = tuple[bytes, int]
"""Topic and queue id."""
Ranges = Mapping[Queue, tuple[int, int]]
"""Min and max offset of each queue."""
UnitRuns = Mapping[Queue, tuple[int, bytes]]
"""Of each queue the first unit's offset, and the encoded units from there on."""

Buffer = bytes | bytearray | memoryview

UNIT_BYTES = 20
TAIL_UNITS_MAX = 1024
"""Units of a queue that are kept in memory although the files have them."""

_UNIT = struct.Struct(">qiq")
_PACK = _UNIT.pack
_POSITION = struct.Struct(">q").unpack_from


class UnitReader(Protocol):
    """Reads the units that checkpoints wrote (`system.store.consume_queue_files`)."""

    def read_units(self, queue: Queue, offset: int, count: int) -> bytes:
        """Return exactly `count` encoded units from `offset` on. Raises StoreError."""


class _Tail:
    """One queue: its range and its newest units, which end at `max_offset`."""

    __slots__ = ("first", "is_new", "max_offset", "min_offset", "notify_next", "saved", "units")

    def __init__(self, min_offset: int, max_offset: int) -> None:
        self.min_offset = min_offset
        self.first = max_offset  # offset of units[0:20]
        self.max_offset = max_offset
        self.saved = max_offset  # units below this offset are in the files
        self.is_new = False  # whether it is in the list of queues for the next checkpoint
        self.notify_next = True  # whether its next message calls `_note`
        self.units = bytearray()

    def restart_at(self, offset: int) -> None:
        """Drop all units and continue at `offset`, after a gap."""
        self.min_offset = self.first = self.max_offset = self.saved = offset
        self.units.clear()


class ConsumeQueues:
    """Byte position, size and tags code of every committed message, by queue and offset.

    `ranges` are the queues' ranges in a checkpoint or a snapshot. `reader` reads the units of
    those ranges; without one, all units must have been appended here. An unknown queue starts at
    offset 0, or at its first message if queues `may_skip`.
    """

    def __init__(
        self,
        ranges: Ranges | None = None,
        reader: UnitReader | None = None,
        *,
        tail_units_max: int = TAIL_UNITS_MAX,
        may_skip: bool = False,
    ) -> None:
        self._reader = reader
        self._tail_units_max = tail_units_max
        self._may_skip = may_skip
        self._queues: dict[Queue, _Tail] = {}
        self._new: list[Queue] = []
        self._watched: set[Queue] = set()
        self._arrived: list[Queue] = []
        for queue, (min_offset, max_offset) in (ranges or {}).items():
            assert 0 <= min_offset <= max_offset, (
                f"queue {queue} of range {min_offset}..{max_offset}"
            )
            self._queues[queue] = _Tail(min_offset, max_offset)

    # ---- dispatch ---------------------------------------------------------------------

    def append(
        self, queue: Queue, offset: int, position: int, size: int, tags_code: int = 0
    ) -> None:
        """Dispatch one committed message.

        Raises InvariantError if the offset is not the queue's max offset. If queues may skip, a
        message below it is ignored, and after a gap the queue restarts at `offset`.
        """
        tail = self._queues.get(queue)
        if tail is None:
            tail = self._queues[queue] = _Tail(0, 0)
        if offset != tail.max_offset:
            if not self._may_skip:
                raise _gap_error(queue, offset, tail.max_offset)
            if offset < tail.max_offset:
                return
            tail.restart_at(offset)
        tail.units += _PACK(position, size, tags_code)
        tail.max_offset = offset + 1
        if tail.notify_next:
            self._note(queue, tail)

    def append_run(self, queue: Queue, first_offset: int, count: int, units: Buffer) -> None:
        """Dispatch committed messages of one queue, their units encoded as on disk.

        Raises InvariantError if they do not follow. Only for queues that may not skip.
        """
        tail = self._queues.get(queue)
        if tail is None:
            tail = self._queues[queue] = _Tail(0, 0)
        if first_offset != tail.max_offset:
            raise _gap_error(queue, first_offset, tail.max_offset)
        tail.units += units
        tail.max_offset += count
        if tail.notify_next:
            self._note(queue, tail)

    def watch(self, queue: Queue) -> None:
        """Make `take_arrived` return this queue once its next message is dispatched."""
        self._watched.add(queue)
        if (tail := self._queues.get(queue)) is not None:
            tail.notify_next = True

    def unwatch(self, queue: Queue) -> None:
        """Stop watching a queue."""
        self._watched.discard(queue)

    def take_arrived(self) -> list[Queue]:
        """Return the watched queues that got messages, and stop watching them."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def _note(self, queue: Queue, tail: _Tail) -> None:
        tail.notify_next = False
        if not tail.is_new:
            tail.is_new = True
            self._new.append(queue)
        if queue in self._watched:
            self._watched.discard(queue)
            self._arrived.append(queue)

    # ---- reads ------------------------------------------------------------------------

    def min_offset(self, queue: Queue) -> int:
        """Return the lowest retained offset; the max offset if no message is retained."""
        tail = self._queues.get(queue)
        return tail.min_offset if tail else 0

    def max_offset(self, queue: Queue) -> int:
        """Return the offset of the queue's next committed message."""
        tail = self._queues.get(queue)
        return tail.max_offset if tail else 0

    def ranges(self) -> dict[Queue, tuple[int, int]]:
        """Return every queue's min and max offset, for a checkpoint."""
        return {queue: (tail.min_offset, tail.max_offset) for queue, tail in self._queues.items()}

    def find(
        self, queue: Queue, offset: int, count_max: int, bytes_max: int
    ) -> list[tuple[int, int]]:
        """Return (position, size) of messages from `offset` on, at least one if there is one.

        Empty outside the queue's range. Raises StoreError if the files cannot be read.
        """
        tail = self._queues.get(queue)
        if tail is None or not tail.min_offset <= offset < tail.max_offset:
            return []
        found: list[tuple[int, int]] = []
        total = 0
        units = self._units(queue, tail, offset, min(count_max, tail.max_offset - offset))
        for position, size, _ in _UNIT.iter_unpack(units):
            total += size
            if found and total > bytes_max:
                break
            found.append((position, size))
        return found

    def units(self, queue: Queue, offset: int, count_max: int) -> list[tuple[int, int, int]]:
        """Return (position, size, tags code) of at most `count_max` messages from `offset` on.

        Empty outside the queue's range. Raises StoreError if the files cannot be read.
        """
        tail = self._queues.get(queue)
        if tail is None or not tail.min_offset <= offset < tail.max_offset:
            return []
        count = min(count_max, tail.max_offset - offset)
        return list(_UNIT.iter_unpack(self._units(queue, tail, offset, count)))

    def _units(self, queue: Queue, tail: _Tail, offset: int, count: int) -> bytes | bytearray:
        """Return `count` existing units, from the files and from memory."""
        if offset >= tail.first:
            at = (offset - tail.first) * UNIT_BYTES
            return tail.units[at : at + count * UNIT_BYTES]
        from_files = min(count, tail.first - offset)
        assert self._reader is not None, f"units of {queue} from {offset} on are nowhere"
        units = self._reader.read_units(queue, offset, from_files)
        return units + tail.units[: (count - from_files) * UNIT_BYTES]

    # ---- checkpoints ------------------------------------------------------------------

    def units_since_checkpoint(self) -> dict[Queue, tuple[int, bytes]]:
        """Return the units that no checkpoint has saved: by queue first offset, encoded units.

        They are returned again until `checkpointed` confirms that they were saved.
        """
        units = {}
        for queue in self._new:
            tail = self._queues[queue]
            start = max(tail.saved, tail.min_offset)
            units[queue] = (start, bytes(tail.units[(start - tail.first) * UNIT_BYTES :]))
        return units

    def checkpointed(self, units: UnitRuns) -> None:
        """Note that the files have these units, as `units_since_checkpoint` returned them.

        Of the saved units, only the newest are kept in memory.
        """
        for queue, (start, data) in units.items():
            tail = self._queues.get(queue)
            if tail is None:
                continue  # a snapshot has replaced the log since
            tail.saved = max(tail.saved, start + len(data) // UNIT_BYTES)
            tail.is_new = tail.saved < tail.max_offset
            tail.notify_next = True
            drop_count = min(tail.saved, tail.max_offset - self._tail_units_max) - tail.first
            if drop_count > 0 and self._reader is not None:
                del tail.units[: drop_count * UNIT_BYTES]
                tail.first += drop_count
        self._new = [queue for queue in self._new if self._queues[queue].is_new]

    # ---- expiry -----------------------------------------------------------------------

    def offsets_at(self, position: int) -> dict[Queue, int]:
        """Return each queue's next offset at a log position, for a snapshot there.

        That is the offset of its first message at or after `position`, or its max offset. Queues
        at offset 0 there are left out, so that members get equal results whenever they ask.
        """
        offsets = {}
        for queue, tail in self._queues.items():
            offset = self._offset_at(queue, tail, position)
            if offset:
                offsets[queue] = offset
        return offsets

    def forget_below(self, position: int) -> None:
        """Raise each queue's min offset to its first message at or after the log's new start."""
        for queue, tail in self._queues.items():
            tail.min_offset = self._offset_at(queue, tail, position)
            drop_count = min(tail.min_offset, tail.max_offset) - tail.first
            if drop_count > 0:
                del tail.units[: drop_count * UNIT_BYTES]
                tail.first += drop_count
                tail.saved = max(tail.saved, tail.first)

    def _offset_at(self, queue: Queue, tail: _Tail, position: int) -> int:
        """Return a queue's first retained offset at or after `position`, by binary search."""
        low, high = tail.min_offset, tail.max_offset
        if low == high or self._position(queue, tail, low) >= position:
            return low
        # Positions rise with offsets. Invariant: the unit at `low` is before the position, and
        # `high` is at or after it, or the max offset.
        while high - low > 1:
            middle = (low + high) // 2
            if self._position(queue, tail, middle) < position:
                low = middle
            else:
                high = middle
        return high

    def _position(self, queue: Queue, tail: _Tail, offset: int) -> int:
        position: int = _POSITION(self._units(queue, tail, offset, 1))[0]
        return position


def _gap_error(queue: Queue, offset: int, max_offset: int) -> InvariantError:
    name = queue[0].decode(errors="replace")
    return InvariantError(f"queue {name}/{queue[1]} goes on at {offset}, not {max_offset}")
