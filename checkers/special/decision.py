"""What a special case answers."""

from __future__ import annotations

from dataclasses import dataclass

from shaketable.checkers.search.found import Part
from shaketable.harness.contracts.verdict import Outcome


@dataclass(frozen=True, slots=True)
class Accusation:
    """Why a history cannot be linearized.

    Attributes:
        ops: ids of the operations that show it, the accused one first.
        why: the reason in words; "{0}", "{1}" stand for the operations of `ops`.
        closed: True if these operations alone already cannot be linearized, which the search
            can show then.
    """

    ops: tuple[int, ...]
    why: str
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """VALID, or INVALID with what shows it: an accusation, or the part that cannot be passed.

    `method` names the algorithm. Where it is a search of its own, and a budget ended it, `why`
    names that budget, the outcome is UNKNOWN, and `part` is where it stood.
    """

    method: str
    accusation: Accusation | None = None
    part: Part | None = None
    why: str = ""

    @property
    def outcome(self) -> Outcome:
        """INVALID where something shows it."""
        if self.why:
            return Outcome.UNKNOWN
        is_shown = self.accusation is not None or self.part is not None
        return Outcome.INVALID if is_shown else Outcome.VALID
