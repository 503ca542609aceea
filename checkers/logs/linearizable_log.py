"""Each queue behaves, to its clients, as one append-only log with offsets, linearizably.

Judges the operations append, read and end together, queue by queue. The rules and why
they suffice stand in checkers.special.log_order.

Source: Herlihy & Wing 1990; Jepsen's kafka checker for some of the anomalies' names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.findings import Findings, gather, name_of, settle, windows_at
from checkers.special.log_order import (
    FUNCTIONS,
    NOBODY,
    Anomaly,
    Ints,
    Queue,
    anomalies,
    load_queue,
    repeated_value,
)
from harness.history.schema import FINDINGS
from harness.plugins import CheckContext
from harness.verdict import Finding, Verdict

NAME = "linearizable-log"
UNPROMISED = " (not promised)"
ABSENCE_KINDS = frozenset(("phantom-read", "unexplained-offset"))
"""Kinds that an incomplete history can bring forth: what was invoked may be missing from it."""

_MESSAGES = {
    "negative-offset": "{this} is about offset {place}, which no log has",
    "offset-given-twice": "{this} and {other} were both acknowledged at offset {place}",
    "phantom-read": "{this} returned {output}, which nobody ever appended",
    "aborted-read": "{this} returned {output}, but {other} certainly failed",
    "inconsistent-read": "{this} returned {output}, but {other} stands at offset {place}",
    "duplicate": "{this} returned {output}, which stands at offset {other_place} as well",
    "append-order": (
        "{this} got offset {place}, although {other} had returned offset {other_place} before"
        " it was called"
    ),
    "future-read": (
        "{this} had returned a value before {other}, at offset {other_place}, was called"
    ),
    "future-end": (
        "{this} had returned {output} before {other}, at offset {other_place}, was called"
    ),
    "stale-read": (
        "{this} found nothing, although {other} had returned offset {other_place} before"
    ),
    "stale-end": (
        "{this} returned {output}, although {other} had returned offset {other_place} before"
    ),
    "read-went-back": "{this} found nothing, although {other} had already seen the log longer",
    "end-went-back": "{this} returned {output}, although {other} had already seen the log longer",
    "unexplained-offset": (
        "{this} shows that offset {place} is taken, but no append that could stand there had"
        " been called"
    ),
}


class LinearizableLog:
    """Checker "linearizable-log": each queue by itself, from the operations alone."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Check one queue's operations.

        What the target promises to be linearizable is judged by itself. If that is not
        everything, all is looked at together once more, and what only shows then is marked.

        Raises:
            ValueError: an operation that is ok lacks its offset, output or return.
        """
        queue = load_queue(tables["operations"])
        findings = Findings()
        known = queue.is_acked | queue.is_read | queue.is_null | queue.is_end
        counts: dict[str, Any] = {
            "queues": 1,
            "appends_acknowledged": int(queue.is_acked.sum()),
            "appends_unknown": int((queue.is_append & ~queue.is_acked).sum()),
            "reads": int((queue.is_read | queue.is_null).sum()),
            "ends": int(queue.is_end.sum()),
            "judged": int(known.sum()),
        }
        repeated = repeated_value(queue)
        if repeated is not None:
            counts["repeated"] = [f"{queue.input[repeated]} in {queue.key}"]
            return findings.table(counts)
        promised = context.promises.linearizable
        judged = []
        if "append" in promised:
            judged = anomalies(queue.without(FUNCTIONS - promised))
        _report(judged, queue, context, findings, "")
        if not promised >= FUNCTIONS:
            more = _beyond(judged, anomalies(queue))
            _report(more, queue, context, findings, UNPROMISED)
        return findings.table(counts)

    def check_keys(self, operations: pa.Table, bounds: Ints, context: CheckContext) -> pa.Table:
        """Check keys that came together, from the coded columns: nothing becomes text first."""
        found = [
            self.check({"operations": operations.slice(begin, end - begin)}, context)
            for begin, end in pairwise(bounds.tolist())
        ]
        return pa.concat_tables([FINDINGS.empty_table(), *found])

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        doubts = [
            f"a value was appended more than once, so reads cannot be told apart: {value}"
            for checked in gathered.checked
            for value in checked.get("repeated", ())
        ]
        if not counts.get("judged"):
            doubts.append("no append, read or end of known outcome in the history")
        clean = f"{counts.get('queues', 0)} queues linearizable as append-only logs"
        return settle(
            NAME,
            gathered,
            context,
            clean=clean,
            doubts=doubts,
            doubtful=ABSENCE_KINDS,
            observed=_why_observed,
        )


PLUGIN = LinearizableLog()


def _why_observed(kind: str) -> str | None:
    return "the target does not promise it" if kind.endswith(UNPROMISED) else None


def _beyond(judged: Iterable[Anomaly], more: Iterable[Anomaly]) -> list[Anomaly]:
    """Return what `more` has beyond `judged`, kind by kind and operation by operation."""
    known = {anomaly.kind: anomaly.rows for anomaly in judged}
    beyond = []
    for anomaly in more:
        is_new = ~np.isin(anomaly.rows, known.get(anomaly.kind, ()))
        rows, witnesses = anomaly.rows[is_new], anomaly.witnesses[is_new]
        beyond.append(Anomaly(anomaly.kind, rows, witnesses, anomaly.places[is_new]))
    return beyond


def _report(
    found: Iterable[Anomaly], queue: Queue, context: CheckContext, findings: Findings, mark: str
) -> None:
    for anomaly in found:
        kind = anomaly.kind + mark

        def describe(n: int, anomaly: Anomaly = anomaly, kind: str = kind) -> Finding:
            return _describe(anomaly, n, kind, queue, context)

        findings.add(kind, range(len(anomaly.rows)), describe)


def _describe(anomaly: Anomaly, n: int, kind: str, queue: Queue, context: CheckContext) -> Finding:
    """Put one anomaly into words, with the operations that witness it."""
    row, witness = int(anomaly.rows[n]), int(anomaly.witnesses[n])
    place = int(anomaly.places[n])
    rows = [row] if witness == NOBODY else [row, witness]
    message = _MESSAGES[anomaly.kind].format(
        this=_operation(queue, row),
        other="nothing" if witness == NOBODY else _operation(queue, witness),
        place=place,
        output=int(queue.output[row]),
        other_place=_place_of(queue, witness) if witness != NOBODY else "none",
    )
    details: dict[str, Any] = {"process": int(queue.process[row])}
    if queue.is_append[row]:
        details["value"] = int(queue.input[row])
    elif queue.is_read[row]:
        details["value"] = int(queue.output[row])
    if inside := windows_at(context, int(queue.call[row])):
        details["faults"] = [name_of(window) for window in inside]
    operations = tuple(int(queue.op[each]) for each in rows)
    return Finding(kind, f"{queue.key}: {message}.", queue.key, place, operations, details)


def _operation(queue: Queue, row: int) -> str:
    """Name an operation: "the append of 17 by process 2 (op 88)"."""
    if queue.is_append[row] or queue.is_failed[row]:
        what = f"the append of {queue.input[row]}"
    elif queue.is_end[row]:
        what = "the end read"
    else:
        what = f"the read at offset {queue.offset[row]}"
    return f"{what} by process {queue.process[row]} (op {queue.op[row]})"


def _place_of(queue: Queue, row: int) -> str:
    """Say at which offset an append stands, as far as the history says."""
    if queue.is_acked[row]:
        return str(int(queue.offset[row]))
    seen = np.flatnonzero(queue.is_read & (queue.output == queue.input[row]))
    return str(int(queue.offset[seen[0]])) if len(seen) else "unknown"
