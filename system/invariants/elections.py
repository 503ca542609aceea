"""Invariants of one member's part in elections: who stands, with which log, and who gets its vote.

What it decides is checked after each input, and what it sends at each step.

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
    PushRequest,
    Role,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)

REQUESTS_MAX: Final = 1_000
"""Requests for votes of each kind that are remembered: the latest."""
ENDS_MAX: Final = 100
"""Ends of its log that are remembered: requests that wait for a write are fewer."""


class Elections:
    """What one process of a member has heard of candidates, voters and transfers."""

    def __init__(self, name: str, core: RaftCore) -> None:
        self._name = name
        self._core = core
        self._complete: dict[tuple[str, int, bool], None] = {}
        self._older: dict[tuple[str, int, bool], str] = {}
        """Requests for votes (candidate, term, whether a pre-vote), by whether the candidate's log
        was at least as up to date as this member's."""
        self._pre_votes: tuple[int, set[str]] = (-1, set())
        """The latest term that a pre-vote was granted for, and who granted it."""
        self._handed_term = -1
        """The latest term in which a leader asked this member to take over."""
        self._role, self._term, self._membership = core.role, core.term, core.membership
        """Those after the last input."""
        self._ends: deque[tuple[int, int]] = deque(maxlen=ENDS_MAX)
        """The last entry, term and index, each time that it was a candidate: a request may wait."""

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
            self._complete[key] = None
        else:
            self._older[key] = (
                f"ends with entry {other[1]} of term {other[0]}, its own with {own[1]} of term"
                f" {own[0]}"
            )
        for known in (self._complete, self._older):
            if len(known) > REQUESTS_MAX:
                del known[next(iter(known))]

    def handled(self) -> None:
        """Check what follows from an input. Raises Violated."""
        self._note_end()
        core = self._core
        role, self._role = self._role, core.role
        term, self._term = self._term, core.term
        memberships = core.membership, self._membership
        self._membership = core.membership
        if core.role is Role.CANDIDATE and role is not Role.CANDIDATE:
            self._check_stands(*memberships)
        if core.term > term and core.voted_for == self._name:
            self._check_campaign(*memberships)

    def stepped(self, messages: Sequence[tuple[str, Message]]) -> None:
        """Check what a step sends. Raises Violated."""
        for peer, message in messages:
            if isinstance(message, VoteResponse):
                self._check_vote(peer, message)
            elif isinstance(message, VoteRequest):
                self._check_log(message)

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

    def _check_stands(self, *memberships: Membership) -> None:
        """Only a voter stands, and one whose removal is not committed (4.2.2)."""
        core = self._core
        index, _ = core.membership_at(core.log.end_index)
        if index > core.ledger.commit_index:
            memberships = *memberships, core.membership_at(index - 1)[1]
        if not any(self._name in each.voters for each in memberships):
            what = f"it stands for the term after {core.term}, and is no voter"
            raise Violated("voters-stand", what, self._name)

    def _check_campaign(self, *memberships: Membership) -> None:
        """Who campaigns would win, or was asked to lead (9.6, 3.10)."""
        term = self._core.term
        is_asked = self._handed_term >= term - 1
        if not is_asked and not any(self._would_win(each, term) for each in memberships):
            raise Violated(
                "pre-vote-before-campaign",
                f"it campaigns in term {term}, and neither would a majority vote for it nor was it"
                " asked to lead",
                self._name,
            )

    def _check_log(self, request: VoteRequest) -> None:
        """A candidate shows where its log ended: the request may have waited."""
        if (request.last_term, request.last_index) not in self._ends:
            end_term, end_index = _end_of(self._core)
            raise Violated(
                "candidates-show-their-logs",
                f"it stands in term {request.term} with a log up to entry {request.last_index} of"
                f" term {request.last_term}, and its log ends with entry {end_index} of term"
                f" {end_term}",
                self._name,
            )

    def _would_win(self, membership: Membership, term: int) -> bool:
        granted = self._pre_votes[1] if self._pre_votes[0] == term else set()
        return len({*granted, self._name}.intersection(membership.voters)) >= membership.quorum


def _end_of(core: RaftCore) -> tuple[int, int]:
    """Return the term and the index of a log's last entry."""
    return core.log.term_at(core.log.end_index), core.log.end_index


# Leader stickiness: a member that hears a leader, or leads, grants no vote to others.
#
# A request is judged when it arrives, and its answer when it is sent, which may be much later: no
# vote is sent before it is durable. Source: Ongaro's dissertation sections 4.2.3 and 6.4.1 (leases
# rely on it); only a leader that transfers its leadership may override it (3.10). A member that has
# just started does not know whom it heard, so with leases it grants none for as long.

VoteKey = tuple[str, int, bool]
"""Candidate, term, and whether it is a pre-vote."""
LEFT_ALONE: Final = "leader-is-left-alone"
KEEPS_LEASES: Final = "restarts-keep-leases"


class LeaderStickiness:
    """What one process of a member has heard of leaders, and so whom it may vote for.

    `started_ms` is when it started, by its own clock: with leases, the process before it may have
    promised one just before.
    """

    __slots__ = ("_allowed", "_forbidden", "_heard_ms", "_started_ms")

    def __init__(self, started_ms: float) -> None:
        self._started_ms = started_ms
        self._heard_ms = float("-inf")
        self._allowed: set[VoteKey] = set()
        self._forbidden: dict[VoteKey, str] = {}
        """The requests that have to be refused, and the rule that forbids a vote."""

    def received(self, core: RaftCore, message: Message, now_ms: float) -> None:
        """Record a message before the member handles it, by the member's own clock."""
        if isinstance(message, PushRequest | SnapshotRequest):
            if message.term >= core.term:
                self._heard_ms = now_ms
        elif isinstance(message, VoteRequest):
            key = message.candidate, message.term, message.pre_vote
            rule = self._forbidden_by(core, message, now_ms)
            if rule is None:  # a repeated request may get the same answer
                self._allowed.add(key)
                self._forbidden.pop(key, None)
            elif key not in self._allowed:
                self._forbidden[key] = rule

    def _forbidden_by(self, core: RaftCore, request: VoteRequest, now_ms: float) -> str | None:
        if request.is_transfer or request.candidate == core.leader:
            return None
        timeout_ms = core.config.election_timeout_min_ms
        if core.role is Role.LEADER or now_ms - self._heard_ms < timeout_ms:
            return LEFT_ALONE
        has_lease = core.config.lease_ms > 0
        return KEEPS_LEASES if has_lease and now_ms - self._started_ms < timeout_ms else None

    def check_vote(self, name: str, peer: str, message: Message) -> None:
        """Raise Violated where a vote is granted that had to be refused."""
        if not isinstance(message, VoteResponse) or not message.granted:
            return
        rule = self._forbidden.get((peer, message.term, message.pre_vote))
        if rule is None:
            return
        vote = f"{'would vote' if message.pre_vote else 'votes'} for {peer} in term {message.term}"
        if rule == LEFT_ALONE:
            raise Violated("leader-is-left-alone", f"{name} hears a leader, and {vote}", name)
        what = f"{name} {vote} so soon after its start that a lease it promised may still hold"
        raise Violated("restarts-keep-leases", what, name)
