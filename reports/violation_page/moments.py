"""The timeline of a violation.

It uses only what was recorded: calls and answers of clients, leaders by the polled status, active
faults, and the nodes' logs at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from shaketable.harness.contracts.finding_kinds import record_of
from shaketable.harness.history.schema import APPENDING
from shaketable.reports.check_page.checked_history import visible
from shaketable.reports.plain_json import is_whole
from shaketable.reports.run_view import FaultRow, OperationRow, RoleSpan, Violation
from shaketable.reports.spacetime import describe
from shaketable.reports.violation_page.claims import TERM_BEGAN
from shaketable.reports.violation_page.steps import WITHOUT_RESULT
from shaketable.reports.violation_page.violation_view import Entries, LossWindow, Moment, Step

MOMENTS_MAX: Final = 40
"""Events of a timeline besides the logs' content; those nearest to a turning point."""
FAULTS_MAX: Final = 8
"""Faults that a page shows."""
SOON_NS: Final = 2_000_000_000
"""Faults and leaders up to this long before and after the core of a violation belong to it."""
NEXT_LEADER_NS: Final = 10_000_000_000
"""How long after it to look for the next leader."""
LEADERS_MAX: Final = 6
"""Leaders between two turning points that are listed."""
SIGN: Final = ": the first sign that it is gone"
LAST_LINE_MAX: Final = 200
NODE_MAX: Final = 60
"""Characters of a node's last log line and of its name that are shown."""
LEADER: Final = "leader"
ACKNOWLEDGED: Final = "acknowledged"


def moment_of(
    violation: Violation, rows: Sequence[OperationRow], lanes: Sequence[RoleSpan], terms: set[int]
) -> int | None:
    """Return the time that a violation is about; None if unknown.

    If it was seen live, that is the time. If the finding is about a read, the time is when that
    returned, else when the append was acknowledged. For findings about logs alone, it is when the
    first leader of the entry's term started to lead.
    """
    if (seen_ns := seen_at(violation)) is not None:
        return seen_ns
    first = next((row for row in rows if row.marked and row.op in violation.named[:1]), None)
    is_read = first is not None and first.f not in APPENDING
    if violation.acknowledged_ns is not None and not is_read:
        return violation.acknowledged_ns
    row = _row_of(violation, rows)
    if row is not None:
        return row.call_ns if row.return_ns is None else row.return_ns
    led = [span.start_ns for span in lanes if span.role == LEADER and span.term in terms]
    return min(led, default=None)


def seen_at(violation: Violation) -> int | None:
    """Return when a violation was seen live; None for violations in the history."""
    at_ns = violation.details.get("at_ns")
    return at_ns if record_of(violation.kind).is_seen_live and is_whole(at_ns) else None


def _row_of(violation: Violation, rows: Sequence[OperationRow]) -> OperationRow | None:
    """Return the operation that a violation is about: the first named one, if it is present."""
    marked = [row for row in rows if row.marked]
    first = next((row for row in marked if row.op in violation.named[:1]), None)
    return first or (marked[-1] if marked else rows[0] if rows else None)


def moment_label(violation: Violation, rows: Sequence[OperationRow], moment_ns: int | None) -> str:
    """Return a word or two for what happened at the moment that `moment_of` found."""
    if moment_ns is None:
        return ""
    if moment_ns == seen_at(violation):
        return "seen"
    if moment_ns == violation.acknowledged_ns:
        return ACKNOWLEDGED
    row = _row_of(violation, rows)
    if row is None:
        return TERM_BEGAN
    if row.return_ns is None:
        return "called"
    return ACKNOWLEDGED if row.f in WITHOUT_RESULT else "answered"


def leader_at(lanes: Sequence[RoleSpan], time_ns: int) -> tuple[RoleSpan, ...]:
    """Return the nodes that claimed to lead at that time, the highest term first."""
    led = [
        span for span in lanes if span.role == LEADER and span.start_ns <= time_ns <= span.stop_ns
    ]
    return tuple(sorted(led, key=lambda span: -(span.term or 0)))


def next_leader(lanes: Sequence[RoleSpan], after: RoleSpan, time_ns: int) -> RoleSpan | None:
    """Return the first leader of a higher term than `after`; None if there is none."""
    higher = [
        span
        for span in lanes
        if span.role == LEADER and (span.term or 0) > (after.term or 0) and span.stop_ns >= time_ns
    ]
    return min(higher, key=lambda span: (span.term or 0, span.start_ns), default=None)


def faults_near(
    faults: Sequence[FaultRow], spans: Sequence[tuple[int, int]], moments_ns: Sequence[int]
) -> tuple[FaultRow, ...]:
    """Return the faults that were active during any of these spans, or shortly before or after.

    Of more than FAULTS_MAX, return those that began nearest to a moment.
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
        nearest = moments_ns or [spans[0][0]]
        near.sort(key=lambda row: _distance(row.window.from_ns, nearest))
        near = sorted(near[:FAULTS_MAX], key=lambda row: row.window.from_ns)
    return tuple(near)


def _distance(time_ns: int, moments_ns: Sequence[int]) -> int:
    return min(abs(time_ns - each) for each in moments_ns)


def turning_points_of(moment_ns: int | None, gone: LossWindow | None) -> tuple[int, ...]:
    """Return the turning points: the violation's moment, and when its subject was seen gone."""
    found = (moment_ns, None if gone is None else gone.until_ns)
    return tuple(sorted({each for each in found if each is not None}))


@dataclass(frozen=True, slots=True)
class Story:
    """The records from which a timeline is built.

    `ends` are the last log lines of nodes that exited by themselves. `seen` is the moment of a
    violation seen live that no other record has.
    """

    steps: Sequence[Step]
    lanes: Sequence[RoleSpan]
    faults: Sequence[FaultRow]
    ends: Sequence[Moment]
    entries: Entries | None
    turning_points: Sequence[int]
    gone: LossWindow | None = None
    seen: Moment | None = None


def moments_of(story: Story) -> tuple[Moment, ...]:
    """Return the timeline; the logs' content at the end of the run is last."""
    moments = list(_of_operations(story))
    if story.turning_points:
        from_ns, to_ns = story.turning_points[0] - SOON_NS, story.turning_points[-1] + SOON_NS
        moments += _of_leaders(story.lanes, story.turning_points)
        moments += of_faults(story.faults)
        moments += [
            replace(each, is_key=each.time_ns in story.turning_points)
            for each in story.ends
            if from_ns <= (each.time_ns or 0) <= to_ns
        ]
        moments += [] if story.seen is None else [story.seen]
    if len(moments) > MOMENTS_MAX and story.turning_points:
        moments.sort(
            key=lambda each: (not each.is_key, _distance(each.time_ns or 0, story.turning_points))
        )
    moments = sorted(moments[:MOMENTS_MAX], key=lambda each: each.time_ns or 0)
    return (*moments, *_of_logs(story.entries))


def _of_operations(story: Story) -> Iterator[Moment]:
    sign = None if story.gone is None else story.gone.first_sign
    if sign is not None and not any(step.row.op == sign.op for step in story.steps):
        what = f"client {sign.process}: {describe(sign)}{SIGN}"
        yield Moment(sign.return_ns, "client", what, is_key=True)
    for step in story.steps:
        row = step.row
        is_sign = sign is not None and row.op == sign.op
        is_key = (
            is_sign
            or (row.call_ns if row.return_ns is None else row.return_ns) in story.turning_points
        )
        more = SIGN if is_sign else ""
        who = f"client {row.process}"
        if row.f in APPENDING:
            what = f"{who} calls {row.f} {row.input} on {row.key}"
            yield Moment(row.call_ns, "client", what, is_key=row.call_ns in story.turning_points)
            if row.outcome == "ok" and row.return_ns is not None:
                by = row.node or "a node that is not named"
                text = f"{by} answers {who}: {row.f} {row.input} is acknowledged"
                at = "" if row.offset is None else f", at offset {row.offset}"
                yield Moment(row.return_ns, "client", f"{text}{at}{more}", is_key=is_key)
            continue
        when = row.call_ns if row.return_ns is None else row.return_ns
        by = f", answered by {row.node}" if row.node else ""
        wrong = f"; legal was {step.legal}" if step.is_wrong and step.legal else ""
        yield Moment(when, "client", f"{who}: {describe(row)}{by}{wrong}{more}", is_key=is_key)


def _of_leaders(lanes: Sequence[RoleSpan], turning_points: Sequence[int]) -> Iterator[Moment]:
    """Yield the leader at the first turning point, the next one, and those until the last one."""
    led = leader_at(lanes, turning_points[0])
    leaders = list(led)
    after = next_leader(lanes, led[0], turning_points[0]) if led else None
    if after is not None and after.start_ns - turning_points[0] <= NEXT_LEADER_NS:
        leaders.append(after)
    if len(turning_points) > 1:
        came = [
            span
            for span in lanes
            if span.role == LEADER
            and turning_points[0] < span.start_ns <= turning_points[-1]
            and span not in leaders
        ]
        leaders += sorted(came, key=lambda span: _distance(span.start_ns, turning_points))[
            :LEADERS_MAX
        ]
    for span in leaders:
        what = f"{span.node} leads{in_term(span)}, as polled"
        yield Moment(span.start_ns, "leader", what, is_key=span.start_ns in turning_points)


def of_faults(faults: Sequence[FaultRow]) -> Iterator[Moment]:
    """Yield when each fault began and ended, and what it did."""
    for row in faults:
        window = row.window
        effect = (
            f"; it took effect: {window.evidence}" if window.took_effect and window.evidence else ""
        )
        effect = effect if window.may_have_taken_effect else ", which had no effect"
        what = f"fault {window.fault}, {window.name}: {window.description}"
        yield Moment(
            window.from_ns, "fault", f"{what}, starts{effect}", is_key=window.may_have_taken_effect
        )
        yield Moment(window.stop_ns, "fault", f"fault {window.fault}, {window.name}, is over")


def ends_of(run: Mapping[str, Any]) -> tuple[Moment, ...]:
    """Read run.json's `exits`: which nodes exited by themselves, and their last log lines."""
    exits = run.get("exits")
    ends = []
    for each in exits if isinstance(exits, list) else ():
        if not isinstance(each, Mapping) or each.get("asked") or not is_whole(each.get("at_ns")):
            continue
        line, node = each.get("last_line"), visible(str(each.get("node"))[:NODE_MAX])
        text = f": {visible(str(line)[:LAST_LINE_MAX])}" if line else ""
        code = f" with exit code {each['returncode']}" if is_whole(each.get("returncode")) else ""
        ends.append(
            Moment(each["at_ns"], "node", f"{node} is seen to have ended by itself{code}{text}")
        )
    return tuple(ends)


def _of_logs(entries: Entries | None) -> Iterator[Moment]:
    for node, what in () if entries is None else entries.of_nodes:
        yield Moment(None, "log", f"{node} has {what}")


def in_term(span: RoleSpan) -> str:
    """Return the term of a leader, if known."""
    return "" if span.term is None else f" in term {span.term}"
