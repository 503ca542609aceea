"""How a violation came about, moment by moment, and what can be said of why.

Only what is recorded is told: what clients called and were told, who led by the status that was
polled, which faults were on, and what the nodes' logs held at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from harness.history.schema import APPENDING
from reports.model import FaultRow, OperationRow, RoleSpan, Violation
from reports.spacetime import describe
from reports.violation_page.claims import DURABLE, TERM_BEGAN, base_kind
from reports.violation_page.model import Entries, Moment, Step
from reports.violation_page.steps import PUTTING

MOMENTS_MAX: Final = 40
"""Steps of a course that are told, beside what the logs hold; those nearest to the moment."""
FAULTS_MAX: Final = 8
"""Faults that a page shows."""
SOON_NS: Final = 2_000_000_000
"""Faults and leaders so long before and after the core of a violation belong to it."""
NEXT_LEADER_NS: Final = 10_000_000_000
"""How long after it the next leader is looked for."""
NS_PER_S: Final = 1e9
LEADER: Final = "leader"
ACKNOWLEDGED: Final = "acknowledged"
_ABOUT_READS: Final = frozenset(
    {"stale-read", "stale-end", "read-went-back", "end-went-back", "unseen"}
)


def moment_of(
    violation: Violation, rows: Sequence[OperationRow], lanes: Sequence[RoleSpan], terms: set[int]
) -> int | None:
    """Return the moment that a violation is about; None where nothing says it.

    Where the finding is about a read, it is when that returned, else when the append was
    acknowledged; of what is about the logs alone, when the first leader of the entry's term began
    to lead.
    """
    first = next((row for row in rows if row.marked and row.op in violation.named[:1]), None)
    is_look = first is not None and first.f not in APPENDING
    if violation.acknowledged_ns is not None and not is_look:
        return violation.acknowledged_ns
    row = _row_of(violation, rows)
    if row is not None:
        return row.call_ns if row.return_ns is None else row.return_ns
    led = [span.start_ns for span in lanes if span.role == LEADER and span.term in terms]
    return min(led, default=None)


def _row_of(violation: Violation, rows: Sequence[OperationRow]) -> OperationRow | None:
    """Return the operation that a violation is about: the one named first, if it is there."""
    marked = [row for row in rows if row.marked]
    first = next((row for row in marked if row.op in violation.named[:1]), None)
    return first or (marked[-1] if marked else rows[0] if rows else None)


def moment_is(violation: Violation, rows: Sequence[OperationRow], moment_ns: int | None) -> str:
    """Say in a word or two what was at the moment that `moment_of` found."""
    if moment_ns is None:
        return ""
    if moment_ns == violation.acknowledged_ns:
        return ACKNOWLEDGED
    row = _row_of(violation, rows)
    if row is None:
        return TERM_BEGAN
    if row.return_ns is None:
        return "called"
    return ACKNOWLEDGED if row.f in PUTTING else "answered"


def leader_at(lanes: Sequence[RoleSpan], time_ns: int) -> tuple[RoleSpan, ...]:
    """Return who said to lead at that time, the highest term first."""
    led = [
        span for span in lanes if span.role == LEADER and span.start_ns <= time_ns <= span.stop_ns
    ]
    return tuple(sorted(led, key=lambda span: -(span.term or 0)))


def next_leader(lanes: Sequence[RoleSpan], after: RoleSpan, time_ns: int) -> RoleSpan | None:
    """Return the first one that led a higher term than `after`; None if there is none."""
    higher = [
        span
        for span in lanes
        if span.role == LEADER and (span.term or 0) > (after.term or 0) and span.stop_ns >= time_ns
    ]
    return min(higher, key=lambda span: (span.term or 0, span.start_ns), default=None)


def faults_near(
    faults: Sequence[FaultRow], spans: Sequence[tuple[int, int]], moment_ns: int | None
) -> tuple[FaultRow, ...]:
    """Return the faults that were on in any of these spans, or soon before or after.

    Of more than FAULTS_MAX those that began nearest to the moment.
    """
    near = [
        row
        for row in faults
        if any(
            row.window.from_ns <= to_ns + SOON_NS and row.window.stop_ns >= from_ns - SOON_NS
            for from_ns, to_ns in spans
        )
    ]
    if len(near) > FAULTS_MAX:
        at_ns = moment_ns if moment_ns is not None else spans[0][0]
        near.sort(key=lambda row: abs(row.window.from_ns - at_ns))
        near = sorted(near[:FAULTS_MAX], key=lambda row: row.window.from_ns)
    return tuple(near)


def moments_of(
    violation: Violation,
    steps: Sequence[Step],
    lanes: Sequence[RoleSpan],
    faults: Sequence[FaultRow],
    entries: Entries | None,
    moment_ns: int | None,
) -> tuple[Moment, ...]:
    """Tell it in the order of time; what the logs hold stands last."""
    told = [*_of_operations(steps)]
    if moment_ns is not None:
        told += _of_leaders(lanes, moment_ns)
        told += _of_faults(faults)
    if len(told) > MOMENTS_MAX and moment_ns is not None:
        told.sort(key=lambda each: abs((each.time_ns or 0) - moment_ns))
    told = sorted(told[:MOMENTS_MAX], key=lambda each: each.time_ns or 0)
    return (*told, *_of_logs(entries))


def _of_operations(steps: Sequence[Step]) -> Iterator[Moment]:
    for step in steps:
        row = step.row
        who = f"client {row.process}"
        if row.f in APPENDING:
            what = f"{who} calls {row.f} {row.input} on {row.key}"
            yield Moment(row.call_ns, "client", what)
            if row.outcome == "ok" and row.return_ns is not None:
                by = row.node or "a node that is not named"
                said = f"{by} answers {who}: {row.f} {row.input} is acknowledged"
                at = "" if row.offset is None else f", at offset {row.offset}"
                yield Moment(row.return_ns, "client", f"{said}{at}")
            continue
        when = row.call_ns if row.return_ns is None else row.return_ns
        by = f", answered by {row.node}" if row.node else ""
        wrong = f"; legal was {step.legal}" if step.is_wrong and step.legal else ""
        yield Moment(when, "client", f"{who}: {describe(row)}{by}{wrong}")


def _of_leaders(lanes: Sequence[RoleSpan], moment_ns: int) -> Iterator[Moment]:
    """Say who led, and who led next."""
    led = leader_at(lanes, moment_ns)
    for span in led:
        yield Moment(span.start_ns, "leader", f"{span.node} leads{_in_term(span)}, as polled")
    if not led:
        return
    after = next_leader(lanes, led[0], moment_ns)
    if after is not None and after.start_ns - moment_ns <= NEXT_LEADER_NS:
        yield Moment(after.start_ns, "leader", f"{after.node} leads{_in_term(after)}, as polled")


def _of_faults(faults: Sequence[FaultRow]) -> Iterator[Moment]:
    for row in faults:
        window = row.window
        bit = "" if window.bit else ", which did not bite"
        what = f"fault {window.fault}, {window.name}: {window.description}"
        yield Moment(window.from_ns, "fault", f"{what}, begins{bit}")
        yield Moment(window.stop_ns, "fault", f"fault {window.fault}, {window.name}, is over")


def _of_logs(entries: Entries | None) -> Iterator[Moment]:
    for node, what in () if entries is None else entries.of_nodes:
        yield Moment(None, "log", f"{node} has {what}")


def _in_term(span: RoleSpan) -> str:
    return "" if span.term is None else f" in term {span.term}"


def meaning_of(
    violation: Violation,
    rows: Sequence[OperationRow],
    lanes: Sequence[RoleSpan],
    entries: Entries | None,
    moment_ns: int | None,
) -> str:
    """Say what follows of why, where the records allow it; "" where they do not."""
    kind = base_kind(violation.kind)
    if kind in DURABLE and kind != "missing-on-node":
        return _why_lost(violation, lanes, entries, moment_ns, is_lost=kind == "lost-append")
    if kind == "divergent":
        return (
            "Nodes that disagree about a committed entry give different answers from then on, and"
            " nothing in the protocol ever brings them together again: a committed entry is never"
            " replaced."
        )
    if kind in _ABOUT_READS:
        return _who_answered(violation, rows, lanes)
    return ""


def _why_lost(
    violation: Violation,
    lanes: Sequence[RoleSpan],
    entries: Entries | None,
    moment_ns: int | None,
    *,
    is_lost: bool,
) -> str:
    """Compare who acknowledged it with the terms of what stands there now.

    Only of an append that a later term replaced something follows about votes.
    """
    led = () if moment_ns is None else leader_at(lanes, moment_ns)
    mine = next((span for span in led if span.node == violation.acknowledged_by), None)
    newer: list[int] = []
    said = []
    if mine is not None and mine.term is not None:
        said.append(f"{mine.node} led term {mine.term} when it acknowledged the append.")
        newer = sorted(term for term in terms_there(entries) if term > mine.term)
        if newer and is_lost:
            by = next((span.node for span in lanes if span.term == newer[-1]
                       and span.role == LEADER), "another leader")  # fmt: skip
            said.append(
                f"What stands at its offset now is of term {newer[-1]}, which {by} led: that leader"
                " did not have the append, and put something else in its place."
            )
        else:
            after = next_leader(lanes, mine, moment_ns or 0)
            if after is not None:
                said.append(f"{after.node} led term {after.term} after it.")
    if not (newer and is_lost):
        return " ".join(said)
    said.append(
        "A node comes to lead only by the votes of a majority, and a node that has the append votes"
        " for nobody who lacks it. So either no majority held the append yet when it was"
        " acknowledged, or a node that held it lost it again or voted against that rule."
    )
    return " ".join(said)


def terms_there(entries: Entries | None) -> set[int]:
    """Return the terms of what stands at the place, on any node."""
    if entries is None:
        return set()
    return {
        entry.term
        for row in entries.rows
        for cell in row.cells
        for entry in cell
        if entry.is_it and entry.term is not None
    }


def _who_answered(
    violation: Violation, rows: Sequence[OperationRow], lanes: Sequence[RoleSpan]
) -> str:
    """Say whether the node that answered was the one that led."""
    by_id = {row.op: row for row in rows if row.f not in APPENDING}
    read = next((by_id[op] for op in violation.named if op in by_id), None)
    if read is None or read.node is None or read.return_ns is None:
        return ""
    led = leader_at(lanes, read.return_ns)
    if not led:
        return f"{read.node} answered; nobody was seen to lead at that moment."
    first = led[0]
    if first.node == read.node:
        return (
            f"{read.node} answered, which led{_in_term(first)} then, as polled: it answered without"
            " what had been acknowledged before."
        )
    others = f"{first.node} led{_in_term(first)} then, as polled"
    return f"{read.node} answered, although {others}: it answered from what it had itself."
