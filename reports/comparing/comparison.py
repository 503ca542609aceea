"""Compare two measured runs and judge each difference. Pure.

A difference counts only if it is both significant and large: the whole confidence interval of
"how much worse" is beyond a margin, and the numbers are at least a floor apart. The margins are
how much two healthy runs on one loaded machine differ (docs/store.md says how they were
measured). The confidence holds for all differences of a comparison together (Bonferroni
correction).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from shaketable.harness.contracts.program import PROGRAM
from shaketable.reports.comparing import significance
from shaketable.reports.comparing.compared_measures import CALM, Measured, Recoveries, Series
from shaketable.reports.comparing.significance import Floats, Interval, Sample

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


# Differences of two measured runs.

WINDOWS_MIN: Final = 6
BLOCKS_MIN: Final = 3
"""With fewer windows or blocks in either run, nothing is judged."""
BLOCKS_ENOUGH: Final = 6
FEW: Final = 2.0
"""With fewer blocks the margin is wider by this factor: a few faults may hit other nodes."""
BUSY_MARGIN: Final = 0.2
"""A run that lacked this much more of its machine is not judged slower."""
CALM_BLOCK: Final = 3
FAULT_BLOCK: Final = 10
"""Windows that are resampled together: of calm time, and under one fault."""
ALPHA: Final = 0.05
"""The probability that a comparison of two identical runs reports any difference."""
RECOVERIES_MIN: Final = 3
RECOVERY_MARGIN: Final = 2.0
RECOVERY_FLOOR_S: Final = 0.5
RANKS: Final = {"VALID": 0, "UNKNOWN": 1, "INVALID": 2}
ERRORS_MAX: Final = 12
THROUGHPUT: Final = "throughput"
LOAD: Final = ("rate", "concurrency", "think_time")
"""Keys of a campaign that set the load."""
NO_INTERVAL: Final = Interval(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a condition.

    `margin`: the difference that matters; a factor, or (if `is_share`) a difference of shares.
    `floor`: how far the numbers must be apart in addition, in `unit`.
    """

    name: str
    unit: str
    of: Callable[[Series], Floats]
    statistic: significance.Statistic
    more_is_worse: bool
    margin: float
    floor: float
    is_share: bool = False


METRICS: Final = (
    Metric(
        THROUGHPUT,
        "/s",
        lambda of: of.throughput,
        significance.mean,
        more_is_worse=False,
        margin=1.5,
        floor=1.0,
    ),
    Metric(
        "median latency",
        "ms",
        lambda of: of.median_ms,
        significance.median,
        more_is_worse=True,
        margin=3.0,
        floor=10.0,
    ),
    Metric(
        "p99 latency",
        "ms",
        lambda of: of.p99_ms,
        significance.median,
        more_is_worse=True,
        margin=3.0,
        floor=30.0,
    ),
    Metric(
        "refused or unknown",
        "%",
        lambda of: of.refused * 100,
        significance.mean,
        more_is_worse=True,
        margin=10.0,
        floor=10.0,
        is_share=True,
    ),
)


def compare(a: Measured, b: Measured) -> Comparison:
    """Compare run B with run A."""
    pairs, notes = _pairs(a, b)
    kinds = [name for name in a.recoveries if name in b.recoveries]
    # Recoveries are few: with their own half of alpha, their tests can still find something.
    alpha = ALPHA / 2 / max(1, len(pairs) * len(METRICS))
    alpha_of_recoveries = ALPHA / 2 / max(1, len(kinds) + (len(kinds) > 1))
    differences = [
        _verdicts(a, b),
        *_findings(a, b),
        *_observed(a, b),
        *(
            _of_metric(metric, where, of_a, of_b, alpha)
            for where, of_a, of_b in pairs
            for metric in METRICS
        ),
        *_of_recoveries(a, b, kinds, alpha_of_recoveries),
    ]
    notes += [
        f"no operations of {letter} can be read; {PROGRAM} analyze exports what was recorded"
        for letter, run in (("A", a), ("B", b))
        if not run.operations
    ]
    if (loads := _loads(a, b)) is not None:
        differences = [_withdrawn_for_load(each) for each in differences]
        notes.append(f"the campaigns ask for different loads ({loads}): no throughput is judged")
    slower = _slower_machine(a, b)
    if slower is not None:
        differences = [_withdrawn_for_machine(each, slower) for each in differences]
        notes.append(
            f"other work took {a.busy_with_others:.0%} of A's machine and "
            f"{b.busy_with_others:.0%} of B's: what is worse in {slower} may be that"
        )
    names = dict.fromkeys((*a.setting, *b.setting))
    settings = [(name, a.setting.get(name, ""), b.setting.get(name, "")) for name in names]
    return Comparison(
        a=a,
        b=b,
        differences=tuple(differences),
        settings=tuple(setting for setting in settings if setting[1] != setting[2]),
        errors=_errors(a, b),
        notes=tuple(notes),
    )


def _loads(a: Measured, b: Measured) -> str | None:
    """Describe how the loads of the campaigns differ; None if no difference is known."""
    differing = [
        f"{name} {a.setting[name]} in A, {b.setting[name]} in B"
        for name in LOAD
        if name in a.setting and name in b.setting and a.setting[name] != b.setting[name]
    ]
    return ", ".join(differing) or None


def _withdrawn_for_load(each: Difference) -> Difference:
    """Withdraw a judgement that the load explains: fewer operations, as fewer were requested."""
    if each.what != THROUGHPUT or each.judgement not in (Judgement.WORSE, Judgement.BETTER):
        return each
    text = of_metric(
        each.what, each.unit, each.where, each.a or 0.0, each.b or 0.0, NO_INTERVAL, Judgement.SAME
    )
    return replace(each, judgement=Judgement.SAME, text=text, sure="another load was requested")


def _slower_machine(a: Measured, b: Measured) -> str | None:
    """Return the run ("A" or "B") that had much less of its machine, if known of both."""
    if (
        a.busy_with_others is None
        or b.busy_with_others is None
        or abs(a.busy_with_others - b.busy_with_others) < BUSY_MARGIN
    ):
        return None
    return "A" if a.busy_with_others > b.busy_with_others else "B"


def _withdrawn_for_machine(each: Difference, slower: str) -> Difference:
    """Withdraw a judgement that a busier machine may explain."""
    brought = Judgement.WORSE if slower == "B" else Judgement.BETTER
    if each.where == EVERYWHERE or each.judgement is not brought:
        return each
    doubt = f"{each.sure}, on a busier machine"
    return replace(each, judgement=Judgement.UNSURE, sure=doubt, differs=True)


def _pairs(a: Measured, b: Measured) -> tuple[list[tuple[str, Series, Series]], list[str]]:
    """Pair up conditions; one whose fault the other run never asked for is paired with its calm."""
    pairs, notes = [], []
    for name in sorted(
        a.conditions.keys() | b.conditions.keys(), key=lambda name: (name != CALM, name)
    ):
        of_a, of_b = a.conditions.get(name), b.conditions.get(name)
        where = name if name == CALM else f"under {name}"
        if of_a is not None and of_b is not None:
            pairs.append((where, of_a, of_b))
            continue
        lacking, letter = (a, "A") if of_a is None else (b, "B")
        calm = lacking.conditions.get(CALM)
        if calm is None or set(name.split(" + ")) & set(lacking.faults_asked):
            notes.append(f"{where}: not compared, {letter} has no such time")
            continue
        pairs.append((f"{where} ({letter}: calm)", of_a or calm, of_b or calm))
        notes.append(f"{where}: {letter} does not ask for that, its calm time is shown beside")
    return pairs, notes


def _of_metric(metric: Metric, where: str, a: Series, b: Series, alpha: float) -> Difference:
    """Judge one number of one condition."""
    samples = [_sample(metric.of(series), series) for series in (a, b)]
    point_a, point_b = (
        float(metric.statistic(sample.values[None, :])[0]) if len(sample.values) else None
        for sample in samples
    )
    seconds = " and ".join(f"{len(sample.values)}" for sample in samples) + " seconds"
    is_little = any(
        len(sample.values) < WINDOWS_MIN or len(sample.blocks) < BLOCKS_MIN for sample in samples
    )
    if point_a is None or point_b is None or is_little:
        return Difference(
            where,
            metric.name,
            metric.unit,
            point_a,
            point_b,
            Judgement.UNSURE,
            unsure(metric.name, where),
            seconds,
        )
    first, second = samples if metric.more_is_worse else reversed(samples)
    between = significance.difference if metric.is_share else significance.ratio
    by = between(first, second, metric.statistic, alpha)
    judgement = Judgement.SAME
    if abs(point_b - point_a) >= metric.floor:
        is_few = any(len(sample.blocks) < BLOCKS_ENOUGH for sample in samples)
        margin = metric.margin * (FEW if is_few else 1)
        judgement = _beyond(by, margin, is_share=metric.is_share)
    return Difference(
        where=where,
        what=metric.name,
        unit=metric.unit,
        a=point_a,
        b=point_b,
        judgement=judgement,
        text=of_metric(metric.name, metric.unit, where, point_a, point_b, by, judgement),
        sure=_sure(judgement, seconds),
        low=by.low,
        high=by.high,
    )


def _sample(values: Floats, series: Series) -> Sample:
    is_known = ~np.isnan(values)
    block_max = CALM_BLOCK if series.condition == CALM else FAULT_BLOCK
    return Sample(values[is_known], series.pieces[is_known], block_max)


def _beyond(by: Interval, margin: float, *, is_share: bool) -> Judgement:
    """Judge by the whole interval of how much worse it is."""
    back = -margin if is_share else 1 / margin
    if by.low > margin:
        return Judgement.WORSE
    return Judgement.BETTER if by.high < back else Judgement.SAME


def _of_recoveries(
    a: Measured, b: Measured, kinds: Sequence[str], alpha: float
) -> Iterator[Difference]:
    """Judge the recoveries after each kind of fault, and after all kinds that both runs had."""
    for name in kinds:
        pair = [(a.recoveries[name], b.recoveries[name])]
        yield _recovery(f"after {name}", pair, alpha)
    if len(kinds) > 1:
        every = [(a.recoveries[name], b.recoveries[name]) for name in kinds]
        yield _recovery("after all faults that both had", every, alpha)


def _recovery(
    where: str, strata: Sequence[tuple[Recoveries, Recoveries]], alpha: float
) -> Difference:
    all_a = [length for of_a, _ in strata for length in of_a.lengths_s]
    all_b = [length for _, of_b in strata for length in of_b.lengths_s]
    point_a, point_b = float(np.median(all_a)), float(np.median(all_b))
    judgement, sure = Judgement.SAME, f"{len(all_a)} and {len(all_b)} recoveries"
    if min(len(all_a), len(all_b)) < RECOVERIES_MIN:
        judgement = Judgement.UNSURE
    elif abs(point_b - point_a) >= RECOVERY_FLOOR_S:
        pairs = [(of_a.lengths_s, of_b.lengths_s) for of_a, of_b in strata]
        if significance.smallest_p_value(pairs) > alpha / 2:  # cannot become significant
            judgement, sure = Judgement.UNSURE, f"{sure}, too few to be sure"
        elif _is_longer(pairs, alpha):
            judgement = Judgement.WORSE
        elif _is_longer([(of_b, of_a) for of_a, of_b in pairs], alpha):
            judgement = Judgement.BETTER
    never = sum(of_b.never for _, of_b in strata)
    return Difference(
        where=where,
        what="recovery",
        unit="s",
        a=point_a,
        b=point_b,
        judgement=judgement,
        text=of_recovery(where, point_a, point_b, never, judgement),
        sure=_sure(judgement, sure),
        differs=judgement is Judgement.UNSURE and len(all_a) >= RECOVERIES_MIN <= len(all_b),
    )


def _sure(judgement: Judgement, of: str) -> str:
    is_judged = judgement in (Judgement.WORSE, Judgement.BETTER)
    return f"{1 - ALPHA:.0%} sure, from {of}" if is_judged else f"from {of}"


def _is_longer(strata: Sequence[tuple[Sequence[float], Sequence[float]]], alpha: float) -> bool:
    """Return whether the second of each stratum exceed `RECOVERY_MARGIN` times the first."""
    shrunk = [(a, [length / RECOVERY_MARGIN for length in b]) for a, b in strata]
    return significance.p_value_greater(shrunk) <= alpha / 2


def _verdicts(a: Measured, b: Measured) -> Difference:
    """Compare the verdicts, which need no statistics."""
    by = RANKS.get(b.verdict, 1) - RANKS.get(a.verdict, 1)
    judgement = Judgement.SAME if not by else Judgement.WORSE if by > 0 else Judgement.BETTER
    text = f"verdict: {a.verdict} in A, {b.verdict} in B"
    if by:
        text += f" ({b.why if by > 0 else a.why})"
    return Difference(
        EVERYWHERE,
        "verdict",
        "",
        RANKS.get(a.verdict),
        RANKS.get(b.verdict),
        judgement,
        text,
        "certain",
    )


def _findings(a: Measured, b: Measured) -> Iterator[Difference]:
    """Judge whether checkers found anything, by kind; counts are listed, not judged."""
    for kind in sorted(a.findings.keys() | b.findings.keys()):
        of_a, of_b = a.findings.get(kind, 0), b.findings.get(kind, 0)
        judgement = Judgement.SAME
        if not of_a or not of_b:
            judgement = Judgement.WORSE if of_b else Judgement.BETTER
        yield Difference(
            EVERYWHERE,
            kind,
            "found",
            of_a,
            of_b,
            judgement,
            f"{kind}: {of_a:,} found in A, {of_b:,} in B",
            "certain",
        )


def _observed(a: Measured, b: Measured) -> Iterator[Difference]:
    """Yield kinds of anomalies that only one run shows, though they break no promise.

    A run may show one by chance while an identical run does not, so none of them is significant.
    """
    for kind in sorted(
        (a.observed.keys() | b.observed.keys()) - (a.findings.keys() | b.findings.keys())
    ):
        of_a, of_b = a.observed.get(kind, 0), b.observed.get(kind, 0)
        if of_a and of_b:
            continue
        yield Difference(
            EVERYWHERE,
            kind,
            "found",
            of_a,
            of_b,
            Judgement.UNSURE,
            f"{kind} (breaks no promise): {of_a:,} observed in A, {of_b:,} in B",
            "may be by chance",
            differs=True,
        )


def _errors(a: Measured, b: Measured) -> tuple[tuple[str, float, float], ...]:
    """Return the errors per thousand operations, those that differ most first."""
    rows = [
        (
            f"{outcome}: {text}" if outcome else text,
            1000 * a.errors.get((outcome, text), 0) / max(1, a.operations),
            1000 * b.errors.get((outcome, text), 0) / max(1, b.operations),
        )
        for outcome, text in a.errors.keys() | b.errors.keys()
    ]
    rows.sort(key=lambda row: (-abs(row[2] - row[1]), row[0]))
    return tuple(rows[:ERRORS_MAX])
