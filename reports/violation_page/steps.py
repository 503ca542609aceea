"""The minimal operations of a violation: what each of them saw, and what it could have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from harness.history.schema import APPENDING
from reports.model import OperationRow, Violation
from reports.violation_page.claims import DURABLE, base_kind
from reports.violation_page.model import Step
from reports.violations import Surroundings

OPERATIONS_MAX: Final = 16
"""Operations of a minimal set; those that the finding names come first."""
LOOKS_MAX: Final = 3
"""Looks at the place that are shown, of the first ones and of the last ones."""
_LOOKING: Final = ("read", "poll")
NOTHING: Final = "nothing"


def minimal(
    violation: Violation, surroundings: Surroundings, instead: Sequence[int] = ()
) -> tuple[OperationRow, ...]:
    """Return the operations that show it, in the order of their calls.

    Those that the finding names; of a place in a log also who was told that it is theirs, who
    looked there, and who appended what stands there now (`instead`, values).
    """
    marked = surroundings.by_id(list(violation.named))
    key, offset = violation.key, violation.offset
    at_place = surroundings.appends_at(key, offset)
    looks = surroundings.looks_at(key, offset, LOOKS_MAX)
    others = surroundings.appends_of(key, list(instead)) if key is not None else []
    rows: dict[int, OperationRow] = {}
    named = {row.op for row in marked} or {row.op for row in at_place}
    for row in (*marked, *at_place, *others, *looks):
        if len(rows) < OPERATIONS_MAX:
            rows.setdefault(row.op, replace(row, marked=row.op in named))
    return tuple(sorted(rows.values(), key=lambda row: (row.call_ns, row.op)))


def steps_of(
    violation: Violation, rows: Sequence[OperationRow], surroundings: Surroundings
) -> tuple[Step, ...]:
    """Say of each operation what it saw, and what it could have seen."""
    kind = base_kind(violation.kind)
    return tuple(_step(row, rows, violation, kind, surroundings) for row in rows)


def _step(
    row: OperationRow,
    rows: Sequence[OperationRow],
    violation: Violation,
    kind: str,
    surroundings: Surroundings,
) -> Step:
    details = violation.details
    seen, legal, is_wrong = _seen(row), "", False
    if row.f in APPENDING:
        legal, is_wrong = _of_append(row, rows, violation, kind)
    elif row.outcome != "ok":
        legal = ""
    elif row.f in _LOOKING and row.offset is not None and row.offset == violation.offset:
        legal, is_wrong = _of_look(row, rows)
    elif kind == "future-end" and row.f == "end" and row.marked:
        legal, is_wrong = "no further than what had been appended by then", True
    elif row.f == "end" and row.output is not None:
        end = surroundings.end_before(row.key, row.call_ns)
        legal = "" if end is None else f"at least {end}"
        is_wrong = end is not None and row.output < end
    elif "low" in details and "high" in details and row.marked:
        low, high = details["low"], details["high"]
        legal, is_wrong = str(low) if low == high else f"{low} to {high}", True
    elif kind in ("lost-element", "stale-element") and row.f == "read" and row.marked:
        is_wrong = row.op == violation.named[-1]
        legal = f"a list with {violation.value}"
    return Step(row, seen, legal, is_wrong or (row.marked and not legal and len(rows) == 1))


def _seen(row: OperationRow) -> str:
    """Say what came back."""
    if row.outcome == "fail":
        return f"it certainly failed{f' ({row.error})' if row.error else ''}"
    if row.outcome == "info":
        return f"no answer: its outcome is unknown{f' ({row.error})' if row.error else ''}"
    if row.f in APPENDING:
        return "acknowledged" if row.offset is None else f"acknowledged at offset {row.offset}"
    if row.told:
        return row.told
    if row.f in ("write", "cas", "add", "commit", "enqueue", "assign", "seek"):
        return "acknowledged"
    return NOTHING if row.output is None else str(row.output)


def _of_append(
    row: OperationRow, rows: Sequence[OperationRow], violation: Violation, kind: str
) -> tuple[str, bool]:
    """Say what must follow from an append, or where it should have been put."""
    if row.outcome != "ok" or not row.marked:
        return "", False
    if kind in DURABLE:
        return f"it stands at offset {row.offset} from now on", True
    others = [each for each in rows if each.f in APPENDING and each is not row and each.marked]
    if kind == "offset-given-twice" and others:
        return "an offset that no other append was given", True
    if kind == "append-order" and row.op in violation.named[:1] and others:
        return f"an offset above {others[0].offset}", True
    return "", False


def _of_look(row: OperationRow, rows: Sequence[OperationRow]) -> tuple[str, bool]:
    """Say what a look at an offset could find, by the appends that were acknowledged there."""
    there = [
        each
        for each in rows
        if each.f in APPENDING and each.outcome == "ok" and each.offset == row.offset
    ]
    if not there:
        return "", False
    over = [
        each.input for each in there if each.return_ns is not None and each.return_ns < row.call_ns
    ]
    values = over[:1] or [each.input for each in there]  # who was first told it is theirs
    said = " or ".join(str(value) for value in dict.fromkeys(values))
    if row.output is None and row.told:  # a poll's answer is a list: it is shown, not judged here
        return said, False
    if over:
        return said, row.output not in values
    return f"{said}, or {NOTHING} yet", row.output is not None and row.output not in values
