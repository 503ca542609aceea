"""The policy: which verdicts pass, how much must be tried, how slow is too slow. Pure data.

An invalid run never passes: a policy cannot allow it. What a target does not promise belongs in
its promises, not in a policy.
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
"""Bounded, so that infinity is not a valid ceiling."""

UNKNOWN = "unknown"
VACUOUS = "vacuous"
UNAVAILABLE = "unavailable"
RUNS_MIN = 1
"""Runs required if a policy does not say."""


class Floors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much must have been tried for a run to show anything.

    Attributes:
        runs: number of runs required in total, without planted bugs if [detection] is given. None:
            one, or runs of planted bugs alone.
        operations: of the clients, in each run.
        faults_took_effect: faults that took effect, in each run.
        faults: for single faults, how often each must have taken effect in each run that asked for
            it; a floor for which no run asked is missed. A fault named here is not required beyond
            that: with 0 a run passes without it.
    """

    runs: Annotated[int, msgspec.Meta(ge=1)] | None = None
    operations: Count = 0
    faults_took_effect: Count = 0
    faults: dict[str, Count] = {}


class Ceilings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that no run may exceed; None for no limit. See `reports.gating.policy.CEILINGS`."""

    recovery_median_s: Bound | None = None
    recovery_worst_s: Bound | None = None
    p99_ms: Bound | None = None
    p99_steady_ms: Bound | None = None
    unavailable_longest_s: Bound | None = None
    unavailable_total_s: Bound | None = None
    acknowledged_loss: Count | None = None


class Detection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requirements on planted bugs: a harness that finds none of them shows nothing.

    Attributes:
        found: share of the planted bugs run that must have been found.
        bugs: names of those that must have been run and found.
        runs: number of different planted bugs that must have been run.
    """

    found: Share = 1.0
    bugs: tuple[str, ...] = ()
    runs: Annotated[int, msgspec.Meta(ge=1)] = 1


class Allowance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A verdict that passes for a limited time.

    Attributes:
        verdict: the verdict.
        reason: shown wherever the verdict is.
        until: the last day, UTC, on which it holds.
        runs: names of runs, with * and ?; default all.
        checkers: checkers whose unknown verdict is allowed; default all.
        faults: for "unavailable", names of the faults that a run may lack.
    """

    verdict: Literal["unknown", "vacuous", "unavailable"]
    reason: Annotated[str, msgspec.Meta(min_length=1, pattern=r"\S")]
    until: datetime.date
    runs: tuple[str, ...] = ("*",)
    checkers: tuple[str, ...] = ("*",)
    faults: tuple[str, ...] = ()

    def covers(self, verdict: str, run: str, about: str) -> bool:
        """Return whether it applies to this verdict in this run, on any day.

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
    """A policy. The default requires valid verdicts of runs that injected the faults asked for.

    Attributes:
        floors: how much must have been tried.
        ceilings: limits that no run may exceed.
        unavailable_from_s: a stretch without an acknowledgement counts as unavailable from this
            length on.
        detection: if given, runs of planted bugs must end invalid; if None, they are ordinary runs.
        allow: verdicts that pass for a limited time.
    """

    floors: Floors = Floors()
    ceilings: Ceilings = Ceilings()
    unavailable_from_s: Annotated[float, msgspec.Meta(gt=0.0, le=1e12)] = 1.0
    detection: Detection | None = None
    allow: tuple[Allowance, ...] = ()


# The measures that a policy can bound: floors and ceilings, their units and labels. Pure.
#
# A missed floor means that too little was tried; an exceeded ceiling means that the system is worse
# than its policy allows. That is why they have different exit codes.


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a run that a policy may bound.

    Attributes:
        label: its description.
        unit: placed after the number, with a leading space; "" for a count.
    """

    label: str
    unit: str = ""

    def text(self, value: float) -> str:
        """Format a value of it: "2.31 s", "never", "12,000"."""
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
    "faults_took_effect": Measure("faults that took effect"),
}
"""The keys of a policy's [floors] that bound a number of each run."""
