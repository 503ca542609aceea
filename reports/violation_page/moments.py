"""The timeline of a violation, and its minimal operations.

It uses only what was recorded: calls and answers of clients, leaders by the polled status, active
faults, and the nodes' logs at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from shaketable.harness.contracts.finding_kinds import base_kind, record_of
from shaketable.harness.history.schema import APPENDING
from shaketable.reports.check_page.checked_history import accused_in, visible
from shaketable.reports.plain_json import is_whole
from shaketable.reports.run_page.violations import OperationLookup
from shaketable.reports.run_view import FaultRow, OperationRow, RoleSpan, Violation
from shaketable.reports.spacetime import describe
from shaketable.reports.violation_page.claims import TERM_BEGAN
from shaketable.reports.violation_page.violation_view import Entries, LossWindow, Moment, Step

# The minimal operations of a violation: what each of them saw, and what it could have seen.

OPERATIONS_MAX: Final = 16
"""Operations of a minimal set; those that the finding names come first."""
READS_MAX: Final = 3
"""Reads of the place that are shown, of the first ones and of the last ones."""
_READING: Final = ("read", "poll")
WITHOUT_RESULT: Final = (
    *APPENDING, "delay", "batch", "write", "cas", "add", "enqueue", "commit", "commit-oneway",
    "reset", "unlock", "assign", "seek", "subscribe",
)  # fmt: skip
"""Operations whose only result is that they were done."""
NOTHING: Final = "nothing"
CAS_SEEN: Final = {0: "another value was there", 1: "it took effect"}
_SEARCHED: Final = frozenset({"not-linearizable"})
"""Kinds that name all operations of the search; the first cannot be linearized."""
ACCUSED_MAX: Final = 4
"""If more are named, only the first is marked."""
_OF_COMMITS: Final = frozenset({"offset-lost", "offset-went-back", "offset-ran-ahead"})


def minimal_operations(
    violation: Violation, lookup: OperationLookup, instead: Sequence[int] = ()
) -> tuple[OperationRow, ...]:
    """Return the operations that show the violation, in the order of their calls.

    These are the ones that the finding names; for a place in a log, also the appends acknowledged
    there, the reads of it, and the appends of the values stored there now (`instead`).
    """
    named_ops = list(dict.fromkeys((*violation.named, *_proof_of_staleness(violation))))
    marked = _nearest_first(lookup.by_id(named_ops), violation)
    key, offset = violation.key, violation.offset
    at_place = lookup.appends_at(key, offset)
    reads = lookup.reads_at(key, offset, READS_MAX)
    others = lookup.appends_of(key, list(instead)) if key is not None else []
    rows: dict[tuple[object, ...], OperationRow] = {}
    named = {row.op for row in marked} or {row.op for row in at_place}
    if accused := set(accused_in(violation.details)):
        named &= accused  # the others only contradict these
    elif base_kind(violation.kind) in _SEARCHED and len(named) > ACCUSED_MAX:
        named &= set(violation.named[:1])
    for row in (*marked, *at_place, *others, *reads):
        if len(rows) < OPERATIONS_MAX:
            # A transaction is one operation of several rows.
            which = (row.op, row.f, row.key, row.input, row.offset)
            rows.setdefault(which, replace(row, marked=row.op in named))
    return tuple(sorted(rows.values(), key=lambda row: (row.call_ns, row.op)))


def _nearest_first(rows: Sequence[OperationRow], violation: Violation) -> list[OperationRow]:
    """Sort operations: those that the violation is about, those that prove it, then the nearest.

    The nearest are those with the least distance in time to the first.
    """
    first = next((row for row in rows if row.op in violation.named[:1]), None)
    if first is None:
        return list(rows)
    accused = {first.op, *accused_in(violation.details)}
    proof = _proof_of_staleness(violation)

    def rank(row: OperationRow) -> tuple[bool, bool, int]:
        return row.op not in accused, row.op not in proof, abs(row.call_ns - first.call_ns)

    return sorted(rows, key=rank)


def _proof_of_staleness(violation: Violation) -> tuple[int, ...]:
    """Return the operations that show that a read is stale, as its message names them."""
    stale = violation.details.get("stale")
    if not isinstance(stale, Mapping):
        return ()
    found = (stale.get(name) for name in ("read", "written", "over", "written_seen", "over_seen"))
    return tuple(op for op in found if isinstance(op, int))


def steps_of(
    violation: Violation, rows: Sequence[OperationRow], lookup: OperationLookup
) -> tuple[Step, ...]:
    """Return what each operation saw, and what it could have seen."""
    kind = base_kind(violation.kind)
    return tuple(_step(row, rows, violation, kind, lookup) for row in rows)


def _step(
    row: OperationRow,
    rows: Sequence[OperationRow],
    violation: Violation,
    kind: str,
    lookup: OperationLookup,
) -> Step:
    details = violation.details
    seen, legal, is_wrong = _seen(row), "", False
    if row.f in APPENDING:
        legal, is_wrong = _of_append(row, rows, violation, kind)
    elif row.outcome != "ok":
        legal = ""
    elif row.f in _READING and row.offset is not None and row.offset == violation.offset:
        legal, is_wrong = _of_read(row, rows)
    elif kind == "future-end" and row.f == "end" and row.marked:
        legal, is_wrong = "no further than what had been appended by then", True
    elif row.f == "end" and row.output is not None:
        end = lookup.end_before(row.key, row.call_ns)
        legal = "" if end is None else f"at least {end}"
        is_wrong = end is not None and row.output < end
    elif "low" in details and "high" in details and row.marked:
        low, high = details["low"], details["high"]
        legal, is_wrong = str(low) if low == high else f"{low} to {high}", True
    elif kind in ("lost-element", "stale-element") and row.f == "read" and row.marked:
        is_wrong = row.op == violation.named[-1]
        legal = f"a list with {violation.value}"
    if not legal and _is_wrong_read(row, rows, violation):
        legal, is_wrong = _of_kind(row, rows, violation, kind), True
    return Step(row, seen, legal, is_wrong and bool(legal))


def _seen(row: OperationRow) -> str:
    """Return the operation's result as text."""
    if row.outcome == "fail":
        return f"it certainly failed{f' ({row.error})' if row.error else ''}"
    if row.outcome == "info":
        return f"no answer: its outcome is unknown{f' ({row.error})' if row.error else ''}"
    if row.f in APPENDING:
        return "acknowledged" if row.offset is None else f"acknowledged at offset {row.offset}"
    if row.output_text:
        return row.output_text
    if row.f == "cas" and row.expected is not None and row.output in CAS_SEEN:
        return CAS_SEEN[row.output]
    if row.f in WITHOUT_RESULT and row.output is None:
        return "acknowledged"
    return NOTHING if row.output is None else str(row.output)


def _of_append(
    row: OperationRow, rows: Sequence[OperationRow], violation: Violation, kind: str
) -> tuple[str, bool]:
    """Return what must follow from an append, or where it should have been put."""
    if row.outcome != "ok":
        return "", False
    if not row.marked:
        return _of_later_append(row, violation, kind)
    record = record_of(kind)
    if record.became:
        return f"it is at offset {row.offset} from now on", True
    others = [each for each in rows if each.f in APPENDING and each is not row and each.marked]
    if kind == "offset-given-twice" and others:
        return "an offset that no other append was given", True
    if kind == "append-order" and row.op in violation.named[:1] and others:
        return f"an offset above {others[0].offset}", True
    before = [each for each in others if each.call_ns < row.call_ns and each.offset is not None]
    if kind == "nonmonotonic-send" and before:
        return f"an offset above {before[-1].offset}", True
    if record.append_would and (violation.value is None or row.input == violation.value):
        return record.append_would.format(offset=violation.offset), True
    return "", False


def _of_later_append(row: OperationRow, violation: Violation, kind: str) -> tuple[str, bool]:
    """Judge a later append that got an offset already acknowledged to another append."""
    acknowledged_ns = violation.acknowledged_ns
    if not record_of(kind).became or acknowledged_ns is None or row.offset != violation.offset:
        return "", False
    if row.offset is None or row.input == violation.value or row.call_ns <= acknowledged_ns:
        return "", False
    return f"any other offset: this one was given to the append of {violation.value}", True


def _is_wrong_read(row: OperationRow, rows: Sequence[OperationRow], violation: Violation) -> bool:
    """Return whether a row is the answer that a violation is about."""
    reads = [each for each in rows if each.marked and each.f not in WITHOUT_RESULT]
    is_first = record_of(violation.kind).names_answer_first
    first = [each for each in reads if is_first and each.op in violation.named[:1]]
    return row.outcome == "ok" and any(each is row for each in first or reads[-1:])


def _of_kind(
    row: OperationRow, rows: Sequence[OperationRow], violation: Violation, kind: str
) -> str:
    """Return what an answer could have been, by the kind of violation."""
    if kind in _OF_COMMITS:
        known = [
            each.input if each.f == "commit" else each.output
            for each in rows
            if each.marked and each is not row and each.call_ns < row.call_ns
        ]
        return f"{known[-1]}, which was known before" if known else ""
    must = record_of(kind).answer_would
    is_known = "{value}" not in must or violation.value is not None
    return must.format(value=violation.value, offset=violation.offset) if is_known else ""


def _of_read(row: OperationRow, rows: Sequence[OperationRow]) -> tuple[str, bool]:
    """Return what a read of an offset could find, by the appends acknowledged there."""
    there = [
        each
        for each in rows
        if each.f in APPENDING and each.outcome == "ok" and each.offset == row.offset
    ]
    if not there:
        return _of_repeated_read(row, rows)
    if row.return_ns is not None and all(row.return_ns < each.call_ns for each in there):
        return NOTHING, row.output is not None
    known = sorted((each.return_ns, each.input) for each in there
                   if each.return_ns is not None and each.return_ns < row.call_ns)  # fmt: skip
    over = [given for _, given in known]
    called = [each.input for each in there if row.return_ns is None or each.call_ns < row.return_ns]
    values = over[:1] or called  # the first append acknowledged there
    text = " or ".join(str(value) for value in dict.fromkeys(values))
    if row.output is None and row.output_text:
        # a poll's answer is a list: shown, but not judged here
        return text, False
    if over:
        first = f"{text}: it was acknowledged there first" if len(over) > 1 else text
        return first, row.output not in values
    return f"{text}, or {NOTHING} yet", row.output is not None and row.output not in values


def _of_repeated_read(row: OperationRow, rows: Sequence[OperationRow]) -> tuple[str, bool]:
    """Return what a read can find if only other reads show what is there."""
    seen = [
        each.output
        for each in rows
        if each.f in _READING and each.offset == row.offset and each.output is not None
        and each.return_ns is not None and each.return_ns < row.call_ns
    ]  # fmt: skip
    return (f"{seen[0]}", row.output not in seen) if seen else ("", False)


# The timeline of a violation.

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
