"""What a policy says: which verdicts pass, how much must be tried, how slow is too slow. Pure data.

An invalid run never passes: no line of a policy can allow it. What a target does not promise
belongs into its promises, not into a policy.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Bound = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
"""Bounded, so that infinity is no ceiling."""

UNKNOWN = "unknown"
VACUOUS = "vacuous"
UNAVAILABLE = "unavailable"
RUNS_MIN = 1
"""Runs that there must be if a policy does not say."""


class Floors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much must have been tried, or it shows nothing.

    Attributes:
        runs: so many runs there must be, all together, and without planted bugs if [detection]
            stands for these. None: one, or planted bugs that stand for themselves.
        operations: of the clients, in each run.
        faults_bit: faults that bit, in each run.
        faults: of single faults, how often each must have bitten in each run that asked for it;
            one for which no run asked is missed. A fault that is named here need not be done
            more often than that: with 0 a run passes without it.
    """

    runs: Annotated[int, msgspec.Meta(ge=1)] | None = None
    operations: Count = 0
    faults_bit: Count = 0
    faults: dict[str, Count] = {}


class Ceilings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What no run may exceed; None is not asked. See `reports.gating.policy.CEILINGS`."""

    recovery_median_s: Bound | None = None
    recovery_worst_s: Bound | None = None
    p99_ms: Bound | None = None
    p99_steady_ms: Bound | None = None
    unavailable_longest_s: Bound | None = None
    unavailable_total_s: Bound | None = None
    acknowledged_loss: Count | None = None


class Detection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of the planted bugs: a harness that sees none of them shows nothing.

    Attributes:
        found: which share of those that were run must have been found.
        bugs: those that must have been run and found, by name.
        runs: so many different ones must have been run.
    """

    found: Share = 1.0
    bugs: tuple[str, ...] = ()
    runs: Annotated[int, msgspec.Meta(ge=1)] = 1


class Allowance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A verdict that is let pass for a time.

    Attributes:
        verdict: which.
        reason: why; it is shown wherever the verdict is.
        until: the last day, UTC, on which it holds.
        runs: names of runs, with * and ?; all if it is left out.
        checkers: whose unknown; all if it is left out.
        faults: of "unavailable", each by its name: those that a run may lack.
    """

    verdict: Literal["unknown", "vacuous", "unavailable"]
    reason: Annotated[str, msgspec.Meta(min_length=1, pattern=r"\S")]
    until: datetime.date
    runs: tuple[str, ...] = ("*",)
    checkers: tuple[str, ...] = ("*",)
    faults: tuple[str, ...] = ()

    def covers(self, verdict: str, run: str, about: str) -> bool:
        """Whether it is about this verdict in this run, on whatever day.

        Args:
            verdict: unknown, vacuous or unavailable.
            run: the run's name.
            about: the checker whose verdict it is, or the fault that was unavailable.
        """
        if self.verdict != verdict or not any(fnmatchcase(run, pattern) for pattern in self.runs):
            return False
        if verdict == UNAVAILABLE:
            return about in self.faults
        return any(fnmatchcase(about, pattern) for pattern in self.checkers)


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy. The default one asks for valid verdicts of runs that did the faults asked for.

    Attributes:
        floors: how much must have been tried.
        ceilings: what no run may exceed.
        unavailable_from_s: a stretch without an acknowledgement counts as unavailable from this
            length on.
        detection: with it runs of planted bugs must end invalid; None: they are runs as any.
        allow: what is let pass for a time.
    """

    floors: Floors = Floors()
    ceilings: Ceilings = Ceilings()
    unavailable_from_s: Annotated[float, msgspec.Meta(gt=0.0, le=1e12)] = 1.0
    detection: Detection | None = None
    allow: tuple[Allowance, ...] = ()


# What a policy can bound: the floors and ceilings, their units and words. Pure.
#
# A floor that is missed says that too little was tried; a ceiling that is exceeded says that the
# system is worse than its policy allows. That is why they end in different exit codes.


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a run that a policy may bound.

    Attributes:
        words: what it is, for people.
        unit: behind the number, with its blank; "" for a count.
    """

    words: str
    unit: str = ""

    def text(self, value: float) -> str:
        """Say a value of it: "2.31 s", "never", "12,000"."""
        if math.isinf(value):
            return "never"
        if value == int(value):
            return f"{int(value):,}{self.unit}"
        return f"{value:,.2f}{self.unit}" if abs(value) >= 0.01 else f"{value:.2g}{self.unit}"


CEILINGS: Final[Mapping[str, Measure]] = {
    "recovery_median_s": Measure("recovery after a fault, median", " s"),
    "recovery_worst_s": Measure("recovery after a fault, worst", " s"),
    "p99_ms": Measure("p99 latency of acknowledged operations", " ms"),
    "p99_steady_ms": Measure("p99 latency before the first fault", " ms"),
    "unavailable_longest_s": Measure("longest stretch without an acknowledgement", " s"),
    "unavailable_total_s": Measure("time without acknowledgements in all", " s"),
    "acknowledged_loss": Measure("acknowledged operations seen lost"),
}
"""The keys of a policy's [ceilings]."""

FLOORS: Final[Mapping[str, Measure]] = {
    "operations": Measure("operations"),
    "faults_bit": Measure("faults that bit"),
}
"""Those keys of a policy's [floors] that bound a number of each run."""
