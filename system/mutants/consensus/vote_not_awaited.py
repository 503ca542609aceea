"""A vote is sent before it is durable.

A voter that crashes right after it forgets the vote and gives another one in the same term:
two leaders of one term. DLedger writes currterm without fsync and swallows the errors.

Source: DLedger's MemberState and IOUtils (bug E16), https://github.com/openmessaging/dledger
(MemberState.java)
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore


class VoteNotAwaited(RaftCore):
    """Says everything at once."""

    def _answer_term(self) -> int:
        return 0


PLUGIN = Mutant("vote-not-awaited", VoteNotAwaited)
