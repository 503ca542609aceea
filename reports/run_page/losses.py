"""Count how much acknowledged data was lost (RPO), in total and by fault. Pure.

Source: recovery point objective, as OpenChaos reports it; the kinds are the gate's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shaketable.harness.contracts.finding_kinds import record_of
from shaketable.reports.gating.run_measures import (
    DURABILITY_CHECKERS,
    LOSS_CHECKERS,
    LOSSES,
    losses_of,
)
from shaketable.reports.plain_json import mapping

_NUMBERED: Final = re.compile(r"^(?:just before )?\S+ (\d{1,9}) \(")
"""How evidence names a fault: "kill 3 (kill leader n1)"."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Acknowledged operations that were seen lost, whether or not a promise was broken.

    `total` is None if it is unknown, for the reason in `why`. Of several checkers that count the
    same losses, the largest count is used; with `is_least` there may be more. `by_fault` counts by
    the number of the fault under which they were acknowledged. It covers only the findings that
    were kept: with `is_cut` there are more.
    """

    total: int | None
    why: str = ""
    by_fault: Mapping[int, int] = field(default_factory=dict)
    is_cut: bool = False
    is_least: bool = False


NOT_JUDGED: Final = Losses(None, "nothing was judged")


def losses(results: Mapping[str, Any]) -> Losses:
    """Count the losses in results.json."""
    checkers = results.get("checkers")
    verdicts = {
        str(name): verdict
        for name, verdict in (checkers.items() if isinstance(checkers, Mapping) else ())
        if isinstance(verdict, Mapping)
    }
    able = [
        name
        for name in LOSS_CHECKERS
        if name in verdicts and not mapping(verdicts[name].get("data")).get("not_judged")
    ]
    all_is_there = any(
        name in DURABILITY_CHECKERS and verdicts[name].get("valid") is True for name in able
    )
    of_each = [losses_of(kinds, all_is_there) for kinds in LOSSES]
    lost = frozenset(kind for kinds in of_each for kind in kinds)
    counts = [_counts(verdict) for verdict in verdicts.values()]
    seen = {kind for counted in counts for kind, count in counted.items() if count}
    total = sum(
        max((sum(counted[kind] for kind in kinds) for counted in counts), default=0)
        for kinds in of_each
    )
    by_fault: Counter[int] = Counter()
    for verdict in verdicts.values():
        by_fault |= _by_fault(verdict, lost)  # of the same history: take the larger count of each
    unsure = [name for name in able if verdicts[name].get("valid") == "unknown"]
    if total:
        is_cut = sum(by_fault.values()) < total
        is_least = bool(unsure or any(not record_of(kind).counts_all for kind in seen & lost))
        return Losses(total, by_fault=dict(by_fault), is_cut=is_cut, is_least=is_least)
    if not able:
        return Losses(None, "no checker of the run looks for losses")
    if unsure:
        return Losses(None, f"{', '.join(unsure)} came to no verdict")
    return Losses(0)


def _counts(verdict: Mapping[str, Any]) -> Counter[str]:
    """Count a checker's findings by kind, kept or not, promised or only observed."""
    found: Counter[str] = Counter(str(finding.get("kind")) for finding in _findings(verdict))
    broken = list(_listed(verdict, "findings"))
    if broken and len({str(finding.get("kind")) for finding in broken}) == 1:
        # All of them are of this kind, including those that were not kept.
        kind, kept = str(broken[0].get("kind")), _number(verdict.get("findings_total"))
        found[kind] = max(found[kind], kept)
    for counts in (verdict.get("counts"), mapping(verdict.get("data")).get("observed")):
        for kind, count in mapping(counts).items():
            found[str(kind)] = max(found[str(kind)], _number(count))
    return found


def _number(count: object) -> int:
    return count if isinstance(count, int) and not isinstance(count, bool) else 0


def _by_fault(verdict: Mapping[str, Any], lost: frozenset[str]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for finding in _findings(verdict):
        if str(finding.get("kind")) in lost:
            number = _fault(mapping(finding.get("details")))
            if number is not None:
                counts[number] += 1
    return counts


def _fault(details: Mapping[str, Any]) -> int | None:
    """Return the number of the fault in the evidence; None if it has none."""
    fault = details.get("fault")
    if isinstance(fault, int) and not isinstance(fault, bool):
        return fault
    named = details.get("faults")
    texts = [fault, *(named if isinstance(named, list) else ())]
    matches = (_NUMBERED.match(text) for text in texts if isinstance(text, str))
    return next((int(match[1]) for match in matches if match), None)


def _findings(verdict: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield from _listed(verdict, "findings")
    yield from _listed(verdict, "observed")


def _listed(verdict: Mapping[str, Any], place: str) -> Iterable[Mapping[str, Any]]:
    found = verdict.get(place)
    yield from (one for one in (found if isinstance(found, list) else ()) if mapping(one))
