"""The facts of runs that a gate knows, and its rulings on them by a policy and a day. Pure.

Exit code 1: something is wrong (a promise is broken, or a ceiling exceeded). 2: it is not shown
to be right (a verdict is unknown, too little was tried, planted bugs were missed, or a measure
with a ceiling is unknown). 255: a run has no verdict, because its harness failed.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from shaketable.harness.contracts.verdict import EXIT_BY_OUTCOME, ExitCode, Outcome, worst_exit
from shaketable.reports.gating.policy import (
    CEILINGS,
    FLOORS,
    RUNS_MIN,
    UNAVAILABLE,
    UNKNOWN,
    VACUOUS,
    Allowance,
    Detection,
    Policy,
)

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
    """The conclusion of one checker.

    `observed` are findings that break no promise; `counts` its numbers, by name.
    """

    checker: str
    outcome: Outcome
    summary: str
    kinds: tuple[Kind, ...] = ()
    observed: tuple[Kind, ...] = ()
    counts: Mapping[str, float] = field(default_factory=dict)


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


# The gate's decision.

VACUITY: Final = "vacuity"
"""The checker that judges whether a run tested what it was asked to test."""
FAULTS_TOOK_EFFECT: Final = "faults-took-effect"
VERDICT: Final = "verdict"
PLANTED_BUG: Final = "planted-bug"
DETECTION: Final = "detection"
RUNS: Final = "runs"
ROUNDING: Final = 1e-9
"""Tolerance for a share of runs that is a whole number of them: 0.7 of 10 is 7, not more."""


def decide(policy: Policy, runs: Sequence[RunFacts], today_utc: datetime.date) -> GateResult:
    """Rule on each run and on all of them together.

    Args:
        policy: the requirements.
        runs: the facts of each run, and of each attempt at one.
        today_utc: the day on which allowances hold or have expired.
    """
    judged = [run for run in runs if not run.skipped]
    ruled = tuple(RunRulings(run, tuple(_rule(policy, run, today_utc))) for run in judged)
    return GateResult(
        runs=ruled,
        overall=tuple(_overall(policy, judged)),
        skipped=tuple(run for run in runs if run.skipped),
        notes=tuple(_unneeded(policy, judged)),
    )


def _rule(policy: Policy, run: RunFacts, today_utc: datetime.date) -> Iterator[Ruling]:
    if run.outcome is None:
        if run.is_retried:  # the harness failed, and a later attempt replaces this one
            return
        yield Ruling(VERDICT, ExitCode.HARNESS, f"there is no verdict: {run.failure}")
        return
    if run.mutant is not None and policy.detection is not None:
        yield _planted(run.mutant, run)
        return
    if run.is_retried:  # a later attempt replaces an unknown verdict, but never an invalid one
        yield from (ruling for ruling in _verdicts(policy, run, today_utc) if _is_wrong(ruling))
        return
    yield from _verdicts(policy, run, today_utc)
    yield from _floors(policy, run)
    yield from _ceilings(policy, run)


def _is_wrong(ruling: Ruling) -> bool:
    return ruling.code == ExitCode.INVALID


def _planted(mutant: str, run: RunFacts) -> Ruling:
    """Rule on a run with a planted bug, which should end invalid."""
    if run.outcome is Outcome.INVALID:
        return Ruling(PLANTED_BUG, ExitCode.VALID, f"the planted bug {mutant} was found")
    assert run.outcome is not None, "runs without a verdict are ruled on before"
    text = f"the planted bug {mutant} was not found: the verdict is {run.outcome.name.lower()}"
    return Ruling(PLANTED_BUG, ExitCode.VALID, f"{text} (counted under {DETECTION})")


def _verdicts(policy: Policy, run: RunFacts, today_utc: datetime.date) -> Iterator[Ruling]:
    assert run.outcome is not None, "runs without a verdict are ruled on before"
    for conclusion in run.conclusions:
        yield _verdict(policy, run, conclusion, today_utc)
    worst = max((one.outcome for one in run.conclusions), default=Outcome.VALID)
    is_reported = bool(run.vacuous) and run.outcome is Outcome.UNKNOWN
    if (run.outcome > worst or not run.conclusions) and not is_reported:
        text = run.failure or f"the verdict is {run.outcome.name.lower()}"
        ruling = Ruling(VERDICT, EXIT_BY_OUTCOME[run.outcome], text)
        yield _allowed(policy, ruling, UNKNOWN, run.name, today_utc)
    yield from _vacuous(policy, run, today_utc)
    yield from _not_done(policy, run, today_utc)


def _vacuous(policy: Policy, run: RunFacts, today_utc: datetime.date) -> Iterator[Ruling]:
    """Report that too few faults took effect, unless a checker does."""
    is_reported = any(
        one.checker == VACUITY and one.outcome > Outcome.VALID for one in run.conclusions
    )
    text = run.vacuous
    if (
        not text
        and run.asked
        and not is_reported
        and not any(of.took_effect for of in run.faults.values())
    ):
        text = f"no requested fault took effect ({', '.join(run.asked)})"
    if text:
        ruling = Ruling(FAULTS_TOOK_EFFECT, ExitCode.UNKNOWN, f"vacuous: {text}")
        yield _allowed(policy, ruling, VACUOUS, run.name, today_utc)


def _not_done(policy: Policy, run: RunFacts, today_utc: datetime.date) -> Iterator[Ruling]:
    """Report the faults that a run was requested and did not inject: it shows nothing about them.

    If the policy has a floor for the fault, that ruling is given instead.
    """
    lacking = {fault: f"could not be done: {why}" for fault, why in run.unavailable.items()}
    if any(of.took_effect for of in run.faults.values()):  # else `_vacuous` names them
        never = [fault for fault in run.asked if not run.faults.get(fault, FaultEffects(0, 0)).done]
        lacking |= dict.fromkeys(never, "never came up")
    for fault, why in lacking.items():
        if fault in policy.floors.faults:
            continue
        text = f"{fault} was requested and {why}"
        ruling = Ruling(f"fault {fault}", ExitCode.UNKNOWN, text)
        yield _allowed(policy, ruling, UNAVAILABLE, run.name, today_utc, fault)


def _verdict(
    policy: Policy, run: RunFacts, conclusion: Conclusion, today_utc: datetime.date
) -> Ruling:
    code = EXIT_BY_OUTCOME[conclusion.outcome]
    is_vacuous = conclusion.checker == VACUITY
    kind = VACUOUS if is_vacuous else UNKNOWN
    text = conclusion.summary
    if code == ExitCode.UNKNOWN and not text.startswith(kind):
        text = f"{kind}: {text}"
    ruling = Ruling(conclusion.checker, code, text)
    return _allowed(policy, ruling, kind, run.name, today_utc)


def _allowed(
    policy: Policy, ruling: Ruling, kind: str, run: str, today_utc: datetime.date, fault: str = ""
) -> Ruling:
    """Let a ruling pass if the policy allows it today; mention an allowance that has expired."""
    if ruling.code != ExitCode.UNKNOWN:
        return ruling
    ended: Allowance | None = None
    for allowance in policy.allow:
        if not allowance.covers(kind, run, fault or ruling.rule):
            continue
        if today_utc <= allowance.until:
            return Ruling(ruling.rule, ExitCode.VALID, ruling.message, allowance)
        ended = allowance
    if ended is None:
        return ruling
    text = f"{ruling.message}; was allowed until {ended.until}: {ended.reason}"
    return Ruling(ruling.rule, ruling.code, text)


def _floors(policy: Policy, run: RunFacts) -> Iterator[Ruling]:
    for key, measure in FLOORS.items():
        floor = getattr(policy.floors, key)
        if not floor:
            continue
        value = run.measures.get(key)
        found = "not known" if value is None else measure.text(value)
        code = ExitCode.UNKNOWN if value is None or value < floor else ExitCode.VALID
        why = f" ({run.missing[key]})" if value is None and key in run.missing else ""
        yield Ruling(key, code, f"{measure.label}: {found}{why}; at least {measure.text(floor)}")
    for fault, floor in policy.floors.faults.items():
        if fault in run.unavailable:
            text = f"{fault} is not available: {run.unavailable[fault]}; at least {floor} requested"
            code = ExitCode.UNKNOWN if floor else ExitCode.VALID
            yield Ruling(f"fault {fault}", code, text)
        elif fault in run.asked:
            effects = run.faults.get(fault)
            count = effects.took_effect if effects else 0
            code = ExitCode.UNKNOWN if count < floor else ExitCode.VALID
            yield Ruling(
                f"fault {fault}", code, f"{fault} took effect {_times(count)}; at least {floor}"
            )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _ceilings(policy: Policy, run: RunFacts) -> Iterator[Ruling]:
    for key, measure in CEILINGS.items():
        ceiling = getattr(policy.ceilings, key)
        if ceiling is None:
            continue
        value = run.measures.get(key)
        most = f"at most {measure.text(ceiling)}"
        is_least = key in run.at_least
        if value is None:
            why = run.missing.get(key, "the run has no such number")
            yield Ruling(key, ExitCode.UNKNOWN, f"{measure.label}: not known ({why}); {most}")
            continue
        code = ExitCode.VALID if value <= ceiling else ExitCode.INVALID
        text = f"{measure.label}: {measure.text(value)}"
        if is_least:
            text = f"{measure.label}: {measure.text(value)} or more"
            code = ExitCode.INVALID if value > ceiling else ExitCode.UNKNOWN
        yield Ruling(key, code, f"{text}; {most}")


def _overall(policy: Policy, runs: Sequence[RunFacts]) -> Iterator[Ruling]:
    last = [run for run in runs if not run.is_retried]
    if policy.detection is not None:
        yield from _detection(policy.detection, [run for run in last if run.mutant is not None])
        last = [run for run in last if run.mutant is None]
    # Runs of planted bugs measure the harness; they are enough by themselves if the policy
    # asks for no other runs.
    is_asked = policy.floors.runs is not None or policy.detection is None
    if last or is_asked or not any(run.mutant for run in runs):
        count, floor = sum(run.outcome is not None for run in last), policy.floors.runs or RUNS_MIN
        code = ExitCode.VALID if count >= floor else ExitCode.UNKNOWN
        yield Ruling(RUNS, code, f"runs with a verdict: {count}; at least {floor}")
    for fault, floor in policy.floors.faults.items():
        if floor and not any(fault in run.asked or fault in run.unavailable for run in last):
            text = f"no run requested {fault}; it has to take effect {_times(floor)}"
            yield Ruling(f"fault {fault}", ExitCode.UNKNOWN, text)


def _detection(asked: Detection, runs: Sequence[RunFacts]) -> Iterator[Ruling]:
    """Rule on the planted bugs: one is found if any run of it ended invalid."""
    ran = {run.mutant for run in runs if run.mutant is not None}
    found = {run.mutant for run in runs if run.outcome is Outcome.INVALID}
    missed = sorted(ran - found)
    text = f"planted bugs found: {len(found)} of {len(ran)}"
    if missed:
        text += f", not {', '.join(missed)}"
    is_met = bool(ran) and len(found) >= asked.found * len(ran) - ROUNDING
    code = ExitCode.VALID if is_met else ExitCode.UNKNOWN
    yield Ruling(DETECTION, code, f"{text}; at least {asked.found * 100:.10g}%")
    if len(ran) < asked.runs or asked.runs > 1:
        code = ExitCode.UNKNOWN if len(ran) < asked.runs else ExitCode.VALID
        yield Ruling(
            f"{DETECTION} runs", code, f"planted bugs run: {len(ran)}; at least {asked.runs}"
        )
    for bug in asked.bugs:
        code = ExitCode.VALID if bug in found else ExitCode.UNKNOWN
        result = "was found" if bug in found else "was not found" if bug in ran else "was not run"
        yield Ruling(f"{DETECTION} {bug}", code, f"the planted bug {bug} {result}")


def _unneeded(policy: Policy, runs: Sequence[RunFacts]) -> Iterator[str]:
    """Report the allowances that no run needs: they can be removed."""
    for allowance in policy.allow:
        if not any(_is_needed(allowance, run) for run in runs):
            where = "" if allowance.runs == ("*",) else f" of {', '.join(allowance.runs)}"
            what = f"{', '.join(allowance.faults)} " if allowance.faults else ""
            what += allowance.verdict
            yield f"no run needs that {what}{where} is allowed: {allowance.reason}"


def _is_needed(allowance: Allowance, run: RunFacts) -> bool:
    day = datetime.date.min  # a day on which no allowance has expired
    rulings = _verdicts(Policy(allow=(allowance,)), run, day) if run.outcome is not None else ()
    return any(ruling.allowed is not None for ruling in rulings)
