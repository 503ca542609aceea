"""Single-server membership changes: what may be asked, and what comes of it.

Source: Ongaro's dissertation section 4.2 (one server at a time; a new one catches up
without a vote first). To replace a member is to add, promote and remove.
"""

from __future__ import annotations

from dataclasses import dataclass

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import MembershipError

MEMBERS_MAX = 64
"""Voters and learners: the leader sends everything to each, and a header has to name them all."""


@dataclass(frozen=True, slots=True)
class AddLearner:
    """A new member receives the log without a vote. `address` is "host:port"."""

    member: str
    address: str


@dataclass(frozen=True, slots=True)
class Promote:
    """A learner that has caught up becomes a voter."""

    member: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A voter (the leader itself, too) or a learner leaves the group for good."""

    member: str


Change = AddLearner | Promote | Remove


def changed(membership: Membership, change: Change) -> Membership:
    """Return `membership` with `change` made. Raises MembershipError where it cannot be."""
    member = change.member
    if isinstance(change, AddLearner):
        if member in membership.members:
            raise MembershipError(f"{member} is a member already")
        if len(membership.members) >= MEMBERS_MAX:
            raise MembershipError(f"the group has {MEMBERS_MAX} members already")
        return membership.with_learner(member, change.address)
    if isinstance(change, Promote):
        if member not in membership.learners:
            raise MembershipError(f"{member} is no learner")
        return membership.with_voter(member)
    if member not in membership.members:
        raise MembershipError(f"{member} is no member")
    if membership.voters == (member,):
        raise MembershipError(f"{member} is the only voter")
    return membership.without(member)
