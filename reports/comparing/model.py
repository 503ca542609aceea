"""What a comparison says: differences, each with how sure it is."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from shaketable.reports.comparing.measuring import Measured

EVERYWHERE: Final = "all"
"""Where differences stand that are of the run as a whole: its verdict, what was found."""


class Judgement(enum.StrEnum):
    """What is said of one difference between run A and run B.

    `SAME` means: no difference that matters was shown. `UNSURE`: too little was measured.
    """

    WORSE = "worse"
    BETTER = "better"
    SAME = "same"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Difference:
    """One number in both runs.

    `where`: the condition ("calm", "under kill", "after kill", "all"). `a` and `b` are None
    where the run says nothing. `low` and `high` bound how much worse B is, as `measure` is
    read: times for a ratio, `unit` for a difference (negative: better). `sure` says in words
    what the judgement rests on. `differs`: an unsure one that is far enough apart to matter.
    """

    where: str
    what: str
    unit: str
    a: float | None
    b: float | None
    judgement: Judgement
    text: str
    sure: str = ""
    low: float | None = None
    high: float | None = None
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side.

    `settings`: what the campaigns asked for and in what they differ (name, A's, B's).
    `errors`: operations per thousand that ended so (outcome and error, A's, B's), told and not
    judged: the share of refused operations is.
    """

    a: Measured
    b: Measured
    differences: tuple[Difference, ...]
    settings: tuple[tuple[str, str, str], ...]
    errors: tuple[tuple[str, float, float], ...]
    notes: tuple[str, ...]

    @property
    def worse(self) -> tuple[Difference, ...]:
        """What got worse from A to B."""
        return self._judged(Judgement.WORSE)

    @property
    def better(self) -> tuple[Difference, ...]:
        """What got better from A to B."""
        return self._judged(Judgement.BETTER)

    @property
    def is_told(self) -> bool:
        """Whether anything that was measured could be compared, or anything differs for certain."""
        return any(
            each.judgement is not Judgement.UNSURE
            and (each.where != EVERYWHERE or each.judgement is not Judgement.SAME)
            for each in self.differences
        )

    @property
    def unsure(self) -> tuple[Difference, ...]:
        """What differs by enough to matter, and nobody can be sure of it."""
        return tuple(each for each in self._judged(Judgement.UNSURE) if each.differs)

    def _judged(self, judgement: Judgement) -> tuple[Difference, ...]:
        return tuple(each for each in self.differences if each.judgement is judgement)
