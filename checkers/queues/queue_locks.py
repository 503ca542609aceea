"""Two consumers never hold the lock of one queue at the same time.

A `lock` is ok with output 1 if the consumer now holds the lock, with 0 if another one does. It is
held from the answer to the call of `unlock`, or to the consumer's last operation on the queue.

Source: RocketMQ's RebalanceLockManager and its documentation of ordered messages. A new leader has
no locks, there as here: an overlap across a change of leaders breaks no promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.findings import Findings, gather
from shaketable.checkers.queues.quiet_times import RECOVERY_NS, disturbances
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "queue-locks"
OVERLAP: Final = "lock-overlap"
TRUSTED_NS: Final = 20_000_000_000
"""For so long a lock counts as held without being renewed; brokers keep it for 60 s."""
COLUMNS: Final = ("op", "process", "f", "output", "call_ns", "return_ns", "outcome", "node")


class QueueLocks:
    """While one consumer holds the lock of a queue, the broker gives it to no other.

    Judges each queue by itself. Overlaps are counted, and break no promise, if the locks may come
    from two terms: if two nodes granted them, if another node answered any operation between them,
    if a later term was first seen between them or soon after, if a fault was in force between them
    or had just been undone.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one queue's locks."""
        table = tables["operations"].select([*COLUMNS, "key"]).sort_by("op")
        rows = table.to_pylist()
        holds = _holds(rows)
        served = [(row["call_ns"], row["node"]) for row in rows if row["node"] is not None]
        overlaps = _overlaps(holds)
        wrong = [pair for pair in overlaps if not _may_be_of_two_terms(*pair, served, context)]
        findings = Findings()
        key = table["key"][0].as_py() if rows else ""

        def describe(n: int) -> Finding:
            first, second = wrong[n]
            message = (
                f"{key}: process {second.process} (op {second.op}) was given the lock by"
                f" {first.node}"
                f" while process {first.process} held it (op {first.op}), for another"
                f" {(first.end_ns - second.start_ns) / 1e6:.0f} ms at least."
            )
            more = details(context, second.start_ns)
            return Finding(OVERLAP, message, key, None, (first.op, second.op), more)

        findings.add(OVERLAP, range(len(wrong)), describe)
        refused = sum(row["f"] == "lock" and row["output"] == 0 for row in rows)
        counts = {"queues": 1, "locked": len(holds), "refused": refused}
        return findings.table(counts | {"across_leaders": len(overlaps) - len(wrong)})

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        clean = (
            f"a queue was locked {counts.get('locked', 0)} times, by one consumer at a time"
            f" ({counts.get('refused', 0)} others were refused)"
        )
        if across := counts.get("across_leaders"):
            clean += f", but for {across} times across a change of leaders, which knows no locks"
        return conclude(NAME, gathered, context, clean=clean, what=("locked",))


PLUGIN = QueueLocks()


@dataclass(frozen=True, slots=True)
class _Hold:
    """A lock that a consumer certainly held from `start_ns` to `end_ns`; called at `call_ns`."""

    op: int
    process: int
    node: str | None
    call_ns: int
    start_ns: int
    end_ns: int


def _holds(rows: list[dict[str, object]]) -> list[_Hold]:
    """Return the holds of all processes, in the order of their starts."""
    holds: list[_Hold] = []
    by_process: dict[object, list[dict[str, object]]] = {}
    for row in rows:
        by_process.setdefault(row["process"], []).append(row)
    for mine in by_process.values():
        for place, row in enumerate(mine):
            if row["f"] == "lock" and row["outcome"] == "ok" and row["output"] == 1:
                holds.append(_hold(row, mine[place + 1 :]))
    return sorted(holds, key=lambda hold: hold.start_ns)


def _hold(row: dict[str, object], later: list[dict[str, object]]) -> _Hold:
    start_ns = _number(row["return_ns"])
    end_ns = start_ns
    for other in later:
        # An operation on the queue shows that it still held the lock; an unlock releases it.
        end_ns = _number(other["call_ns"])
        if other["f"] in ("lock", "unlock"):
            break
        if other["return_ns"] is not None and other["outcome"] == "ok":
            end_ns = _number(other["return_ns"])
    node = row["node"]
    assert node is None or isinstance(node, str)
    op, process, call_ns = (_number(row[name]) for name in ("op", "process", "call_ns"))
    return _Hold(op, process, node, call_ns, start_ns, min(end_ns, start_ns + TRUSTED_NS))


def _number(value: object) -> int:
    assert isinstance(value, int), "ok operations have all of their times"
    return value


def _overlaps(holds: list[_Hold]) -> list[tuple[_Hold, _Hold]]:
    """Return each hold that started while another process held the queue, after that one."""
    found = []
    open_holds: list[_Hold] = []
    for hold in holds:
        open_holds = [one for one in open_holds if one.end_ns > hold.start_ns]
        found += [(one, hold) for one in open_holds if one.process != hold.process]
        if hold.end_ns > hold.start_ns:
            open_holds.append(hold)
    return [(one, hold) for one, hold in found if min(one.end_ns, hold.end_ns) > hold.start_ns]


def _may_be_of_two_terms(
    first: _Hold, second: _Hold, served: list[tuple[int, str]], context: CheckContext
) -> bool:
    """Return whether another term may have started between the two grants."""
    if first.node is None or first.node != second.node:
        return True
    start_ns, stop_ns = first.call_ns, second.start_ns
    if any(start_ns <= at <= stop_ns and node != first.node for at, node in served):
        return True
    return any(
        from_ns <= stop_ns and to_ns + RECOVERY_NS >= start_ns
        for from_ns, to_ns in disturbances(context)
    )
