"""Linearizable reads of a leader: rounds that prove leadership, or a lease that trusts clocks.

Source: Ongaro's dissertation sections 6.4 (read index) and 6.4.1 (lease).
"""

from __future__ import annotations

from collections import deque

from shaketable.system.raft.protocol import RaftConfig, Token

ROUNDS_REMEMBERED_MAX = 256
"""Rounds of which the sending time is kept; where an older one is confirmed, no lease."""


class ReadRounds:
    """Reads that wait for a majority to echo a round which began after they arrived.

    With `lease_ms` each heartbeat opens a round, too. When a majority has echoed a round,
    they all have heard the leader at or after its sending, and each refuses to vote for
    `election_timeout_min_ms` from then on: until `lease_ms` (shortened by
    `clock_drift_max`) after the sending nobody else can lead, and a read needs no round.
    This TRUSTS CLOCKS: where a voter's clock runs faster than the leader's by more than
    the two limits leave room for, or stops for a leader that goes on, a read may be stale.
    """

    __slots__ = ("_config", "_lease_from_ms", "_new", "_open", "_sent", "_was_dropped", "round")

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self.round = 0
        self._new: list[tuple[Token, int]] = []
        self._open: deque[tuple[int, Token, int]] = deque()  # (round, token, read index)
        self._sent: deque[tuple[int, float]] = deque(maxlen=ROUNDS_REMEMBERED_MAX)
        self._lease_from_ms = float("-inf")
        self._was_dropped = config.lease_ms <= 0

    @property
    def waiting(self) -> int:
        """Reads asked for and not yet confirmed."""
        return len(self._new) + len(self._open)

    def ask(self, token: Token, read_index: int) -> None:
        """A read joins the next round: the one that is opened after the read was asked for."""
        self._new.append((token, read_index))

    def open(self, now_ms: float) -> bool:
        """Open a round for the waiting reads if none is under way; True if it was opened."""
        if not self._new or self._open:
            return False
        self._begin_round(now_ms)
        self._open.extend((self.round, token, at) for token, at in self._new)
        self._new.clear()
        return True

    def heartbeat(self, now_ms: float) -> None:
        """A heartbeat is about to go out: with a lease it carries a round of its own."""
        if not self._was_dropped:
            self._begin_round(now_ms)

    def confirmed(self, confirmed_round: int, commit_index: int) -> list[Token]:
        """A majority echoed `confirmed_round`; return the reads that may be served now."""
        while self._sent and self._sent[0][0] <= confirmed_round:
            self._lease_from_ms = self._sent.popleft()[1]
        ready: list[Token] = []
        waiting = self._open
        while waiting and waiting[0][0] <= confirmed_round and waiting[0][2] <= commit_index:
            ready.append(waiting.popleft()[1])
        return ready

    @property
    def needs_confirmation(self) -> bool:
        """True if it matters which round a majority has echoed."""
        return bool(self._open or self._sent)

    def holds_lease(self, now_ms: float) -> bool:
        """True while nobody else can lead, as far as clocks are to be trusted."""
        if self._was_dropped:
            return False
        lease_ms = self._config.lease_ms * (1 - self._config.clock_drift_max)
        return now_ms - self._lease_from_ms < lease_ms

    def drop_lease(self) -> None:
        """No lease for the rest of the term: somebody was asked to stand against this leader.

        Not only while the transfer is under way: its vote requests may arrive much later,
        and voters that still hear this leader grant them.
        """
        self._was_dropped = True
        self._sent.clear()

    def unserved(self) -> list[Token]:
        """All reads that were not served."""
        return [token for _, token, _ in self._open] + [token for token, _ in self._new]

    def _begin_round(self, now_ms: float) -> None:
        self.round += 1
        if not self._was_dropped:
            self._sent.append((self.round, now_ms))
