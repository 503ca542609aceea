"""The results of a calibration: a row for each bug, a matrix of faults, false alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from shaketable.harness.calibration.hunting import HuntOutcome
from shaketable.harness.calibration.plan import CLEAN, METHODS, Method
from shaketable.reports.calibration_page import BugRow, CleanRow, Score, Scorecard

FORMAT: Final = 1
NO_FAULT: Final = "none"
"""In the matrix: found while no fault was in force or had just ended."""


def add_up(outcomes: Sequence[HuntOutcome], seed: int, hunts: int) -> Scorecard:
    """Sum up the outcomes of a calibration's hunts, in the order of the plan."""
    methods = tuple(name for name in METHODS if any(o.hunt.method == name for o in outcomes))
    bugs: dict[str, list[HuntOutcome]] = {}
    clean: dict[tuple[str, Method], list[HuntOutcome]] = {}
    for outcome in outcomes:
        hunt = outcome.hunt
        if hunt.bug == CLEAN:
            clean.setdefault((hunt.target, hunt.method), []).append(outcome)
        else:
            bugs.setdefault(hunt.bug, []).append(outcome)
    return Scorecard(
        format=FORMAT,
        seed=seed,
        methods=methods,
        bugs=tuple(_bug_row(of_bug, methods) for of_bug in bugs.values()),
        clean=tuple(_clean_row(*key, of_clean) for key, of_clean in clean.items()),
        matrix=_matrix(outcomes),
        hunts=hunts,
        done=len(outcomes),
    )


def to_json(card: Scorecard) -> dict[str, Any]:
    """Return a scorecard as JSON."""
    return dict(msgspec.to_builtins(card))


def _bug_row(outcomes: Sequence[HuntOutcome], methods: Sequence[str]) -> BugRow:
    hunt = outcomes[0].hunt
    by_method = {
        method: [outcome for outcome in outcomes if outcome.hunt.method == method]
        for method in methods
    }
    scores = {method: _score(of) for method, of in by_method.items() if of}
    return BugRow(bug=hunt.bug, family=hunt.family, target=hunt.target, scores=scores)


def _score(outcomes: Sequence[HuntOutcome]) -> Score:
    found = [(outcome, outcome.found) for outcome in outcomes if outcome.found is not None]
    first = found[0][1] if found else None
    return Score(
        hunts=len(outcomes),
        found=len(found),
        runs=tuple(outcome.runs for outcome, _ in found),
        took_s=tuple(outcome.took_s for outcome, _ in found),
        virtual_s=tuple(outcome.virtual_s for outcome, _ in found),
        by=_frequent(name for _, one in found for name in one.by),
        kinds=_frequent(one.kinds[0] for _, one in found if one.kinds),
        says="" if first is None else first.says,
        report="" if first is None else first.report,
        unknown=tuple(why for outcome in outcomes for why in outcome.unknown),
        failed=tuple(why for outcome in outcomes for why in outcome.failed),
    )


def _clean_row(target: str, method: str, outcomes: Sequence[HuntOutcome]) -> CleanRow:
    return CleanRow(
        target=target,
        method=method,
        runs=sum(outcome.runs for outcome in outcomes),
        alarms=tuple(outcome.found for outcome in outcomes if outcome.found is not None),
        unknown=tuple(why for outcome in outcomes for why in outcome.unknown),
        failed=tuple(why for outcome in outcomes for why in outcome.failed),
    )


def _matrix(outcomes: Iterable[HuntOutcome]) -> dict[str, dict[str, int]]:
    """Count by fault and bug the campaigns that found the bug during or just after the fault."""
    counts: Counter[tuple[str, str]] = Counter()
    for outcome in outcomes:
        if outcome.found is not None and outcome.found.report and outcome.hunt.bug != CLEAN:
            for fault in outcome.found.faults or (NO_FAULT,):
                counts[fault, outcome.hunt.bug] += 1
    matrix: dict[str, dict[str, int]] = {}
    for (fault, bug), count in sorted(counts.items()):
        matrix.setdefault(fault, {})[bug] = count
    return dict(sorted(matrix.items(), key=lambda item: -len(item[1])))


def _frequent(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name, _ in Counter(names).most_common())
