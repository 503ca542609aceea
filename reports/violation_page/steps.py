"""The minimal operations of a violation: what each of them saw, and what it could have seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from shaketable.harness.contracts.finding_kinds import base_kind, record_of
from shaketable.harness.history.schema import APPENDING
from shaketable.reports.check_page.checked_history import accused_in
from shaketable.reports.run_page.violations import OperationLookup
from shaketable.reports.run_view import OperationRow, Violation
from shaketable.reports.violation_page.violation_view import Step

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
