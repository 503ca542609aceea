"""Invariants of elections: who may be elected, vote, campaign and go on leading.

Committed entries survive any election that could be held now. That is checked at each commit, with
the members' current logs and memberships: whether such an election happens in the run is luck.
Source: Raft sections 5.4.2 and 5.4.3 (leader completeness), where each candidate uses the
membership in its own log.

A member sends nothing that depends on writes not yet durable, and campaigns only after a pre-vote.
That is checked when a message is sent, so that no crash is needed to show a wrong order. Source:
Raft figure 2 ("updated on stable storage before responding to RPCs"); Ongaro's dissertation
sections 3.10 and 9.6 (pre-vote; only a leadership transfer does without); DLEDGER.md E12, E15, E16,
E18.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from shaketable.system.raft.batch import Batch
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import (
    Message,
    PushResponse,
    Role,
    SaveState,
    VoteResponse,
    Write,
)
from shaketable.system.sim.rules.shadow import Shadow
from shaketable.system.sim.rules.violation import Violated

STALL_SLACK_MS = 500.0
"""A leader notices only at a heartbeat that its disk has stalled."""


class ElectedMember(Protocol):
    """A member that leads or may lead, and the clock that its lease runs by."""

    name: str
    is_up: bool
    core: RaftCore

    def local_ms(self) -> float:
        """Return its monotonic clock."""
        ...


def check_committed_survives(
    shadows: Iterable[Shadow], core: RaftCore, index: int, crc: int
) -> None:
    """Raise Violated where running members could elect one that lacks entry `index`.

    `core` has committed the entry; `crc` is its chainCrc.
    """
    term = core.log.term_at(index)
    running = [(shadow, shadow.core) for shadow in shadows if shadow.is_up and shadow.core]
    for shadow, other in running:
        log, membership = other.log, other.membership
        if log.end_term <= term and membership == core.membership:
            continue  # if it lacks the entry, each majority has a voter with a newer log
        if shadow.name not in membership.voters or shadow.holds(index, crc):
            continue
        # The up-to-date check of Raft section 5.4.1: a voter grants its vote unless its own log is
        # newer.
        place = log.end_term, log.end_index
        votes = sum(
            voter.name in membership.voters and (asked.log.end_term, asked.log.end_index) <= place
            for voter, asked in running
        )
        if votes >= membership.quorum:
            raise Violated(
                "committed-stays-committed",
                f"{index} is committed; {votes} members could elect {shadow.name} without it",
            )


def check_no_lease(members: Iterable[ElectedMember], elected: ElectedMember) -> None:
    """Raise Violated where a member is elected while an earlier leader's lease holds.

    That leader might serve stale reads from now on; whether a client reads just then is luck.
    Source: Ongaro's dissertation section 6.4.1.
    """
    for other in members:
        if other is elected or not other.is_up or other.core.term >= elected.core.term:
            continue
        if other.core.holds_lease(other.local_ms()):
            raise Violated(
                "lease-shuts-out",
                f"{elected.name} leads term {elected.core.term}, and {other.name} of term"
                f" {other.core.term} has a lease",
                elected.name,
            )


def check_caught_up(shadows: Mapping[str, Shadow], core: RaftCore, batch: Batch) -> None:
    """Raise Violated where a leader promotes a learner that lacks much of the log.

    Commits from then on wait for it. Source: Ongaro's dissertation section 4.2.1.
    """
    if core.role is not Role.LEADER or batch.term != core.term:
        return
    for index, membership in batch.memberships:
        before = core.membership_at(index - 1)[1]
        for member in set(before.learners).intersection(membership.voters):
            durable_index = shadows[member].durable_index if member in shadows else -1
            lag = core.ledger.commit_index - durable_index
            if lag > core.config.promote_lag_entries_max:
                raise Violated(
                    "voters-have-caught-up", f"{member} becomes a voter, {lag} entries behind"
                )


def check_sent(shadow: Shadow, peer: str, message: Message) -> None:
    """Raise Violated where a vote or an acknowledgement is sent before it is durable."""
    if isinstance(message, PushResponse):
        if message.match_index > shadow.durable_index:
            raise Violated(
                "acknowledged-is-durable",
                f"{message.match_index} is acknowledged, {shadow.durable_index} is durable",
                shadow.name,
            )
    elif isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
        state = shadow.state
        is_kept = state.term == message.term and state.voted_for == peer
        if not is_kept and state.term <= message.term:
            raise Violated(
                "vote-is-durable", f"{peer} gets a vote of term {message.term}, {state} is durable",
                shadow.name,
            )  # fmt: skip


def check_campaign(shadow: Shadow, core: RaftCore, write: Write) -> None:
    """Raise Violated where a member campaigns without a majority of pre-votes.

    Only a transferred leadership needs none.
    """
    if not isinstance(write, SaveState) or write.voted_for != shadow.name:
        return
    asked = shadow.asked_term == write.term - 1
    if not asked and len(shadow.grants) + 1 < core.membership.quorum:
        raise Violated(
            "pre-vote-before-campaign",
            f"term {write.term} is opened with {len(shadow.grants)} of"
            f" {core.membership.quorum - 1} members asked for it",
            shadow.name,
        )
    shadow.grants.clear()


def check_stalled(shadow: Shadow, core: RaftCore, waiting_ms: float) -> None:
    """Raise Violated where a member still leads whose disk has stalled for too long."""
    limit_ms = core.config.disk_stall_max_ms + STALL_SLACK_MS
    if core.role is Role.LEADER and waiting_ms > limit_ms:
        raise Violated(
            "stalled-disk-leads-not", f"a write waits for {waiting_ms:.0f} ms", shadow.name
        )
