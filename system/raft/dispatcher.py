"""The leader's replication state for one follower: its progress and what is in flight.

Source: DLedgerEntryPusher.EntryDispatcher (COMPARE, APPEND; 0.4.0's INSTALL_SNAPSHOT),
made safe as in Raft sections 5.3 and 7, pipelined as in Ongaro's dissertation 10.2.1;
etcd/raft's Progress (StateProbe, StateReplicate, StateSnapshot).
"""

from __future__ import annotations

import enum
from collections import deque

from shaketable.system.raft.protocol import Batch, RaftConfig


class DispatchState(enum.Enum):
    """COMPARE: find where the logs agree, one request at a time. APPEND: stream entries.

    INSTALL: send the snapshot first; the follower needs entries that are compacted here, or
    its log starts elsewhere.
    """

    COMPARE = "compare"
    APPEND = "append"
    INSTALL = "install"


class EntryDispatcher:
    """The leader's view of one follower.

    Invariant: match_index < next_index, and next_index > the start of the leader's log.
    Entries up to `match_index` are durable on the follower and equal to the leader's. Times in
    milliseconds of the leader's clock.
    """

    __slots__ = (
        "_config",
        "_full_push_bytes",
        "_in_flight",
        "_in_flight_bytes",
        "_is_probing",
        "_progress_ms",
        "_sent_position",
        "_snapshot_index",
        "_snapshot_sent_ms",
        "last_contact_ms",
        "match_index",
        "next_index",
        "peer",
        "read_round",
        "state",
    )

    def __init__(self, peer: str, config: RaftConfig, end_index: int, now_ms: float) -> None:
        self.peer = peer
        self._config = config
        # Entries that fill a push need not wait: nothing later could join that push.
        self._full_push_bytes = min(config.full_push_bytes, config.push_bytes_max)
        self.state = DispatchState.COMPARE
        self.next_index = end_index + 1
        self.match_index = -1
        self.read_round = 0
        self.last_contact_ms = now_ms  # a new leader grants every follower one silent period
        self._in_flight: deque[tuple[int, int]] = deque()  # (last index, bytes)
        self._in_flight_bytes = 0
        self._sent_position = 0  # end position of the newest of these
        self._is_probing = False  # after a loss: one push at a time until one arrives
        self._progress_ms = now_ms
        self._snapshot_index = -1  # where the last snapshot that was sent ends
        self._snapshot_sent_ms = float("-inf")

    def may_push(self, end_index: int, end_position: int) -> bool:
        """True if there are entries to stream and the window has room.

        A small push waits until the one in flight is acknowledged, so that entries which arrive
        one by one share a push and an fsync of the follower (Nagle's algorithm, RFC 896).
        """
        if self.next_index > end_index or self.state is not DispatchState.APPEND:
            return False
        if not self._in_flight:
            return True
        config = self._config
        return not self._is_probing and (
            self._in_flight_bytes < config.in_flight_bytes_max
            and len(self._in_flight) < config.in_flight_pushes_max
            and (
                len(self._in_flight) < config.small_pushes_max
                or end_position - self._sent_position >= self._full_push_bytes
            )
        )

    def pushed(self, batches: tuple[Batch, ...], now_ms: float) -> None:
        """Note entries as sent, and advance `next_index` without waiting (pipelining)."""
        size = sum(len(batch.data) for batch in batches)
        if not self._in_flight:
            self._progress_ms = now_ms
        last_index = batches[-1].last_index
        self._in_flight.append((last_index, size))
        self._sent_position = batches[-1].end_position
        self._in_flight_bytes += size
        self.next_index = last_index + 1

    def acknowledged(self, match_index: int, compacted_index: int, now_ms: float) -> bool:
        """Note that the follower holds entries up to `match_index` durably; True if that is new.

        COMPARE ends, and streaming starts after `match_index`: entries that the follower has not
        synced yet are sent again, and skipped there. INSTALL ends when the follower has all up to
        `compacted_index`, the last one that the leader's log no longer holds; if that rose while a
        snapshot was in flight, the next snapshot is sent at once.
        """
        is_new = match_index > self.match_index
        if is_new:
            self.match_index = match_index
            self._progress_ms = now_ms
            in_flight = self._in_flight
            while in_flight and in_flight[0][0] <= match_index:
                self._in_flight_bytes -= in_flight.popleft()[1]
                self._is_probing = False
        if self.state is DispatchState.APPEND:
            if self.next_index <= self.match_index:
                self.next_index = self.match_index + 1
        elif self.state is DispatchState.COMPARE or self.match_index >= compacted_index:
            self.state = DispatchState.APPEND
            self.next_index = max(self.match_index, compacted_index) + 1
        elif match_index >= self._snapshot_index:
            self._snapshot_sent_ms = float("-inf")
        return is_new

    def compare_at(self, next_index: int) -> None:
        """Fall back to COMPARE: ask whether the logs agree just before `next_index`."""
        self._start_over(DispatchState.COMPARE, max(next_index, self.match_index + 1))

    def install(self, compacted_index: int) -> None:
        """Switch to INSTALL: send the snapshot of everything up to `compacted_index`."""
        if self.state is not DispatchState.INSTALL:
            self._snapshot_sent_ms = float("-inf")
        self._start_over(DispatchState.INSTALL, compacted_index + 1)

    def refused(self, prev_index: int) -> bool:
        """Handle a refusal at `prev_index`; False if it answers an outdated request.

        While streaming, even a refusal at or below `match_index` counts: the follower may have
        lost entries (its page cache in a power failure, a wiped disk; DLEDGER.md E11). If it is
        an outdated response after all, that costs only one more comparison. From then on one push
        is sent at a time: a follower that takes none (its disk is full) would refuse all others.
        """
        if self.state is DispatchState.INSTALL:
            return False
        if self.state is DispatchState.COMPARE and prev_index != self.next_index - 1:
            return False
        if prev_index <= self.match_index:
            self.match_index = -1
        self._is_probing = True
        return True

    def is_stalled(self, now_ms: float) -> bool:
        """True if entries are in flight and none was acknowledged for `retransmit_after_ms`."""
        return (
            bool(self._in_flight) and now_ms - self._progress_ms > self._config.retransmit_after_ms
        )

    def probe(self) -> None:
        """Send one push at a time until one is acknowledged: those in flight seem lost."""
        self._is_probing = True

    def snapshot_due(self, now_ms: float) -> bool:
        """True if the snapshot must be sent now; it then counts as sent.

        Sent again after `snapshot_retransmit_ms`, and only to a follower that has responded since.
        """
        if self.state is not DispatchState.INSTALL:
            return False
        sent_ms = self._snapshot_sent_ms
        if sent_ms >= 0 and (
            now_ms - sent_ms < self._config.snapshot_retransmit_ms or self.last_contact_ms < sent_ms
        ):
            return False
        self._snapshot_index, self._snapshot_sent_ms = self.next_index - 1, now_ms
        return True

    def _start_over(self, state: DispatchState, next_index: int) -> None:
        self.state = state
        self.next_index = next_index
        self._in_flight.clear()
        self._in_flight_bytes = 0
