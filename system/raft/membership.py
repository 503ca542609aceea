"""The membership of a group: its voters, and learners that are still catching up; its changes.

Source: Ongaro's dissertation section 4 (single-server changes; 4.2.1: a new server joins
without a vote until it has caught up). DLedger's membership is static (dLegerPeers).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a group, ids in sorted order.

    `voters` elect and commit; `learners` receive the log but have no vote. `addresses` pairs a
    member's id with "host:port" of its DLedger port; members that every node's configuration
    lists (dLegerPeers) may be missing there.
    """

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Voters and learners, in sorted order."""
        return tuple(sorted((*self.voters, *self.learners)))

    @property
    def quorum(self) -> int:
        """How many voters are a majority."""
        return len(self.voters) // 2 + 1

    def address_of(self, member: str) -> str | None:
        """Return "host:port" of a member, None if only the configuration has it."""
        return dict(self.addresses).get(member)

    def with_learner(self, member: str, address: str) -> Membership:
        """Return the membership with one more learner."""
        assert member not in self.members
        learners = tuple(sorted((*self.learners, member)))
        return Membership(self.voters, learners, _with(self.addresses, member, address))

    def with_voter(self, learner: str) -> Membership:
        """Return the membership in which a learner has become a voter."""
        assert learner in self.learners
        left = tuple(member for member in self.learners if member != learner)
        return Membership(tuple(sorted((*self.voters, learner))), left, self.addresses)

    def without(self, member: str) -> Membership:
        """Return the membership without that voter or learner."""
        assert member in self.members
        return Membership(
            tuple(voter for voter in self.voters if voter != member),
            tuple(learner for learner in self.learners if learner != member),
            tuple(pair for pair in self.addresses if pair[0] != member),
        )


def _with(
    addresses: tuple[tuple[str, str], ...], member: str, address: str
) -> tuple[tuple[str, str], ...]:
    kept = [pair for pair in addresses if pair[0] != member]
    return tuple(sorted([*kept, (member, address)]))


# The memberships in a log, by index: the latest is in force as soon as it is appended.
#
# Source: Ongaro's dissertation section 4.1 (a server uses the latest configuration in its
# log, committed or not, and reverts to the previous one if the entry is removed).


_NEVER = 1 << 62
"""An index that no log reaches."""


class MembershipLog:
    """(index, membership) of each change, oldest first.

    The oldest is the membership at the log's start and is never reverted. Invariant: indices
    rise; `current` is the last membership and `current_index` its index.
    """

    __slots__ = ("_indices", "_memberships", "current", "current_index")

    def __init__(
        self, base: Membership, base_index: int = -1, later: Iterable[tuple[int, Membership]] = ()
    ) -> None:
        self._indices: list[int] = []
        self._memberships: list[Membership] = []
        self.reset(base, base_index)
        for index, membership in later:
            if index > self.current_index:
                self.append(index, membership)

    def append(self, index: int, membership: Membership) -> None:
        """Add the membership of entry `index`, in force from now on."""
        assert index > self.current_index, f"{index} does not follow {self.current_index}"
        self._indices.append(index)
        self._memberships.append(membership)
        self._use_latest()

    def truncate(self, end_index: int) -> None:
        """Revert to the membership in force at `end_index`: the entries after it are removed."""
        if self.current_index <= end_index:
            return
        while len(self._indices) > 1 and self._indices[-1] > end_index:
            self._indices.pop()
            self._memberships.pop()
        self._use_latest()

    def compact(self, compacted_index: int) -> None:
        """Forget the memberships that were replaced at or before `compacted_index`."""
        drop = bisect_right(self._indices, compacted_index) - 1
        if drop > 0:
            del self._indices[:drop], self._memberships[:drop]

    def reset(self, membership: Membership, index: int) -> None:
        """Keep only the membership of a snapshot that replaces the log."""
        self._indices[:] = [index]
        self._memberships[:] = [membership]
        self._use_latest()

    def at(self, index: int) -> tuple[int, Membership]:
        """Return the index of the entry that set the membership at `index`, and the membership."""
        found = max(bisect_right(self._indices, index) - 1, 0)
        return self._indices[found], self._memberships[found]

    @property
    def known_from(self) -> int:
        """Index from which on the membership is known; -1: at the log's start already."""
        if self._memberships[0].voters:
            return -1
        return self._indices[1] if len(self._indices) > 1 else _NEVER

    def _use_latest(self) -> None:
        self.current_index = self._indices[-1]
        self.current = self._memberships[-1]


# Single-server membership changes.
#
# Source: Ongaro's dissertation sections 4.1 (one server at a time: majorities before and after
# the change overlap) and 4.2.1 (a new server first catches up without a vote). To replace a
# member: add, promote, remove.

MEMBERS_MAX = 64
"""Limit of voters and learners: the leader replicates to each, and a header must list them all."""


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
    """A voter (possibly the leader itself) or a learner leaves the group for good."""

    member: str


Change = AddLearner | Promote | Remove


class MembershipError(Exception):
    """A membership change was refused: nothing changed. The message is a one-line reason."""


def changed(membership: Membership, change: Change) -> Membership:
    """Return `membership` after `change`. Raises MembershipError if that is not possible."""
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
