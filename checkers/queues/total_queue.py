"""What goes into a queue comes out of it, in any order.

Source: jepsen.checker "total-queue". Different from it: an element counts as lost only if the queue
was found empty after it was acknowledged, and not if an indeterminate dequeue may have taken it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.anomalies.observations import NEVER, Answers, Bools, Ints
from shaketable.checkers.findings import Findings, gather
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "total-queue"
LOST, UNEXPECTED, DUPLICATED = "lost-element", "unexpected-element", "duplicated-element"


class TotalQueue:
    """Every acknowledged element is dequeued, and nothing else is.

    Elements that came out more often than they were enqueued are reported as duplicated, which is a
    violation only if the target excludes it: most queues deliver at least once.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Count what went in and what came out of one queue, element by element."""
        rows = Answers(tables["operations"], ("enqueue", "dequeue", "drain"))
        balance = _balance(rows)
        findings = Findings()
        is_unexpected = (balance.taken > 0) & (balance.acked + balance.unknown == 0)
        possible = balance.acked + balance.unknown
        is_duplicated = (possible > 0) & (balance.taken > possible)
        is_missing = balance.acked > balance.taken
        last_empty = _last_empty(rows, balance.takes)
        is_lost = is_missing & (balance.acked_by_ns < last_empty)
        takes = rows.is_("dequeue", "drain") & ~rows.is_ok & ~rows.is_failed
        lost = int((balance.acked - balance.taken)[is_lost].sum())
        excused = lost if (takes & rows.is_("drain")).any() else int(takes.sum())
        note = f"; at most {excused} of {lost} may be with those who never got an answer" * (
            excused > 0
        )
        if lost > excused:
            _add(findings, LOST, is_lost, balance, rows, context, f"was never dequeued{note}")
        _add(findings, UNEXPECTED, is_unexpected, balance, rows, context, "was never put in")
        _add(findings, DUPLICATED, is_duplicated, balance, rows, context, "came out too often")
        counts = {
            "queues": 1,
            "acknowledged": int(balance.acked.sum()),
            "dequeued": int(balance.taken.sum()),
            "recovered": int(
                ((balance.acked == 0) & (balance.unknown > 0) & (balance.taken > 0)).sum()
            ),
            "left": int((balance.acked - balance.taken)[is_missing & ~is_lost].sum()),
            "lost_or_taken": lost if lost <= excused else 0,
        }
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        doubts = []
        if left := counts.get("left"):
            doubts.append(
                f"{left} acknowledged elements may still be in their queue: no client found it"
                " empty after they were acknowledged"
            )
        if taken := counts.get("lost_or_taken"):
            doubts.append(
                f"{taken} acknowledged elements never came out, but as many dequeues have no known"
                " outcome"
            )
        clean = f"all {counts.get('acknowledged', 0)} acknowledged elements came out"
        what = ("acknowledged", "dequeued")
        return conclude(NAME, gathered, context, clean=clean, what=what, doubts=doubts)


PLUGIN = TotalQueue()


@dataclass(frozen=True, slots=True)
class _Balance:
    """For each value how often it was enqueued and came out, and its rows in `rows`."""

    values: list[int] | list[str]  # as `Answers.elements` has them
    acked: Ints
    unknown: Ints
    taken: Ints
    acked_by_ns: Ints  # when the last of its acknowledgements returned
    of_put: Ints  # index of the value of each row in `puts`
    puts: Ints
    of_take: Ints
    takes: Ints


def _balance(rows: Answers) -> _Balance:
    is_put = rows.is_("enqueue")
    puts = np.flatnonzero(is_put)
    elements = rows.elements(is_put, rows.is_("dequeue", "drain") & rows.is_ok)
    of_put, of_take, takes = elements.of_put, elements.of_shown, elements.shown_by
    size = len(elements.values)
    is_acked = rows.is_ok[puts]
    is_unknown = ~is_acked & ~rows.is_failed[puts]
    by_ns = np.full(size, -NEVER, dtype=np.int64)
    np.maximum.at(by_ns, of_put[is_acked], rows.end[puts[is_acked]])
    return _Balance(
        elements.values,
        np.bincount(of_put[is_acked], minlength=size),
        np.bincount(of_put[is_unknown], minlength=size),
        np.bincount(of_take, minlength=size),
        by_ns,
        of_put,
        puts,
        of_take,
        takes,
    )


def _last_empty(rows: Answers, takes: Ints) -> int:
    """Return when the last dequeue or drain was called that found the queue empty.

    `takes` are the rows that took something.
    """
    is_take = np.zeros(len(rows.op), dtype=np.bool_)
    is_take[takes] = True
    is_empty = rows.is_ok & (rows.is_("drain") | (rows.is_("dequeue") & ~is_take))
    return int(rows.call[is_empty].max(initial=-NEVER))


def _add(
    findings: Findings,
    kind: str,
    mask: Bools,
    balance: _Balance,
    rows: Answers,
    context: CheckContext,
    what: str,
) -> None:
    """Add a finding for each value of `mask`."""

    def describe(n: int) -> Finding:
        puts = balance.puts[balance.of_put == n]
        takes = balance.takes[balance.of_take == n]
        value = balance.values[n]
        about = np.concatenate((puts, takes))
        counts = (
            f"{value} was acknowledged {_times(balance.acked[n])}, and came out"
            f" {_times(balance.taken[n])}"
        )
        failed = int(rows.is_failed[puts].sum())
        if failed:
            counts += f" ({failed} enqueue{'s' if failed > 1 else ''} of it certainly failed)"
        message = f"{rows.about}{value} {what}: {counts}."
        first = int(rows.call[about].min())
        more = details(context, first, value=value)
        return Finding(kind, message, rows.key or None, None, tuple(rows.op[about].tolist()), more)

    findings.add(kind, np.flatnonzero(mask).tolist(), describe)


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(int(count), f"{count} times")
