"""Invariant, leader stickiness: a member that hears a leader, or leads, grants no vote to others.

A request is judged when it arrives, and its answer when it is sent, which may be much later: no
vote is sent before it is durable. Source: Ongaro's dissertation sections 4.2.3 and 6.4.1 (leases
rely on it); only a leader that transfers its leadership may override it (3.10).
"""

from __future__ import annotations

from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import (
    Message,
    PushRequest,
    Role,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)

VoteKey = tuple[str, int, bool]
"""Candidate, term, and whether it is a pre-vote."""


class LeaderStickiness:
    """What one process of a member has heard of leaders, and so whom it may vote for."""

    __slots__ = ("_allowed", "_forbidden", "_heard_ms")

    def __init__(self) -> None:
        self._heard_ms = float("-inf")
        self._allowed: set[VoteKey] = set()
        self._forbidden: set[VoteKey] = set()

    def received(self, core: RaftCore, message: Message, now_ms: float) -> None:
        """Record a message before the member handles it, by the member's own clock."""
        if isinstance(message, PushRequest | SnapshotRequest):
            if message.term >= core.term:
                self._heard_ms = now_ms
        elif isinstance(message, VoteRequest):
            key = message.candidate, message.term, message.pre_vote
            if self._must_refuse(core, message, now_ms):
                if key not in self._allowed:
                    self._forbidden.add(key)
            else:  # a repeated request may get the same answer
                self._allowed.add(key)
                self._forbidden.discard(key)

    def _must_refuse(self, core: RaftCore, request: VoteRequest, now_ms: float) -> bool:
        if request.is_transfer or request.candidate == core.leader:
            return False
        hears = now_ms - self._heard_ms < core.config.election_timeout_min_ms
        return hears or core.role is Role.LEADER

    def check_vote(self, name: str, peer: str, message: Message) -> None:
        """Raise Violated where a vote is granted that had to be refused."""
        if not isinstance(message, VoteResponse) or not message.granted:
            return
        if (peer, message.term, message.pre_vote) in self._forbidden:
            what = "would vote" if message.pre_vote else "votes"
            raise Violated(
                "leader-is-left-alone",
                f"{name} hears a leader, and {what} for {peer} in term {message.term}",
                name,
            )
