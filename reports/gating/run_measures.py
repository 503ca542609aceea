"""Measure a run's operations and faults: the numbers that a policy may bound. Pure.

With how much acknowledged data was lost (RPO), in total and by fault.

Source: OpenChaos for recovery time (RTO) and loss (RPO); SRE's availability by time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.finding_kinds import FINDING_KINDS, record_of
from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import APPENDING
from shaketable.reports.availability import ClientActivity, outages, recovery_times, serving
from shaketable.reports.gating.rulings import Conclusion
from shaketable.reports.plain_json import mapping

COLUMNS: Final = ("process", "f", "call_ns", "return_ns", "outcome")
"""The columns of OPERATIONS that are measured."""
NS_PER_S: Final = 1e9
NS_PER_MS: Final = 1e6
BY_TIME: Final = (
    "recovery_median_s",
    "recovery_worst_s",
    "unavailable_longest_s",
    "unavailable_total_s",
)
"""Measures that require knowing when clients worked."""
LOSSES: Final = tuple(
    tuple(kind.name for kind in FINDING_KINDS.values() if kind.lost == lost)
    for lost in ("value", "offset", "add")
)
"""Kinds of findings about lost acknowledged operations: values, offsets that a group committed,
adds to counters. Those of the same may be about the same operations."""
LOSS_CHECKERS: Final = (
    "consumer-offsets",
    "counter",
    "durability",
    "final-reads",
    "group-delivery",
    "log-anomalies",
    "lost-write",
    "set-full",
    "total-queue",
    "unseen",
)
"""Checkers that find losses."""
LATE: Final = "unseen"
"""An acknowledged message was not there yet for a client that looked: a loss, or a stale read."""
DURABILITY_CHECKERS: Final = ("durability", "final-reads")
"""Checkers that know of each acknowledged message whether it is there at the end."""

Times = npt.NDArray[np.int64]


@dataclass(slots=True)
class Measured:
    """Measures by their keys in a policy, and why the missing ones are not known.

    Those with a key in `at_least` are lower bounds.
    """

    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    at_least: set[str] = field(default_factory=set)


def measure_operations(
    operations: pa.Table,
    windows: Sequence[FaultWindow],
    activity: ClientActivity | None,
    unavailable_from_s: float,
) -> Measured:
    """Measure recovery, latency and availability.

    Recovery and availability are measured on operations that append, or on all if the workload has
    none. They end with the clients' working time, not with their last call: clients that wait call
    nothing. A fault after which nothing was acknowledged again has an infinite recovery time.

    Args:
        operations: the columns COLUMNS of OPERATIONS.
        windows: the faults as they were applied.
        activity: when clients worked; None if the run does not say.
        unavailable_from_s: a stretch without an acknowledgement counts from this length on.
    """
    found = Measured({"operations": operations.num_rows})
    _latency(found, operations, windows)
    if activity is None:
        found.missing |= dict.fromkeys(BY_TIME, "the run does not say when clients worked")
        return found
    served = serving(operations)
    _recovery(found, served, windows, activity)
    _availability(found, served, activity, unavailable_from_s)
    return found


def measure_loss(conclusions: Sequence[Conclusion]) -> Measured:
    """Count acknowledged operations that were seen lost, whether or not a promise was broken.

    Several checkers judge the same history, so for findings that may be about the same operations
    the largest count is used. It is the whole loss only if the checker looked at every operation.
    What clients were not shown at first is no loss if all of it is known to be there at the end.
    """
    key = "acknowledged_loss"
    judges = [one for one in conclusions if one.checker in LOSS_CHECKERS]
    able = [one for one in judges if not one.summary.startswith("not judged")]
    unsure = [one.checker for one in able if one.outcome is Outcome.UNKNOWN]
    all_is_there = any(
        one.checker in DURABILITY_CHECKERS
        and one.outcome is Outcome.VALID
        and not one.observed
        and looked_at_all(one.counts)
        for one in able
    )
    found = [_loss(conclusions, losses_of(kinds, all_is_there)) for kinds in LOSSES]
    if total := sum(count for count, _ in found):
        is_whole = not unsure and all(is_exact for count, is_exact in found if count)
        return Measured({key: total}, at_least=set() if is_whole else {key})
    if unsure:
        return Measured(missing={key: f"{', '.join(unsure)} came to no verdict"})
    if not able:
        return Measured(missing={key: "no checker of the run looks for losses"})
    return Measured({key: 0})


def looked_at_all(counts: Mapping[str, Any]) -> bool:
    """Return whether a checker of durability that found no loss looked at every acknowledgement."""
    acknowledged = counts.get("acknowledged", 0)
    return counts.get("looked_at", acknowledged) == acknowledged and not counts.get("not_found")


def losses_of(kinds: Sequence[str], all_is_there: bool) -> list[str]:
    """Return the kinds that are losses if all that was acknowledged is there at the end, or not."""
    return [kind for kind in kinds if kind != LATE or not all_is_there]


def _loss(conclusions: Sequence[Conclusion], kinds: Sequence[str]) -> tuple[int, bool]:
    """Return the losses of some kinds by the checker that found most, and whether that is exact."""
    most, is_exact = 0, True
    for one in conclusions:
        seen = [kind for kind in (*one.kinds, *one.observed) if kind.name in kinds]
        count = sum(kind.count for kind in seen)
        is_counted = all(record_of(kind.name).counts_all and not kind.is_least for kind in seen)
        if (count, is_counted) > (most, is_exact and most > 0):
            most, is_exact = count, is_counted
    return most, is_exact


def _recovery(
    found: Measured, served: pa.Table, windows: Sequence[FaultWindow], activity: ClientActivity
) -> None:
    names = pa.array([APPENDING[0]] * served.num_rows, pa.string())
    served = served.set_column(served.column_names.index("f"), "f", names)
    asked = [
        one for one in recovery_times(served, windows, activity) if one.took_effect and one.asked
    ]
    if not asked:
        why = "no fault took effect after which a client asked" if windows else "there was no fault"
        found.missing["recovery_median_s"] = found.missing["recovery_worst_s"] = why
        return
    times_s = sorted(
        np.inf if one.recovery_ns is None else one.recovery_ns / NS_PER_S for one in asked
    )
    # The upper median of an even number: an infinite time has no mean with another.
    found.values["recovery_median_s"] = float(times_s[len(times_s) // 2])
    found.values["recovery_worst_s"] = float(times_s[-1])


def _latency(found: Measured, operations: pa.Table, windows: Sequence[FaultWindow]) -> None:
    is_done = pc.and_(pc.equal(operations["outcome"], "ok"), pc.is_valid(operations["return_ns"]))
    done = operations.filter(is_done)
    calls = _times(done["call_ns"])
    took_ms = (_times(done["return_ns"]) - calls) / NS_PER_MS
    _p99(found, "p99_ms", took_ms, "no operation was acknowledged")
    first_ns = min((window.from_ns for window in windows), default=None)
    steady = took_ms if first_ns is None else took_ms[calls < first_ns]
    _p99(found, "p99_steady_ms", steady, "no operation was acknowledged before the first fault")


def _p99(found: Measured, key: str, took_ms: npt.NDArray[np.float64], why: str) -> None:
    if len(took_ms):
        found.values[key] = float(np.percentile(took_ms, 99, method="higher"))
    else:
        found.missing[key] = why


def _availability(
    found: Measured, served: pa.Table, activity: ClientActivity, unavailable_from_s: float
) -> None:
    calls = served["call_ns"]
    if not pc.any(pc.less_equal(calls, activity.until_ns)).as_py():
        why = "there are no operations"
        found.missing["unavailable_longest_s"] = found.missing["unavailable_total_s"] = why
        return
    starts, stops = outages(served, activity)
    lengths_s = (stops - starts) / NS_PER_S
    found.values["unavailable_longest_s"] = float(lengths_s.max(initial=0.0))
    found.values["unavailable_total_s"] = float(lengths_s[lengths_s >= unavailable_from_s].sum())


def _times(column: Any) -> Times:
    return np.asarray(column.to_numpy(), dtype=np.int64)


# How much was lost, and under which fault.

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
        name in DURABILITY_CHECKERS
        and verdicts[name].get("valid") is True
        and not verdicts[name].get("observed")
        and looked_at_all(mapping(verdicts[name].get("counts")))
        for name in able
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
