"""The facts of runs that a gate knows, and its rulings. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shaketable.harness.contracts.verdict import ExitCode, Outcome, worst_exit
from shaketable.reports.gating.policy import Allowance

PAGES_LISTED_MAX = 10
"""Pages of violations that are listed for one run."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Findings of one kind: how many, and the message and place of the first.

    `is_least`: there may be more than `count`, because not all were kept. `page` is the path of the
    first one's page, "" if there is none.
    """

    name: str
    count: int
    message: str
    key: str | None = None
    offset: int | None = None
    operations: tuple[int, ...] = ()
    is_least: bool = False
    page: str = ""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion of one checker. `observed` are findings that break no promise."""

    checker: str
    outcome: Outcome
    summary: str
    kinds: tuple[Kind, ...] = ()
    observed: tuple[Kind, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultEffects:
    """How often a fault was injected, and how often it took effect."""

    took_effect: int
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts of a run.

    Attributes:
        name: campaign and time, or matrix and cell; matched by a policy's `runs`.
        path: its folder or file, as given.
        outcome: its verdict; None if there is none (see `failure`).
        failure: why there is no verdict, or why it is worse than those of the checkers.
        is_retried: an earlier attempt, of which only violations count.
        skipped: why there was no run, "" if there was one.
        conclusions: of the checkers.
        asked: the faults asked for that could be injected.
        unavailable: the faults that could not be injected, and why.
        faults: how often each took effect.
        measures: numbers by their keys in a policy's [floors] and [ceilings]; an unknown one is
            absent, and `missing` may have the reason.
        missing: why measures are not known.
        at_least: keys of those measures that are lower bounds.
        vacuous: why it shows too little although its checkers do not say so, "" if it does not.
        mutant: the planted bug that it was run with.
        repeat: the command that repeats it; "" if there is none.
        campaign: the campaign file; "" if there is none.
        report: its page; "" if there is none.
        seconds: how long it took.
    """

    name: str
    path: str
    outcome: Outcome | None
    failure: str = ""
    is_retried: bool = False
    skipped: str = ""
    conclusions: tuple[Conclusion, ...] = ()
    asked: tuple[str, ...] = ()
    unavailable: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, FaultEffects] = field(default_factory=dict)
    measures: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    at_least: frozenset[str] = frozenset()
    vacuous: str = ""
    mutant: str | None = None
    repeat: str = ""
    campaign: str = ""
    report: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ruling:
    """The gate's decision on one rule: exit code 0 if it holds.

    `allowed` is the allowance of the policy by which it passes all the same.
    """

    rule: str
    code: ExitCode
    message: str
    allowed: Allowance | None = None

    @property
    def holds(self) -> bool:
        """Whether it does not fail the gate."""
        return self.code == ExitCode.VALID


@dataclass(frozen=True, slots=True)
class RunRulings:
    """The rulings on one run."""

    facts: RunFacts
    rulings: tuple[Ruling, ...]

    @property
    def code(self) -> int:
        """The worst exit code of the rulings."""
        return worst_exit(ruling.code for ruling in self.rulings)

    @property
    def pages(self) -> tuple[tuple[str, str], ...]:
        """Kind and page of what the broken rules found, each page once."""
        broken = {ruling.rule for ruling in self.breaches}
        kinds = {
            kind.page: kind.name
            for one in self.facts.conclusions
            if one.checker in broken
            for kind in one.kinds
            if kind.page
        }
        return tuple((name, page) for page, name in kinds.items())[:PAGES_LISTED_MAX]

    @property
    def breaches(self) -> tuple[Ruling, ...]:
        """The rulings that fail the gate."""
        return tuple(ruling for ruling in self.rulings if not ruling.holds)


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of a gate: rulings on each run, and on all of them together.

    `notes` are about the policy itself, such as an allowance that no run needed.
    """

    runs: tuple[RunRulings, ...]
    overall: tuple[Ruling, ...]
    skipped: tuple[RunFacts, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The exit code, the worst of 255 > 1 > 2 > 0."""
        codes = [run.code for run in self.runs]
        return worst_exit([*codes, *(ruling.code for ruling in self.overall)])

    @property
    def breaches(self) -> tuple[tuple[str, Ruling], ...]:
        """The breaches as (run, ruling); the run is "" for rulings on all runs together."""
        of_runs = [(run.facts.name, ruling) for run in self.runs for ruling in run.breaches]
        return (*of_runs, *(("", ruling) for ruling in self.overall if not ruling.holds))
