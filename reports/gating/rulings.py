"""What a gate knows of each run, and what it rules. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shaketable.harness.contracts.verdict import ExitCode, Outcome, worst_exit
from shaketable.reports.gating.policy import Allowance

PAGES_TOLD_MAX = 10
"""Pages of violations that are named of one run."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Findings of one kind: how many, the first in words, and where it stands in the history.

    `is_least`: there may be more of them than `count`, for not all were kept.
    `page` is the path of the first one's page, "" if there is none.
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
    """What one checker concluded. `observed` are findings that break no promise."""

    checker: str
    outcome: Outcome
    summary: str
    kinds: tuple[Kind, ...] = ()
    observed: tuple[Kind, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultEffects:
    """How often a fault was done, and how often it took effect."""

    took_effect: int
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a run.

    Attributes:
        name: campaign and time, or matrix and cell; what a policy's `runs` are about.
        path: its folder or file, as it was given.
        outcome: its verdict; None if there is none, and `failure` says why.
        failure: why there is no verdict, or why it is worse than those of the checkers.
        is_retried: this is an earlier attempt; only what it found against the system counts.
        skipped: why there was no run at all, "" if there was one.
        conclusions: of the checkers.
        asked: the faults that it was to do and could do.
        unavailable: those that it could not do, and why.
        faults: how often each bit.
        measures: numbers by their keys in a policy's [floors] and [ceilings]; what is not known
            is not there, and `missing` may say why.
        at_least: keys of those measures that may be more than they are known to be.
        vacuous: why it shows too little although its checkers do not say so, "" if it does not.
        mutant: the planted bug that it was run with.
        repeat: the command that repeats it; "" if none does.
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
    """What the gate says of one rule: exit code 0 if it holds.

    `allowed` is the line of the policy that lets it pass all the same.
    """

    rule: str
    code: ExitCode
    message: str
    allowed: Allowance | None = None

    @property
    def holds(self) -> bool:
        """Whether it fails nothing."""
        return self.code == ExitCode.VALID


@dataclass(frozen=True, slots=True)
class RunRulings:
    """The rulings on one run."""

    facts: RunFacts
    rulings: tuple[Ruling, ...]

    @property
    def code(self) -> int:
        """The worst of them."""
        return worst_exit(ruling.code for ruling in self.rulings)

    @property
    def pages(self) -> tuple[tuple[str, str], ...]:
        """Kind and page of what broken rules are about, of each page once."""
        broken = {ruling.rule for ruling in self.breaches}
        told = {
            kind.page: kind.name
            for one in self.facts.conclusions
            if one.checker in broken
            for kind in one.kinds
            if kind.page
        }
        return tuple((name, page) for page, name in told.items())[:PAGES_TOLD_MAX]

    @property
    def breaches(self) -> tuple[Ruling, ...]:
        """Those that fail the gate."""
        return tuple(ruling for ruling in self.rulings if not ruling.holds)


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a gate came to: rulings on each run, and on all of them together.

    `notes` are what a person should know of the policy itself: an allowance that nothing needed.
    """

    runs: tuple[RunRulings, ...]
    overall: tuple[Ruling, ...]
    skipped: tuple[RunFacts, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The exit code: 255 > 1 > 2 > 0."""
        codes = [run.code for run in self.runs]
        return worst_exit([*codes, *(ruling.code for ruling in self.overall)])

    @property
    def breaches(self) -> tuple[tuple[str, Ruling], ...]:
        """All that fails it, as (run, ruling); the run is "" where it is about all of them."""
        of_runs = [(run.facts.name, ruling) for run in self.runs for ruling in run.breaches]
        return (*of_runs, *(("", ruling) for ruling in self.overall if not ruling.holds))
