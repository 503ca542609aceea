"""A leader that has a majority ignores a follower's higher term.

The follower cannot accept an older term's pushes and never rejoins: the group runs on with one
copy less until the next election, and nobody notices.

Source: https://github.com/openmessaging/dledger/issues/247,
https://github.com/openmessaging/dledger/issues/248 and
https://github.com/openmessaging/dledger/issues/325 (bug E5): EXPIRED_TERM is ignored while the
heartbeat reaches a quorum.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import PushResponse, Role


class DeafToHigherTerms(RaftCore):
    """Does not step down for a term that it learns of while it leads."""

    def _on_push_response(self, response: PushResponse) -> None:
        if self.role is Role.LEADER and response.term > self.term:
            return
        super()._on_push_response(response)


PLUGIN = Mutant("deaf-to-higher-terms", DeafToHigherTerms)
