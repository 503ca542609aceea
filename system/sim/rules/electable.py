"""Committed entries survive any election that could be held now; leases exclude elections.

Checked at each commit, with the members' current logs and memberships: whether such an election
happens in the run is luck. Source: Raft sections 5.4.2 and 5.4.3 (leader completeness), where each
candidate uses the membership in its own log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from shaketable.system.raft.batch import Batch
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import Role
from shaketable.system.sim.rules.violation import Violated

if TYPE_CHECKING:
    from shaketable.system.sim.member import SimMember
    from shaketable.system.sim.rules.shadow import Shadow


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


def check_no_lease(members: Iterable[SimMember], elected: SimMember) -> None:
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
