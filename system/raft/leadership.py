"""What exists only while a member leads: its dispatchers, its contact, its read rounds.

Source: DLedgerEntryPusher (dispatchers, QuorumAckChecker); Ongaro's dissertation
sections 6.2 (CheckQuorum) and 6.4 (read index).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from system.raft.batch import Batch
from system.raft.dispatcher import EntryDispatcher
from system.raft.ledger import Ledger
from system.raft.protocol import PushRequest, RaftConfig, Token


class Leadership:
    """A leader's volatile state for one term. Dies with the leadership."""

    def __init__(
        self,
        config: RaftConfig,
        member: str,
        term: int,
        peers: Sequence[str],
        ledger: Ledger,
        now_ms: float,
    ) -> None:
        self._config = config
        self._member = member
        self._term = term
        self._ledger = ledger
        end_index = ledger.log.end_index
        self.dispatchers = {peer: EntryDispatcher(config, end_index, now_ms) for peer in peers}
        self.heartbeat_due_ms = now_ms
        self.read_round = 0
        self._reads_new: list[tuple[Token, int]] = []
        self._reads_open: deque[tuple[int, Token, int]] = deque()  # (round, token, read index)

    def quorum_match(self, own_durable_index: int, quorum: int) -> int:
        """Highest index that is durable on a majority, this member counted (QuorumAckChecker)."""
        matches = [dispatcher.match_index for dispatcher in self.dispatchers.values()]
        return sorted([own_durable_index, *matches], reverse=True)[quorum - 1]

    def hears_quorum(self, now_ms: float, quorum: int) -> bool:
        """False if a majority has been silent for longer than CheckQuorum allows."""
        oldest = now_ms - self._config.quorum_silence_max_ms
        heard = sum(dispatcher.heard_ms >= oldest for dispatcher in self.dispatchers.values())
        return heard + 1 >= quorum

    def retransmit_stalled(self, now_ms: float) -> None:
        """Compare anew with each follower that acknowledges nothing of what was sent."""
        for dispatcher in self.dispatchers.values():
            if dispatcher.is_stalled(now_ms):
                dispatcher.compare_at(dispatcher.match_index + 1)

    def pushes(self, peer: str, now_ms: float) -> list[PushRequest]:
        """Stream to one follower what its window allows."""
        dispatcher = self.dispatchers[peer]
        log = self._ledger.log
        out = []
        while dispatcher.may_push(log.end_index):
            batches = log.batches_from(dispatcher.next_index, self._config.push_bytes_max)
            out.append(self.push(peer, batches))
            dispatcher.pushed(batches, now_ms)
        return out

    def push(self, peer: str, batches: tuple[Batch, ...] = ()) -> PushRequest:
        """One push; without entries it is a heartbeat, a comparison and a read round."""
        prev_index = self.dispatchers[peer].next_index - 1
        return PushRequest(
            self._term,
            self._member,
            prev_index,
            self._ledger.log.term_at(prev_index),
            self._ledger.commit_index,
            self.read_round,
            batches,
        )

    @property
    def reads_waiting(self) -> int:
        """Reads asked for and not yet confirmed."""
        return len(self._reads_new) + len(self._reads_open)

    def read(self, token: Token, read_index: int) -> None:
        """A read joins the next round: the one that is opened after the read was asked for."""
        self._reads_new.append((token, read_index))

    def opens_read_round(self) -> bool:
        """Open a round for the waiting reads if none is under way; True if it was opened."""
        if not self._reads_new or self._reads_open:
            return False
        self.read_round += 1
        self._reads_open.extend((self.read_round, token, at) for token, at in self._reads_new)
        self._reads_new = []
        return True

    def confirmed_reads(self, commit_index: int, quorum: int) -> list[Token]:
        """Reads whose round a majority has echoed and whose read index is committed."""
        rounds = [dispatcher.read_round for dispatcher in self.dispatchers.values()]
        confirmed = sorted([self.read_round, *rounds], reverse=True)[quorum - 1]
        ready: list[Token] = []
        waiting: deque[tuple[int, Token, int]] = deque()
        for read_round, token, read_index in self._reads_open:
            if read_round <= confirmed and read_index <= commit_index:
                ready.append(token)
            else:
                waiting.append((read_round, token, read_index))
        self._reads_open = waiting
        return ready

    def abandoned_reads(self) -> list[Token]:
        """All reads that were not served."""
        return [token for _, token, _ in self._reads_open] + [t for t, _ in self._reads_new]
