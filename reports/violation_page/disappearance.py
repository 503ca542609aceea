"""When something acknowledged was last there and first not, and what struck the group in between.

By what clients were told alone: looks that still found it, and the first answer that cannot be if
it is still there. What was acknowledged under no fault at all may be lost under a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from harness.history.schema import APPENDING
from reports.model import FaultRow, OperationRow, Violation
from reports.plain_json import ID_MAX
from reports.run_page.violations import Surroundings, rows_of
from reports.violation_page.claims import base_kind
from reports.violation_page.model import Disappearance

LOST: Final = frozenset({"lost-append", "altered"})
"""Kinds about something that was there and is not."""
STRUCK_MAX: Final = 3
"""Faults in between that are told in words."""
NS_PER_S: Final = 1e9


def disappearance_of(violation: Violation, surroundings: Surroundings) -> Disappearance | None:
    """Find between which answers it went missing; None where that is not what was found."""
    acknowledged_ns, offset, value = violation.acknowledged_ns, violation.offset, violation.value
    if base_kind(violation.kind) not in LOST or violation.key is None:
        return None
    if acknowledged_ns is None or offset is None or value is None or abs(value) > ID_MAX:
        return None
    queue = surroundings.queue(violation.key)
    answered = queue.filter(pc.equal(queue["outcome"], "ok"))
    looks = answered.filter(_all(_is(answered, "read"), pc.equal(answered["offset"], offset)))
    last = _last(looks.filter(pc.equal(looks["output"], value)))
    since_ns = acknowledged_ns if last is None else max(acknowledged_ns, last.return_ns or 0)
    later = answered.filter(pc.greater(answered["call_ns"], acknowledged_ns))
    sign = _first(pa.concat_tables(_signs(later, offset, value, since_ns)))
    if sign is not None and sign.return_ns is not None and sign.return_ns < since_ns:
        since_ns = acknowledged_ns  # two who lead answer side by side
    return Disappearance(since_ns, last, sign)


def _signs(later: pa.Table, offset: int, value: int, since_ns: int) -> list[pa.Table]:
    """Return what cannot be answered while the value stands at its offset.

    What is told to look too early may be only late: looks count from when it was last seen.
    """
    is_late = pc.greater(later["call_ns"], since_ns)
    is_there = pc.fill_null(pc.equal(later["output"], value), False)
    is_look = _all(_is(later, "read"), pc.equal(later["offset"], offset), is_late)
    is_append = pc.is_in(later["f"], value_set=pa.array(APPENDING))
    is_other = pc.fill_null(pc.not_equal(later["input"], value), False)
    is_before = _all(is_append, pc.less_equal(later["offset"], offset), is_other)
    is_short = _all(_is(later, "end"), pc.less_equal(later["output"], offset), is_late)
    masks = (_all(is_look, pc.invert(is_there)), is_before, is_short)
    return [later.filter(mask) for mask in masks]


def _is(table: pa.Table, f: str) -> Any:
    return pc.equal(table["f"], f)


def _all(*masks: Any) -> Any:
    whole = pc.fill_null(masks[0], False)
    for mask in masks[1:]:
        whole = pc.and_(whole, pc.fill_null(mask, False))
    return whole


def _last(table: pa.Table) -> OperationRow | None:
    return _at(table, pc.max(table["return_ns"]))


def _first(table: pa.Table) -> OperationRow | None:
    return _at(table, pc.min(table["return_ns"]))


def _at(table: pa.Table, return_ns: pa.Scalar) -> OperationRow | None:
    """Return the operation that returned at that moment; None where no operation did."""
    if not return_ns.is_valid:
        return None
    return next(iter(rows_of(table.filter(pc.equal(table["return_ns"], return_ns)), set())), None)


def struck_between(gone: Disappearance, faults: Sequence[FaultRow]) -> tuple[FaultRow, ...]:
    """Return the faults that were on, and may have bitten, while it went missing."""
    until_ns = gone.until_ns
    return tuple(
        row
        for row in faults
        if row.window.may_have_bitten
        and row.window.stop_ns >= gone.since_ns
        and (until_ns is None or row.window.from_ns <= until_ns)
    )


def told(gone: Disappearance, violation: Violation, faults: Sequence[FaultRow]) -> str:
    """Say in sentences until when it was there, what first showed that it is not, and what struck.

    Args:
        gone: what `disappearance_of` found.
        violation: what was lost.
        faults: all faults of the run.
    """
    said = [_last_words(gone.last_look), _first_words(gone, violation)]
    struck = struck_between(gone, faults)
    between = "In between" if gone.until_ns is not None else "After that"
    for row in struck[:STRUCK_MAX]:
        window = row.window
        did = f" ({window.evidence})" if window.evidence else ""
        said.append(
            f"{between} came {window.name} {window.fault}, {window.description}, from"
            f" {_s(window.from_ns)} to {_s(window.stop_ns)}{did}."
            if window.from_ns > gone.since_ns
            else f"All the while {window.name} {window.fault} was on, {window.description}, from"
            f" {_s(window.from_ns)} to {_s(window.stop_ns)}{did}."
        )
    if len(struck) > STRUCK_MAX:
        said.append(f"So were {len(struck) - STRUCK_MAX} more faults.")
    if not struck:
        said.append(f"{between} no fault is known to have struck anything.")
    return " ".join(said)


def _last_words(look: OperationRow | None) -> str:
    if look is None or look.return_ns is None:
        return "No client is known to have read it."
    by = f", answered by {look.node}" if look.node else ""
    return f"Client {look.process} still read it at {_s(look.return_ns)}{by}."


def _first_words(gone: Disappearance, violation: Violation) -> str:
    sign = gone.first_sign
    if sign is None or sign.return_ns is None:
        return (
            "No client was told anything that shows it gone: that was seen in the nodes' logs when"
            " the run was over."
        )
    by = f"{sign.node} " if sign.node else "the group "
    if sign.f in APPENDING:
        where = "the same offset" if sign.offset == violation.offset else f"offset {sign.offset}"
        did = f"{by}gave {where} to client {sign.process}'s append of {sign.input}"
    elif sign.f == "end":
        did = f"{by}told client {sign.process} that the queue ends at {sign.output}"
    else:
        found = "nothing" if sign.output is None else str(sign.output)
        did = f"{by}answered client {sign.process}'s read of it with {found}"
    return f"The first sign that it was gone came at {_s(sign.return_ns)}: {did}."


def _s(time_ns: int) -> str:
    return f"{time_ns / NS_PER_S:.3f} s"
