"""Who hears a leader, or leads, votes for nobody else: a leadership that works is not disturbed.

A request is judged when it arrives, and its answer when it leaves, which may be much later: no
vote leaves before it is durable. Source: Ongaro's dissertation sections 4.2.3 and 6.4.1 (leases
rest on it); only a leader that hands over may ask to be disturbed (3.10).
"""

from __future__ import annotations

from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import (
    Message,
    PushRequest,
    Role,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from shaketable.system.sim.rules.violation import Violated

Asked = tuple[str, int, bool]
"""Who asked for a vote, of which term, and whether it was a pre-vote."""


class Hearing:
    """What one process of a member has heard of leaders, and whom it may therefore vote for."""

    __slots__ = ("_answerable", "_forbidden", "_heard_ms")

    def __init__(self) -> None:
        self._heard_ms = float("-inf")
        self._answerable: set[Asked] = set()
        self._forbidden: set[Asked] = set()

    def arrives(self, core: RaftCore, message: Message, now_ms: float) -> None:
        """Take a message before the member takes it, which goes by its own clock."""
        if isinstance(message, PushRequest | SnapshotRequest):
            if message.term >= core.term:
                self._heard_ms = now_ms
        elif isinstance(message, VoteRequest):
            asked = message.candidate, message.term, message.pre_vote
            if self._must_refuse(core, message, now_ms):
                if asked not in self._answerable:
                    self._forbidden.add(asked)
            else:  # one that came before, or comes twice, may be answered by the same words
                self._answerable.add(asked)
                self._forbidden.discard(asked)

    def _must_refuse(self, core: RaftCore, request: VoteRequest, now_ms: float) -> bool:
        if request.is_transfer or request.candidate == core.leader:
            return False
        hears = now_ms - self._heard_ms < core.config.election_timeout_min_ms
        return hears or core.role is Role.LEADER

    def says(self, name: str, peer: str, message: Message) -> None:
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
