"""Checks that each queue is, to its clients, a linearizable append-only log with offsets.

Judges the operations append, read and end together, queue by queue. checkers.special.log_order has
the rules, and why they suffice.

By these rules, an indeterminate append whose value was read is at the offset of the read. The
nodes' logs may resolve the others (checkers.evidence). A violation that shows only then gets a
kind of its own: the answers and the logs are not one history.

Source: Herlihy & Wing 1990; Jepsen's kafka checker for some of the anomalies' names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from shaketable.checkers.evidence import (
    BY_LOGS,
    CITED_MAX,
    RESOLVED,
    Citation,
    LogValues,
    Resolved,
    citation_sentence,
    first_citations,
    resolve_outcomes,
    resolved_counts,
    with_resolved,
)
from shaketable.checkers.findings import Findings, fault_name, gather, settle, windows_at
from shaketable.checkers.logs.durability import why_unpromised
from shaketable.checkers.models.model import Values
from shaketable.checkers.special.log_order import (
    FUNCTIONS,
    NO_ROW,
    Anomaly,
    Ints,
    Queue,
    anomalies,
    load_queue,
    repeated_value,
)
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict
from shaketable.harness.history.schema import FINDINGS

NAME = "linearizable-log"
UNPROMISED = " (not promised)"
WITH_LOGS = " (with the nodes' logs)"
"""Suffix of the kinds of findings for which the nodes' logs resolved an indeterminate append."""
LOGS_NOT_ASKED = "logs_not_asked"
"""Key in `Verdict.data`: why indeterminate appends were not looked up in the nodes' logs."""
APPENDS = Values(frozenset(("append",)), frozenset(("read",)), is_log=True)
RESOLVED_ROWS_MAX = 2_000_000
"""Operations of a queue above which none are resolved, to save memory; the rules need it not."""
REFUSED_MAX = 3
"""Failed appends that a finding names if no other append can have taken an offset."""
ABSENCE_KINDS = frozenset(("phantom-read", "unexplained-offset"))
"""Kinds that an incomplete history may cause: the invocation may be missing from it."""
NEVER_BY_LOSS = frozenset(
    ("negative-offset", "phantom-read", "aborted-read", "duplicate", "unexplained-offset")
)
"""Kinds that no loss explains. The others show as well where a log that has lost its last entries
goes on: it gives their offsets again, and is shorter than it was."""

_MESSAGES = {
    "negative-offset": "{this} is about offset {place}, which no log has",
    "offset-given-twice": "{this} and {other} were both acknowledged at offset {place}",
    "phantom-read": "{this} returned {output}, which no client ever appended",
    "aborted-read": "{this} returned {output}, but {other} certainly failed",
    "inconsistent-read": "{this} returned {output}, but {other} is at offset {place}",
    "duplicate": "{this} returned {output}, which is at offset {other_place} as well",
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
        "{this} shows that offset {place} is taken, but no append that could be there had"
        " been called"
    ),
}


class LinearizableLog:
    """The operations on each log are linearizable.

    An engine that has the nodes' logs passes what they hold of indeterminate appends
    (`with_evidence`).
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def __init__(self, held: LogValues | None = None, logs_not_asked: str | None = None) -> None:
        """Take what the logs hold, or why they were not read."""
        self._held, self._logs_not_asked = held, logs_not_asked

    def wanted_values(self) -> Values:
        """Return which operations put the values to look up in the nodes' logs."""
        return APPENDS

    def with_evidence(self, held: LogValues | None, why_not: str | None) -> LinearizableLog:
        """Return a checker that knows what the nodes' logs hold of these values."""
        return LinearizableLog(held, why_not)

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Check one queue's operations.

        Operations that the target promises to be linearizable are judged by themselves. If that
        is not all, all are judged together once more; what shows only then is marked.

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
        subject = _Subject(queue, context)
        if "append" in promised:
            judged = anomalies(queue.without(FUNCTIONS - promised))
            subject = _Subject(queue, context, self._resolved(tables["operations"], context).cited)
        _report(judged, subject, findings, "")
        if not promised >= FUNCTIONS:
            more = _beyond(judged, anomalies(queue))
            _report(more, subject, findings, UNPROMISED)
        counts |= resolved_counts(subject.cited.values()) | first_citations(subject.cited.values())
        if BY_LOGS in counts:
            self._check_with_logs(tables["operations"], context, findings)
        return findings.table(counts)

    def _resolved(
        self, operations: pa.Table, context: CheckContext, *, with_logs: bool = True
    ) -> Resolved:
        """Resolve appends by reads, if these are promised linearizable, then by the nodes' logs."""
        if operations.num_rows > RESOLVED_ROWS_MAX:
            return Resolved(operations)
        values = replace(APPENDS, shows=APPENDS.shows & context.promises.linearizable)
        return resolve_outcomes(operations, self._held if with_logs else None, context, values)

    def _check_with_logs(
        self, operations: pa.Table, context: CheckContext, findings: Findings
    ) -> None:
        """Report what is wrong only once the nodes' logs have resolved appends."""
        unpromised = FUNCTIONS - context.promises.linearizable
        by_reads = self._resolved(operations, context, with_logs=False)
        known = anomalies(load_queue(by_reads.operations).without(unpromised))
        resolved = self._resolved(operations, context)
        queue = load_queue(resolved.operations)
        more = _beyond(known, anomalies(queue.without(unpromised)))
        _report(more, _Subject(queue, context, resolved.cited), findings, WITH_LOGS)

    def check_keys(self, operations: pa.Table, bounds: Ints, context: CheckContext) -> pa.Table:
        """Check the keys of one table, from its coded columns, without decoding texts first."""
        found = [
            self.check({"operations": operations.slice(first, end - first)}, context)
            for first, end in pairwise(bounds.tolist())
        ]
        return pa.concat_tables([FINDINGS.empty_table(), *found])

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        doubts = [
            f"a value was appended more than once, so reads cannot be distinguished: {value}"
            for checked in gathered.checked
            for value in checked.get("repeated", ())
        ]
        if not counts.get("judged"):
            doubts.append("no append, read or end of known outcome in the history")
        clean = f"{counts.get('queues', 0)} queues linearizable as append-only logs"
        verdict = settle(
            NAME,
            gathered,
            context,
            clean=clean,
            doubts=doubts,
            doubtful=ABSENCE_KINDS,
            observed=partial(_why_observed, context),
        )
        if self._logs_not_asked is not None:
            reason = f"the nodes' logs were not read: {self._logs_not_asked}"
            verdict = replace(verdict, data={**verdict.data, LOGS_NOT_ASKED: reason})
        return with_resolved(verdict, gathered)


PLUGIN = LinearizableLog()


@dataclass(frozen=True, slots=True)
class _Subject:
    """The queue that anomalies are about; `cited` has why indeterminate appends count."""

    queue: Queue
    context: CheckContext
    cited: Mapping[int, Citation] = field(default_factory=dict)


def _why_observed(context: CheckContext, kind: str) -> str | None:
    if kind.endswith(UNPROMISED):
        return "the target does not promise it"
    return None if kind in NEVER_BY_LOSS else why_unpromised(context)


def _beyond(judged: Iterable[Anomaly], more: Iterable[Anomaly]) -> list[Anomaly]:
    """Return what `more` has beyond `judged`, kind by kind and operation by operation."""
    known = {anomaly.kind: anomaly.rows for anomaly in judged}
    beyond = []
    for anomaly in more:
        is_new = ~np.isin(anomaly.rows, known.get(anomaly.kind, ()))
        rows, witnesses = anomaly.rows[is_new], anomaly.witnesses[is_new]
        beyond.append(Anomaly(anomaly.kind, rows, witnesses, anomaly.places[is_new]))
    return beyond


def _report(found: Iterable[Anomaly], subject: _Subject, findings: Findings, suffix: str) -> None:
    for anomaly in found:
        kind = anomaly.kind + suffix

        def describe(n: int, anomaly: Anomaly = anomaly, kind: str = kind) -> Finding:
            return _describe(anomaly, n, kind, subject)

        findings.add(kind, range(len(anomaly.rows)), describe)


def _describe(anomaly: Anomaly, n: int, kind: str, subject: _Subject) -> Finding:
    """Describe one anomaly, with the operations that witness it."""
    queue, context = subject.queue, subject.context
    row, witness = int(anomaly.rows[n]), int(anomaly.witnesses[n])
    place = int(anomaly.places[n])
    rows = [row] if witness == NO_ROW else [row, witness]
    message = _MESSAGES[anomaly.kind].format(
        this=_operation(queue, row),
        other="nothing" if witness == NO_ROW else _operation(queue, witness),
        place=place,
        output=int(queue.output[row]),
        other_place=_place_of(queue, witness) if witness != NO_ROW else "none",
    )
    details: dict[str, Any] = {"process": int(queue.process[row])}
    if queue.is_append[row]:
        details["value"] = int(queue.input[row])
    elif queue.is_read[row]:
        details["value"] = int(queue.output[row])
    if inside := windows_at(context, int(queue.call[row])):
        details["faults"] = [fault_name(window) for window in inside]
    operations = tuple(int(queue.op[each]) for each in rows)
    needed = [op for op in operations if op in subject.cited]
    if anomaly.kind == "unexplained-offset":  # appends resolved as failed leave the offset bare
        needed += [op for op, row in subject.cited.items() if row["outcome"] == "fail"]
    if needed:
        details[RESOLVED] = [subject.cited[op]["message"] for op in needed[:CITED_MAX]]
    refused = _refused(subject, row) if anomaly.kind == "unexplained-offset" else []
    operations += tuple(int(queue.op[each]) for each in refused)
    prefix = "with what the nodes' logs hold, " if kind.endswith(WITH_LOGS) else ""
    text = f"{queue.key}: {prefix}{message}.{citation_sentence(subject.cited, needed)}"
    if refused:
        names = " or ".join(_operation(queue, each) for each in refused)
        text += f" Answered as failed, and yet stored there, may be {names}."
    return Finding(kind, text, queue.key, place, operations, details)


def _refused(subject: _Subject, row: int) -> list[int]:
    """Return failed appends, called before this row returned, that may hold its offset after all.

    The REFUSED_MAX called last: no other append is left that could be there. Indeterminate ones
    that evidence resolved as failed are left out: no answer called them failed.
    """
    queue = subject.queue
    was_answered = ~np.isin(queue.op, list(subject.cited))
    failed = np.flatnonzero(queue.is_failed & was_answered & (queue.call < queue.end[row]))
    return [int(each) for each in failed[np.argsort(queue.call[failed])][-REFUSED_MAX:][::-1]]


def _operation(queue: Queue, row: int) -> str:
    """Return an operation's name for messages: "the append of 17 by process 2 (op 88)"."""
    if queue.is_append[row] or queue.is_failed[row]:
        what = f"the append of {queue.input[row]}"
    elif queue.is_end[row]:
        what = "the end read"
    else:
        what = f"the read at offset {queue.offset[row]}"
    return f"{what} by process {queue.process[row]} (op {queue.op[row]})"


def _place_of(queue: Queue, row: int) -> str:
    """Return the offset of an append as text, "unknown" if the history does not show it."""
    if queue.is_acked[row]:
        return str(int(queue.offset[row]))
    seen = np.flatnonzero(queue.is_read & (queue.output == queue.input[row]))
    return str(int(queue.offset[seen[0]])) if len(seen) else "unknown"
