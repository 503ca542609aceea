"""One entry dispatcher a follower: where it is, what is under way to it.

Source: DLedgerEntryPusher.EntryDispatcher (COMPARE, APPEND), made safe as in Raft
section 5.3 and pipelined as in Ongaro's dissertation section 10.2.1.
"""

from __future__ import annotations

import enum
from collections import deque

from system.raft.batch import Batch
from system.raft.protocol import RaftConfig


class DispatchState(enum.Enum):
    """COMPARE: find where the logs agree, one question at a time. APPEND: stream entries."""

    COMPARE = "compare"
    APPEND = "append"


class EntryDispatcher:
    """The leader's view of one follower.

    Invariant: match_index < next_index. `match_index` is durable on the follower and
    equal to the leader's log. Times in milliseconds of the leader's clock.
    """

    __slots__ = (
        "_config",
        "_in_flight",
        "_in_flight_bytes",
        "_progress_ms",
        "heard_ms",
        "match_index",
        "next_index",
        "read_round",
        "state",
    )

    def __init__(self, config: RaftConfig, end_index: int, now_ms: float) -> None:
        self._config = config
        self.state = DispatchState.COMPARE
        self.next_index = end_index + 1
        self.match_index = -1
        self.read_round = 0
        self.heard_ms = now_ms  # a new leader grants everybody one period of silence
        self._in_flight: deque[tuple[int, int]] = deque()  # (last index, bytes)
        self._in_flight_bytes = 0
        self._progress_ms = now_ms

    def may_push(self, end_index: int) -> bool:
        """True if there are entries to stream and the window has room."""
        return (
            self.state is DispatchState.APPEND
            and self.next_index <= end_index
            and self._in_flight_bytes < self._config.in_flight_bytes_max
            and len(self._in_flight) < self._config.in_flight_pushes_max
        )

    def pushed(self, batches: tuple[Batch, ...], now_ms: float) -> None:
        """Entries went out: go on behind them without waiting (pipelining)."""
        size = sum(len(batch.data) for batch in batches)
        if not self._in_flight:
            self._progress_ms = now_ms
        self._in_flight.append((batches[-1].last_index, size))
        self._in_flight_bytes += size
        self.next_index = batches[-1].last_index + 1

    def acknowledged(self, match_index: int, now_ms: float) -> bool:
        """The follower holds everything to `match_index` durably; True if that is new.

        In COMPARE the stream starts behind it: what the follower has beyond it and has
        not synced yet is sent once more, and skipped there.
        """
        is_new = match_index > self.match_index
        if is_new:
            self.match_index = match_index
            self._progress_ms = now_ms
            while self._in_flight and self._in_flight[0][0] <= match_index:
                self._in_flight_bytes -= self._in_flight.popleft()[1]
        if self.state is DispatchState.COMPARE:
            self.state = DispatchState.APPEND
            self.next_index = self.match_index + 1
        elif self.next_index <= self.match_index:
            self.next_index = self.match_index + 1
        return is_new

    def compare_at(self, next_index: int) -> None:
        """Fall back to COMPARE: ask whether the logs agree just before `next_index`."""
        self.state = DispatchState.COMPARE
        self.next_index = max(next_index, self.match_index + 1)
        self._in_flight.clear()
        self._in_flight_bytes = 0

    def believes(self, prev_index: int) -> bool:
        """True if a refusal at `prev_index` is news, not an echo of what was corrected."""
        if self.state is DispatchState.COMPARE:
            return prev_index == self.next_index - 1
        return prev_index > self.match_index

    def is_stalled(self, now_ms: float) -> bool:
        """True if something was sent and nothing was acknowledged for too long."""
        return (
            bool(self._in_flight) and now_ms - self._progress_ms > self._config.retransmit_after_ms
        )
