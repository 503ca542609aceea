"""Invariants of one member that follows: the terms it takes on, and what it takes for committed.

Source: Raft figure 2 (all servers: a higher term; AppendEntries step 5); DLEDGER.md E4.
"""

from __future__ import annotations

from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import (
    Message,
    PushRequest,
    PushResponse,
    Role,
    SnapshotRequest,
)


class Following:
    """What one process of a member has heard of leaders, and of later terms."""

    def __init__(self, name: str, core: RaftCore) -> None:
        self._name = name
        self._core = core
        self._term = -1
        """The latest term in which a leader was heard."""
        self._told_index = self._matched_index = -1
        """What that leader called committed, and up to where its log is known to be ours."""
        self._commit_index = core.ledger.commit_index
        self._has_led = False
        self._later: tuple[int, str] = (-1, "")
        """The latest term that a message came from, and which message."""

    def heard(self, message: Message) -> None:
        """A message is about to be handled."""
        if isinstance(message, PushRequest | SnapshotRequest):
            if message.term >= self._core.term:
                self._heard_leader(message)
        elif not isinstance(message, PushResponse):
            return  # a vote may be refused without a look at its term: the leader is left alone
        if message.term > self._later[0]:
            self._later = message.term, type(message).__name__

    def _heard_leader(self, message: PushRequest | SnapshotRequest) -> None:
        if message.term > self._term:
            self._term = message.term
            self._told_index = self._matched_index = -1
        if isinstance(message, SnapshotRequest):
            told = matched = message.snapshot.end.index
        else:
            told, matched = message.commit_index, -1
            if self._agrees_at(message.prev_index, message.prev_term):
                matched = message.batches[-1].last_index if message.batches else message.prev_index
        self._told_index = max(self._told_index, told)
        self._matched_index = max(self._matched_index, matched)

    def _agrees_at(self, index: int, term: int) -> bool:
        log = self._core.log
        return index <= log.start.index or (index <= log.end_index and log.term_at(index) == term)

    def handled(self) -> None:
        """Check what follows from an input. Raises Violated."""
        core, name = self._core, self._name
        if core.term < self._later[0]:
            raise Violated(
                "later-terms-are-taken-on",
                f"it stays in term {core.term}, and has had a {self._later[1]} of term"
                f" {self._later[0]}",
                name,
            )
        before, index = self._commit_index, core.ledger.commit_index
        has_led, self._has_led = self._has_led, core.role is Role.LEADER
        self._commit_index = index
        known = min(self._told_index, self._matched_index)
        if not (has_led or self._has_led) and index > max(before, known):
            raise Violated(
                "followers-commit-what-they-share",
                f"it takes entry {index} for committed; the leader of term {self._term} called"
                f" {self._told_index} committed, and their logs are the same up to"
                f" {self._matched_index}",
                name,
            )
