"""Rows of FINDINGS: how a checker's `check` writes them and its `conclude` reads them.

A row of kind "checked" carries a partition's counts as JSON. Any other row is one finding in
full, or, without a place, the `count` of its kind's findings beyond the `KEPT_PER_KIND_MAX` that
a partition keeps in full.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from shaketable.harness.contracts.plugins import CheckContext, FaultWindow
from shaketable.harness.contracts.verdict import FINDINGS_KEPT_MAX, Finding, Outcome, Verdict
from shaketable.harness.history.schema import FINDINGS

CHECKED = "checked"
NOTHING_BROKEN = "no promise is broken"
"""The summary if nothing that was found breaks a promise."""
KEPT_PER_KIND_MAX = 200
"""Findings of one kind that one partition keeps in full; the others are counted."""


class Findings:
    """Collects what a checker finds in one partition."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._seen: Counter[str] = Counter()

    def add(self, kind: str, rows: Sequence[int], describe: Callable[[int], Finding]) -> None:
        """Add one finding of `kind` for each of `rows`; describe only those that are kept."""
        room = KEPT_PER_KIND_MAX - self._seen[kind]
        self._kept += [describe(row) for row in rows[: max(0, room)]]
        self._seen[kind] += len(rows)

    def table(self, counts: Mapping[str, Any]) -> pa.Table:
        """Return them as rows of FINDINGS, with `counts` (JSON-able) in a row "checked"."""
        rows = [_row(finding) for finding in self._kept]
        kept = Counter(finding.kind for finding in self._kept)
        for kind, seen in sorted(self._seen.items()):
            if seen > kept[kind]:
                message = f"and {seen - kept[kind]} more of {kind}"
                rest = Finding(kind, message, details={"rest": True})
                rows.append(_row(rest, seen - kept[kind]))
        rows.append(_row(Finding(CHECKED, "", details=dict(counts))))
        return pa.Table.from_pylist(rows, FINDINGS)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The findings of all partitions: those kept in full, totals by kind, and the counts."""

    kept: tuple[Finding, ...]
    totals: Mapping[str, int]
    checked: tuple[dict[str, Any], ...] = field(default=())

    def sums(self) -> dict[str, int | float]:
        """Add up the numbers of all "checked" rows, name by name."""
        total: Counter[str] = Counter()
        for counts in self.checked:
            total.update({k: v for k, v in counts.items() if isinstance(v, int)})
        return dict(total)


def gather(findings: pa.Table) -> Gathered:
    """Read the rows that the partitions' `check` calls returned."""
    kept, checked = [], []
    totals: Counter[str] = Counter()
    for row in findings.to_pylist():
        details = json.loads(row["details"] or "{}")
        if row["kind"] == CHECKED:
            checked.append(details)
            continue
        totals[row["kind"]] += row["count"]
        if "rest" not in details:
            kept.append(
                Finding(
                    row["kind"], row["message"], row["key"], row["offset"],
                    tuple(row["operations"] or ()), details,
                )
            )  # fmt: skip
    return Gathered(tuple(kept), dict(totals), tuple(checked))


def settle(
    checker: str,
    gathered: Gathered,
    context: CheckContext,
    *,
    clean: str,
    doubts: Sequence[str] = (),
    doubtful: Collection[str] = (),
    observed: Callable[[str], str | None] = lambda _kind: None,
    counts: Mapping[str, int | float] | None = None,
) -> Verdict:
    """Join findings into a verdict: breaches make it INVALID, doubts UNKNOWN, neither VALID.

    Args:
        checker: its name.
        gathered: what the partitions found.
        context: if it is incomplete, findings of the kinds `doubtful` prove nothing and
            the verdict is never VALID.
        clean: the summary where nothing was found.
        doubts: why the verdict cannot be VALID, one reason each.
        doubtful: kinds that rest on the absence of events from the history.
        observed: why a kind of finding breaks no promise, or None if it does break one.
        counts: numbers for the verdict; the sums of the partitions' counts by default.
    """
    reasons = list(doubts)
    if context.incomplete is not None:
        reasons.append(f"the history is incomplete: {context.incomplete}")
    excused: dict[str, str] = {}
    for kind in gathered.totals:
        if context.incomplete is not None and kind in doubtful:
            excused[kind] = "it may come from what the history lacks"
        elif (why := observed(kind)) is not None:
            excused[kind] = why
    breaches = {kind: n for kind, n in sorted(gathered.totals.items()) if kind not in excused}
    seen = {kind: n for kind, n in sorted(gathered.totals.items()) if kind in excused}
    parts = [", ".join(f"{n} {kind}" for kind, n in breaches.items())] if breaches else []
    parts += reasons or ([] if breaches else [NOTHING_BROKEN if seen else clean])
    parts += _observed_parts(seen, excused)
    if seen and context.promises.documented:
        parts.append(f"documented: {context.promises.documented}")
    outcome = Outcome.INVALID if breaches else Outcome.UNKNOWN if reasons else Outcome.VALID
    return Verdict(
        checker,
        outcome,
        "; ".join(parts),
        _share(gathered.kept, breaches),
        sum(breaches.values()),
        dict(gathered.sums() if counts is None else counts) | dict(sorted(breaches.items())),
        ({"doubts": reasons} if reasons else {}) | ({"observed": seen} if seen else {}),
        _share(gathered.kept, seen),
    )


JUST_BEFORE_NS = 2_000_000_000
"""An acknowledgement at most this long before a fault is reported as "just before" it."""


def windows_at(context: CheckContext, time_ns: int) -> list[FaultWindow]:
    """Return the faults that were in force at that time, the latest one first."""
    inside = [w for w in context.windows if w.from_ns <= time_ns <= w.stop_ns]
    return sorted(inside, key=lambda window: window.from_ns, reverse=True)


def just_before(context: CheckContext, time_ns: int) -> FaultWindow | None:
    """Return the first fault that started at most SOON_NS after that time, None if none did.

    For times at which no fault was in force: a kill may lose what was acknowledged just before it.
    """
    soon = [w for w in context.windows if time_ns < w.from_ns <= time_ns + JUST_BEFORE_NS]
    return min(soon, key=lambda window: window.from_ns, default=None)


def fault_name(window: FaultWindow) -> str:
    """Return a fault's name for messages: "partition 3 (isolate leader n1)"."""
    return f"{window.name} {window.fault} ({window.description})"


def _observed_parts(seen: Mapping[str, int], excused: Mapping[str, str]) -> list[str]:
    """Return what was observed and not counted, a part for each reason."""
    by_reason: dict[str, list[str]] = {}
    for kind, n in seen.items():
        name = kind.partition(" (")[0]  # without what a checker adds, such as why
        by_reason.setdefault(excused[kind], []).append(f"{n} {name}")
    return [
        f"observed, not counted: {', '.join(kinds)} ({why})" for why, kinds in by_reason.items()
    ]


def _share(kept: Iterable[Finding], kinds: Collection[str]) -> tuple[Finding, ...]:
    """Return up to FINDINGS_KEPT_MAX findings of `kinds`, a fair share of each kind."""
    by_kind: dict[str, list[Finding]] = {kind: [] for kind in kinds}
    for finding in kept:
        if finding.kind in by_kind:
            by_kind[finding.kind].append(finding)
    chosen: list[Finding] = []
    room = FINDINGS_KEPT_MAX
    for place, found in enumerate(sorted(by_kind.values(), key=len)):
        share = room // (len(by_kind) - place)
        chosen += found[:share]
        room -= min(share, len(found))
    return tuple(sorted(chosen, key=lambda f: (f.kind, f.key or "", f.offset or 0, f.operations)))


def _row(finding: Finding, count: int = 1) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "key": finding.key,
        "offset": finding.offset,
        "count": count,
        "operations": list(finding.operations),
        "message": finding.message,
        "details": json.dumps(finding.details, sort_keys=True),
    }
