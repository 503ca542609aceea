"""The membership of a group: its voters, and learners that are still catching up.

Source: Ongaro's dissertation section 4 (single-server changes; 4.2.1: a new server joins
without a vote until it has caught up). DLedger's membership is static (dLegerPeers).
"""

from __future__ import annotations

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
