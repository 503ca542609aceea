"""Linearizable reads at a leader: rounds that prove leadership, or a lease that trusts clocks.

Source: Ongaro's dissertation sections 6.4 (read index) and 6.4.1 (lease).
"""

from __future__ import annotations

from collections import deque

from shaketable.system.raft.protocol import RaftConfig, Token

ROUNDS_REMEMBERED_MAX = 256
"""How many rounds' send times are kept; an older round, when confirmed, extends no lease."""


class ReadRounds:
    """Reads that wait until a majority echoes a round which was opened after they arrived.

    Such an echo proves that no newer leader had committed anything when the read arrived: the
    voters that echoed were still in this term, and a newer leader needs one of them.

    With `lease_ms` each heartbeat opens a round, too. The voters that echo a round heard the
    leader at or after it was sent, and refuse to vote for `election_timeout_min_ms` from then
    on. So until `lease_ms` (shortened by `clock_drift_max`) after the send no other member can
    lead, and a read needs no round. This TRUSTS CLOCKS: a read may be stale if a voter's clock
    runs faster than the leader's by more than the margin between the two, or if the leader's
    clock stops while the leader runs on.
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
        """How many reads wait for confirmation."""
        return len(self._new) + len(self._open)

    def ask(self, token: Token, read_index: int) -> None:
        """Add a read to the next round, which is opened after the read arrived."""
        self._new.append((token, read_index))

    def open(self, now_ms: float) -> bool:
        """Open a round for the new reads unless one is under way; True if it was opened."""
        if not self._new or self._open:
            return False
        self._begin_round(now_ms)
        self._open.extend((self.round, token, at) for token, at in self._new)
        self._new.clear()
        return True

    def heartbeat(self, now_ms: float) -> None:
        """Open a round for the heartbeat that is about to be sent, if leases are used."""
        if not self._was_dropped:
            self._begin_round(now_ms)

    def confirmed(self, confirmed_round: int, commit_index: int) -> list[Token]:
        """Return the reads that may be served, now that a majority echoed `confirmed_round`.

        The lease is extended from the round's send time, not from that of its echoes.
        """
        while self._sent and self._sent[0][0] <= confirmed_round:
            self._lease_from_ms = self._sent.popleft()[1]
        ready: list[Token] = []
        waiting = self._open
        while waiting and waiting[0][0] <= confirmed_round and waiting[0][2] <= commit_index:
            ready.append(waiting.popleft()[1])
        return ready

    @property
    def needs_confirmation(self) -> bool:
        """True if a read or the lease waits for a round to be echoed."""
        return bool(self._open or self._sent)

    def holds_lease(self, now_ms: float) -> bool:
        """True while no other member can lead, if clocks are right."""
        if self._was_dropped:
            return False
        lease_ms = self._config.lease_ms * (1 - self._config.clock_drift_max)
        return now_ms - self._lease_from_ms < lease_ms

    def drop_lease(self) -> None:
        """Give up the lease for the rest of the term: a transfer was started.

        Even after the transfer is given up: its vote requests may arrive much later, and voters
        grant them although they still hear this leader.
        """
        self._was_dropped = True
        self._sent.clear()

    def unserved(self) -> list[Token]:
        """Return all reads that were not served."""
        return [token for _, token, _ in self._open] + [token for token, _ in self._new]

    def _begin_round(self, now_ms: float) -> None:
        self.round += 1
        if not self._was_dropped:
            self._sent.append((self.round, now_ms))
