"""Invariants of one member's part in elections: who stands, with which log, and who gets its vote.

Source: Raft sections 5.2 and 5.4.1; Ongaro's dissertation sections 3.10, 4.2.1 and 9.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import (
    LeadershipTransfer,
    Message,
    Role,
    VoteRequest,
    VoteResponse,
)

REQUESTS_MAX: Final = 1_000
"""Requests for votes that are remembered; then all are forgotten, and none is judged by them."""
ENDS_MAX: Final = 100
"""Ends of its log that are remembered: requests that wait for a write are fewer."""


class Elections:
    """What one process of a member has heard of candidates, voters and transfers."""

    def __init__(self, name: str, core: RaftCore) -> None:
        self._name = name
        self._core = core
        self._complete: set[tuple[str, int, bool]] = set()
        self._older: dict[tuple[str, int, bool], str] = {}
        """Requests for votes (candidate, term, whether a pre-vote), by whether the candidate's log
        was at least as up to date as this member's."""
        self._pre_votes: tuple[int, set[str]] = (-1, set())
        """The latest term that a pre-vote was granted for, and who granted it."""
        self._handed_term = -1
        """The latest term in which a leader asked this member to take over."""
        self._membership = core.membership
        self._ends: deque[tuple[int, int]] = deque(maxlen=ENDS_MAX)
        """Term and index of the last entry, each time that it stood: a request may wait long."""

    def heard(self, message: Message) -> None:
        """A message is about to be handled."""
        self._note_end()
        if isinstance(message, VoteRequest):
            self._asked(message)
        elif isinstance(message, VoteResponse):
            if message.granted and message.pre_vote and message.term >= self._pre_votes[0]:
                if message.term > self._pre_votes[0]:
                    self._pre_votes = message.term, set()
                self._pre_votes[1].add(message.voter)
        elif isinstance(message, LeadershipTransfer):
            self._handed_term = max(self._handed_term, message.term)

    def _asked(self, request: VoteRequest) -> None:
        key = request.candidate, request.term, request.pre_vote
        own, other = _end_of(self._core), (request.last_term, request.last_index)
        if other >= own:
            self._complete.add(key)
        else:
            self._older[key] = f"ends with entry {other[1]} of term {other[0]}, its own with" + (
                f" {own[1]} of term {own[0]}"
            )
        if len(self._complete) + len(self._older) > REQUESTS_MAX:
            self._complete.clear()
            self._older.clear()

    def stepped(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Check what a step sends. Raises Violated."""
        self._note_end()
        for peer, message in messages:
            if isinstance(message, VoteResponse):
                self._check_vote(peer, message)
            elif isinstance(message, VoteRequest):
                self._check_candidate(message)
        self._membership = self._core.membership

    def _note_end(self) -> None:
        if self._core.role is Role.CANDIDATE:
            end = _end_of(self._core)
            if not self._ends or self._ends[-1] != end:
                self._ends.append(end)

    def _check_vote(self, peer: str, vote: VoteResponse) -> None:
        """A vote goes to a candidate whose log is at least as up to date (Raft 5.4.1)."""
        key = peer, vote.term, vote.pre_vote
        if vote.granted and key in self._older and key not in self._complete:
            raise Violated(
                "votes-go-to-complete-logs",
                f"{peer} gets its {'pre-' if vote.pre_vote else ''}vote in term {vote.term}; the"
                f" log of {peer} {self._older[key]}",
                self._name,
            )

    def _check_candidate(self, request: VoteRequest) -> None:
        """A voter stands, with its own log, and as others would vote for it (9.6)."""
        core, name = self._core, self._name
        is_asking = core.role is Role.CANDIDATE and (request.pre_vote or request.term == core.term)
        if not is_asking:
            return  # what it asked before waited for a write
        memberships: tuple[Membership, ...] = (core.membership, self._membership)
        index, _ = core.membership_at(core.log.end_index)
        if index > core.ledger.commit_index:  # one whose removal is not committed stands as well
            memberships = *memberships, core.membership_at(index - 1)[1]
        if not any(name in each.voters for each in memberships):
            raise Violated("voters-stand", f"it stands in term {request.term}, as no voter", name)
        if (request.last_term, request.last_index) not in self._ends:
            end_term, end_index = _end_of(core)
            raise Violated(
                "candidates-show-their-logs",
                f"it stands with a log up to entry {request.last_index} of term"
                f" {request.last_term}, and its log ends with entry {end_index} of term {end_term}",
                name,
            )
        if request.pre_vote:
            return
        if request.is_transfer:
            is_allowed = self._handed_term >= request.term - 1
        else:
            is_allowed = any(self._would_win(each, request.term) for each in memberships)
        if not is_allowed:
            raise Violated(
                "pre-vote-before-campaign",
                f"it campaigns in term {request.term}, and neither would a majority vote for it"
                " nor was it asked to lead",
                name,
            )

    def _would_win(self, membership: Membership, term: int) -> bool:
        granted = self._pre_votes[1] if self._pre_votes[0] == term else set()
        return len({*granted, self._name}.intersection(membership.voters)) >= membership.quorum


def _end_of(core: RaftCore) -> tuple[int, int]:
    """Return the term and the index of a log's last entry."""
    return core.log.term_at(core.log.end_index), core.log.end_index
