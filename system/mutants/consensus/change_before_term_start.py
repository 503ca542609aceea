"""A new leader may change the membership before an entry of its own term is committed.

Two leaders' changes can then be in force whose majorities share no voter, and both commit.

Source: Ongaro, "bug in single-server membership changes", raft-dev, 10 July 2015,
https://groups.google.com/g/raft-dev/c/t4xj6dJTP6E
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.leadership import Leadership


class _InAHurry(Leadership):
    """Asks neither for the term's start nor whether an earlier change is committed."""

    def change_refusal(self) -> str | None:
        return None


class ChangeBeforeTermStart(RaftCore):
    """A leader that changes the membership at any time."""

    leadership_type = _InAHurry


PLUGIN = Mutant("change-before-term-start", ChangeBeforeTermStart)
