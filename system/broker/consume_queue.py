"""Consume queues: where each queue's messages stand in the log, from committed entries only.

Source: RocketMQ's ConsumeQueue and DefaultMessageStore.ReputMessageService (which in
DLedger mode reads up to committedPos only); DLEDGER.md sections 0 (row 1) and B.2.
"""

from __future__ import annotations

from array import array

from system.raft.protocol import InvariantError

Queue = tuple[bytes, int]
"""Topic and queue id."""


class ConsumeQueues:
    """Byte position and size of every committed message, by queue and offset."""

    def __init__(self) -> None:
        self._positions: dict[Queue, array[int]] = {}
        self._sizes: dict[Queue, array[int]] = {}

    def append(self, queue: Queue, offset: int, position: int, size: int) -> None:
        """Dispatch one committed message. Raises InvariantError where the offset has a gap."""
        positions = self._positions.get(queue)
        if positions is None:
            positions = self._positions[queue] = array("q")
            self._sizes[queue] = array("i")
        if offset != len(positions):
            raise InvariantError(
                f"queue {queue[0].decode()}/{queue[1]} goes on at {offset}, not {len(positions)}"
            )
        positions.append(position)
        self._sizes[queue].append(size)

    def end(self, queue: Queue) -> int:
        """Offset that the next committed message of the queue will have."""
        return len(self._positions.get(queue, ()))

    def find(
        self, queue: Queue, offset: int, count_max: int, bytes_max: int
    ) -> list[tuple[int, int]]:
        """Return (position, size) of messages from `offset` on, at least one if there is one."""
        positions = self._positions.get(queue)
        if positions is None:
            return []
        sizes = self._sizes[queue]
        found: list[tuple[int, int]] = []
        total = 0
        for at in range(offset, min(offset + count_max, len(positions))):
            total += sizes[at]
            if found and total > bytes_max:
                break
            found.append((positions[at], sizes[at]))
        return found
