"""Judges the parts into which checkers.engine.log_parts cuts logs and appends. Pure.

Two rounds. In the first every part is judged by itself. What a part cannot tell, it names:
places at which appends are not what they must be, and windows in which logs differ. In
the second, all that stands at those places, or in those windows, comes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from shaketable.checkers.engine.judge import TAGGED, judged
from shaketable.checkers.engine.log_parts import (
    APPENDED,
    COPIED,
    COUNTED,
    DAMAGED,
    KEPT,
    PACKED,
    RANGE,
    SUMMED,
    UNREADABLE,
    Plan,
    ValueChecker,
    WindowChecker,
    deal,
)
from shaketable.checkers.logs.append_fates import STANDING
from shaketable.checkers.logs.append_places import places_of
from shaketable.checkers.logs.log_part import LogPart, entries_in, load_part
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.history.schema import FINDINGS

UNSETTLED_AT, OTHER_WINDOWS = "unsettled-at", "other-windows"
"""Kinds of rows of TAGGED that are no findings: `operations` has places, or windows."""

STANDING_AT = "standing-at"
"""Kind of rows of PACKED: tables of STANDING. Those of UNSETTLED have the kind UNSETTLED_AT."""


def judge_part(rows: pa.Table, plan: Plan) -> pa.Table:
    """Judge one part, all rows of PACKED that have its number; return rows of TAGGED.

    Besides findings it returns rows of UNSETTLED_AT and OTHER_WINDOWS, and hands on those
    of UNREADABLE and RANGE.
    """
    number = rows["part"][0].as_py()
    if number >= plan.parts:
        return _judge_windows(rows, plan)
    found = [TAGGED.empty_table()]
    for kind in (UNREADABLE, RANGE):
        told = [
            {"kind": kind, "message": text.to_pybytes().decode()} for text in _payloads(rows, kind)
        ]
        found.append(pa.Table.from_pylist(told, TAGGED))
    part = _load(rows)
    found += [
        judged(checker.name, partial(_values, checker, part, plan.context, number))
        for checker in plan.by_value
    ]
    return pa.concat_tables(found)


def _values(checker: ValueChecker, part: LogPart, context: CheckContext, number: int) -> pa.Table:
    findings, unsettled = checker.judge_values(part, context)
    places = np.unique(places_of(unsettled)).tolist()
    return pa.concat_tables([findings, _note(UNSETTLED_AT, places, number)])


def _judge_windows(rows: pa.Table, plan: Plan) -> pa.Table:
    found = [TAGGED.empty_table()]
    summaries, entries = _tables(rows, SUMMED), _tables(rows, KEPT)
    for checker in plan.by_window:
        judge = partial(_windows, checker, summaries, entries, plan.context)
        found.append(judged(checker.name, judge))
    return pa.concat_tables(found)


def _windows(
    checker: WindowChecker,
    summaries: Sequence[pa.Table],
    entries: Sequence[pa.Table],
    context: CheckContext,
) -> pa.Table:
    findings, others = checker.judge_windows(summaries, entries, context)
    return pa.concat_tables([findings, _note(OTHER_WINDOWS, others)])


def open_places(
    rows: pa.Table,
    plan: Plan,
    checker: ValueChecker,
    asked: tuple[bytes, frozenset[int]],
    parts: int,
) -> pa.Table:
    """Return what one part has to tell of some places, dealt to `parts` by place (PACKED).

    `asked` has the bits of an array with an element each of PLACES, and the parts with
    unsettled appends. These are told, and what stands at their places, whoever wrote it.
    """
    places, unsettled_in = asked
    is_wanted = np.unpackbits(np.frombuffer(places, np.uint8)).astype(np.bool_)
    part = _load(rows)
    tables = {STANDING_AT: checker.standing(part, is_wanted, plan.context)}
    if rows["part"][0].as_py() in unsettled_in:
        tables[UNSETTLED_AT] = checker.judge_values(part, plan.context)[1]
    told = [PACKED.empty_table()]
    for kind, table in tables.items():
        batches = list(deal(kind, table, places_of(table) % parts))
        told.append(pa.Table.from_batches(batches, PACKED))
    return pa.concat_tables(told)


def judge_places(rows: pa.Table, plan: Plan, checker: ValueChecker) -> pa.Table:
    """Judge the unsettled appends of some places, told by `open_places`; rows of TAGGED."""
    unsettled, standing = _tables(rows, UNSETTLED_AT), _tables(rows, STANDING_AT)
    if not unsettled:  # a place that shares another's number
        return TAGGED.empty_table()
    standing.append(STANDING.empty_table())
    return judged(checker.name, partial(checker.judge_places, unsettled, standing, plan.context))


def _load(rows: pa.Table) -> LogPart:
    """Unpack a part that holds values."""
    copies, damaged = _tables(rows, COPIED), _tables(rows, DAMAGED)
    entries = sum(entries_in(table) for table in copies)
    entries += sum(table.num_rows for table in damaged)
    entries += sum(int(payload.to_pybytes()) for payload in _payloads(rows, COUNTED))
    return load_part(_tables(rows, APPENDED), copies, damaged, entries)


def _payloads(rows: pa.Table, kind: str) -> list[pa.Buffer]:
    """Return the payloads of a kind, without a copy of them."""
    kinds = rows["kind"].to_pylist()
    column = rows["payload"]
    return [column[n].as_buffer() for n in range(len(kinds)) if kinds[n] == kind]


def _tables(rows: pa.Table, kind: str) -> list[pa.Table]:
    return [pa.ipc.open_stream(payload).read_all() for payload in _payloads(rows, kind)]


def _note(kind: str, numbers: Sequence[int], part: int | None = None) -> pa.Table:
    """Return a row of FINDINGS that is no finding, or none where there are no numbers.

    `operations` has the numbers, `offset` the part.
    """
    row = {"kind": kind, "count": 0, "operations": list(numbers), "offset": part}
    return pa.Table.from_pylist([row] if numbers else [], FINDINGS)
