"""The result of a comparison: differences, each with its significance."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from shaketable.reports.comparing.compared_measures import Measured
from shaketable.reports.comparing.significance import Interval

EVERYWHERE: Final = "all"
"""The place of differences of a run as a whole: its verdict, its findings."""


class Judgement(enum.StrEnum):
    """The judgement of one difference between run A and run B.

    `SAME` means: no relevant difference was shown. `UNSURE`: too little was measured.
    """

    WORSE = "worse"
    BETTER = "better"
    SAME = "same"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Difference:
    """One number in both runs.

    `where`: the condition ("calm", "under kill", "after kill", "all"). `a` and `b` are None where a
    run has no value. `low` and `high` bound how much worse B is: a factor for ratios, in `unit` for
    differences (negative: better). `sure` states the basis of the judgement. `differs`: the
    judgement is unsure, but the values are far enough apart to matter.
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
    """A comparison of two runs.

    `settings`: where the campaigns differ (name, A's, B's). `errors`: operations per thousand that
    ended so (outcome and error, A's, B's). They are listed but not judged; the share of refused
    operations is.
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
    def is_conclusive(self) -> bool:
        """Whether anything measured could be compared, or anything differs for certain."""
        return any(
            each.judgement is not Judgement.UNSURE
            and (each.where != EVERYWHERE or each.judgement is not Judgement.SAME)
            for each in self.differences
        )

    @property
    def unsure(self) -> tuple[Difference, ...]:
        """Differences that are large enough to matter and not significant."""
        return tuple(each for each in self._judged(Judgement.UNSURE) if each.differs)

    def _judged(self, judgement: Judgement) -> tuple[Difference, ...]:
        return tuple(each for each in self.differences if each.judgement is judgement)


# Puts differences into sentences: what, where, from what to what, and by how much. Pure.

WORSE = {
    "throughput": "lower",
    "median latency": "longer",
    "p99 latency": "longer",
    "refused or unknown": "more",
}
BETTER = {
    "throughput": "higher",
    "median latency": "shorter",
    "p99 latency": "shorter",
    "refused or unknown": "fewer",
}
LARGE = 100


def headline(comparison: Comparison) -> str:
    """Summarize the comparison in one sentence."""
    worse, better = len(comparison.worse), len(comparison.better)
    if not comparison.is_conclusive:
        return "too little was measured to tell the runs apart"
    doubts = len(comparison.unsure)
    if not worse and not better and doubts:
        few = "1 number differs" if doubts == 1 else f"{doubts} numbers differ"
        return f"no difference that is sure; {few}, and may do so by chance"
    if not worse and not better:
        return "no difference that matters"
    parts = [f"{worse} got worse"] if worse else ["nothing got worse"]
    parts += [f"{better} got better"] if better else []
    return ", ".join(parts)


def of_metric(
    name: str, unit: str, where: str, a: float, b: float, by: Interval, judgement: Judgement
) -> str:
    """Describe how one number of a condition differs; `by` is how much worse B is."""
    text = f"{name} {where}: {number(a, unit)} in A, {number(b, unit)} in B"
    if judgement not in (Judgement.WORSE, Judgement.BETTER):
        return text
    is_worse = judgement is Judgement.WORSE
    way = (WORSE if is_worse else BETTER)[name]
    if unit == "%":
        least = by.low if is_worse else -by.high
        return f"{text}, at least {least:.1f} points {way}"
    least, most = (by.low, by.high) if is_worse else (1 / by.high, 1 / by.low)
    if name == "throughput" and is_worse:
        return f"{text}, {percent(1 - b / a)} {way} (at least {percent(1 - 1 / least)})"
    return f"{text}, {times(least)} to {times(most)} times {way}"


def of_recovery(where: str, a: float, b: float, never: int, judgement: Judgement) -> str:
    """Describe how recoveries differ; `a` and `b` are medians in seconds."""
    text = f"recovery {where}: median {number(a, 's')} in A, {number(b, 's')} in B"
    if never:
        text += f"; {never} times in B not at all"
    if judgement is Judgement.WORSE:
        text += ", longer"
    return f"{text}, shorter" if judgement is Judgement.BETTER else text


def unsure(name: str, where: str) -> str:
    """Return the sentence for too little data."""
    return f"{name} {where}: too little was measured"


def number(value: float | None, unit: str) -> str:
    """Print a number with its unit: 3.2 ms, 812 /s, 4.5 %."""
    if value is None:
        return "-"
    if not unit or unit == "found":
        return f"{value:,.0f}"
    digits = 0 if abs(value) >= LARGE else 2 if unit == "s" else 1
    return f"{value:,.{digits}f} {unit}"


def times(factor: float) -> str:
    """Print a factor: 2.3, 14."""
    return f"{factor:,.1f}" if factor < 10 else f"{min(factor, 1e6):,.0f}"


def percent(share: float) -> str:
    """Print a share: 37 %."""
    return f"{share * 100:.0f} %"
