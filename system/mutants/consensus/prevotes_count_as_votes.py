"""A candidate counts answers to its canvass (PreVote) as votes, when they come late.

It leads with promises that bind nobody, while another one is elected in the same term.

Source: https://github.com/canonical/raft/issues/196, fixed by
https://github.com/canonical/raft/pull/248.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.elector import Elector


class _AnyAnswer(Elector):
    """Looks at the term alone."""

    __slots__ = ()

    def granted(self, voter: str, term: int, *, canvass: bool) -> None:
        """Count it, whatever it answers."""
        super().granted(voter, term, canvass=self.canvass)


class PrevotesCountAsVotes(RaftCore):
    """A candidate that counts so."""

    elector_type = _AnyAnswer


PLUGIN = Mutant("prevotes-count-as-votes", PrevotesCountAsVotes)
