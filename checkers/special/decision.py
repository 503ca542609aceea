"""The answer of a special case."""

from __future__ import annotations

from dataclasses import dataclass

from shaketable.checkers.search.problem import Part
from shaketable.harness.contracts.verdict import Outcome


@dataclass(frozen=True, slots=True)
class Accusation:
    """Why a history cannot be linearized.

    Attributes:
        ops: ids of the operations that show it, the accused one first.
        why: the reason as text; "{0}", "{1}" are placeholders for the operations of `ops`.
        closed: True if these operations by themselves cannot be linearized, so that the search
            can confirm it.
    """

    ops: tuple[int, ...]
    why: str
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """VALID, or INVALID with its proof: an accusation, or the part that cannot be linearized.

    `method` names the algorithm. If it is a search of its own that a budget ended, `why` names
    the budget, the outcome is UNKNOWN, and `part` is the undecided part.
    """

    method: str
    accusation: Accusation | None = None
    part: Part | None = None
    why: str = ""

    @property
    def outcome(self) -> Outcome:
        """Return UNKNOWN if a budget ended it, INVALID if there is a proof, else VALID."""
        if self.why:
            return Outcome.UNKNOWN
        is_shown = self.accusation is not None or self.part is not None
        return Outcome.INVALID if is_shown else Outcome.VALID
