"""What a special case answers."""

from __future__ import annotations

from dataclasses import dataclass

from harness.verdict import Outcome


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
    """VALID, or INVALID with the accusation; `method` names the algorithm."""

    method: str
    accusation: Accusation | None = None

    @property
    def outcome(self) -> Outcome:
        """INVALID where something is accused."""
        return Outcome.VALID if self.accusation is None else Outcome.INVALID
