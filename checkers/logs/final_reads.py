"""Checks durability by final reads, for targets whose logs cannot be read.

The last read of an offset by a client, after all faults were healed, shows whether the append
acknowledged there was kept; of a list, whether all elements were that transactions appended. What
was not read then is neither kept nor lost; the summary has the number of those that were read.

Source: Jepsen's final reads (jepsen.checker `set`, `total-queue`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.findings import Findings, gather, settle
from shaketable.checkers.kernels.transactions.json_text import APPEND, OK, READ
from shaketable.checkers.logs.durability import NOT_JUDGED, why_unpromised
from shaketable.checkers.transactions.history import (
    NotTransactionsError,
    Transactions,
    key_name,
    load_transactions,
)
from shaketable.harness.contracts.isolation import implied
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict
from shaketable.harness.history.schema import APPENDING, TRANSACTION

NAME = "final-reads"
NS_PER_S = 1e9
FRESH: Final = "strong-read-committed"
"""Levels that imply this one show all that was committed before in real time."""
NO_LOGS = "the nodes' logs cannot be read"


class FinalReads:
    """Every acknowledged append is in the final reads, where nodes' logs cannot be read.

    Findings: "lost-append": the last read of its offset after the heal found another value, or
    nothing. Finding nothing proves a loss only if reads are promised to be linearizable: any other
    read may be stale.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Compare one queue's acknowledged appends with the last reads of their offsets."""
        operations = tables["operations"]
        if TRANSACTION in operations["f"].unique().to_pylist():
            return _check_lists(operations, context)
        appends = _acknowledged(operations)
        counts = {"acknowledged": appends.num_rows, "looked_at": 0, "not_found": 0}
        findings = Findings()
        if context.final_from_ns is None or not appends.num_rows:
            return findings.table(counts)
        reads = _last_reads(operations, context.final_from_ns)
        is_fresh = "read" in context.promises.linearizable
        lost = []
        for row in appends.to_pylist():
            read = reads.get(row["offset"])
            if read is None or read["call_ns"] < row["return_ns"]:
                continue  # a read called before the append returned may precede it
            counts["looked_at"] += 1
            if read["output"] == row["input"]:
                continue
            if read["output"] is None and not is_fresh:
                counts["not_found"] += 1
                continue
            lost.append((row, read))
        findings.add("lost-append", range(len(lost)), lambda n: _lost(*lost[n]))
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Report how many appends were read back, and which of them were lost."""
        gathered = gather(findings)
        sums = gathered.sums()
        acknowledged, seen = sums.get("acknowledged", 0), sums.get("looked_at", 0)
        how = f"{NO_LOGS}: judged by what clients read after the heal"
        if not seen:
            return _not_judged(context, int(acknowledged))
        all_ = "all" if seen == acknowledged else f"{seen:,} of"
        clean = f"{how}; {all_} {acknowledged:,} acknowledged appends were looked at, and are"
        doubts = []
        if missing := sums.get("not_found"):
            doubt = f"{how}; {missing:,} of {seen:,} were not found, by reads that may be stale"
            why = why_unpromised(context)
            if why is None:
                doubts.append(doubt)
            else:  # there is no promise to doubt
                clean = f"{doubt}; {why}"
        verdict = settle(
            NAME, gathered, context, clean=clean, doubts=doubts,
            observed=lambda _kind: why_unpromised(context),
        )  # fmt: skip
        if verdict.outcome is not Outcome.INVALID:
            return verdict
        summary = f"{verdict.summary} ({how}: {seen:,} of {acknowledged:,} were looked at)"
        return Verdict(
            verdict.checker, verdict.outcome, summary, verdict.findings, verdict.findings_total,
            verdict.counts, verdict.data, verdict.observed,
        )  # fmt: skip


PLUGIN = FinalReads()


# Lists that transactions append to.


def _check_lists(operations: pa.Table, context: CheckContext) -> pa.Table:
    """Compare the acknowledged appends to lists with the last reads of these.

    Transactions that are no lists of steps show nothing that can be looked for.
    """
    counts = {"acknowledged": 0, "looked_at": 0, "not_found": 0}
    try:
        txns = load_transactions(operations.filter(pc.equal(operations["f"], TRANSACTION)))
    except NotTransactionsError:
        return Findings().table(counts)
    of = txns.of_steps()
    is_ok = txns.outcome[of] == OK
    appended = np.flatnonzero(is_ok & (txns.kind == APPEND))
    counts["acknowledged"] = len(appended)
    findings = Findings()
    if context.final_from_ns is None or not len(appended):
        return findings.table(counts)
    is_final = is_ok & (txns.kind == READ) & (txns.call_ns[of] >= context.final_from_ns)
    last = {int(txns.key[place]): place for place in np.flatnonzero(is_final).tolist()}
    is_fresh = _reads_are_fresh(context)
    held = {key: _elements(txns, place) for key, place in last.items()}
    lost: list[tuple[int, int]] = []
    for place in appended.tolist():
        key = int(txns.key[place])
        read = last.get(key)
        if read is None or txns.call_ns[of[read]] < txns.end_ns[of[place]]:
            continue  # a read called before the append returned may precede it
        counts["looked_at"] += 1
        if txns.numbered(place) in held[key]:
            continue
        if is_fresh:
            lost.append((place, read))
        else:
            counts["not_found"] += 1
    findings.add("lost-append", range(len(lost)), lambda n: _lost_element(*lost[n], txns, of))
    return findings.table(counts)


def _reads_are_fresh(context: CheckContext) -> bool:
    """Return whether a read is promised to show all that was acknowledged before it."""
    promises = context.promises
    level = promises.isolation
    respects_time = bool(level) and FRESH in implied(level)
    return respects_time or "read" in promises.linearizable


def _elements(txns: Transactions, place: int) -> frozenset[int]:
    found = txns.numbered(place)
    return frozenset(found) if isinstance(found, tuple) else frozenset()


def _lost_element(place: int, read: int, txns: Transactions, of: npt.NDArray[Any]) -> Finding:
    """Say which transaction appended what is gone, and which one read the list then."""
    by, reader = int(of[place]), int(of[read])
    _, key, value = txns.step(place)
    message = (
        f"{key_name(key)}: {value}, appended by {txns.describe(by)}, acknowledged after"
        f" {txns.end_ns[by] / NS_PER_S:.3f} s, is lost: the last read of that list after the heal"
        f" (op {txns.op[reader]}) did not find it."
    )
    operations = (int(txns.op[by]), int(txns.op[reader]))
    details = {"value": value, "acknowledged_ns": int(txns.end_ns[by])}
    return Finding("lost-append", message, key_name(key), None, operations, details)


def _not_judged(context: CheckContext, acknowledged: int) -> Verdict:
    """Return the verdict if no append was read back: neither a loss nor durability was shown."""
    summary = f"not judged: {NO_LOGS}, and no client read any of {acknowledged:,} acknowledged"
    summary += " appends after the heal"
    is_promised = bool(context.promises.durable_under) and why_unpromised(context) is None
    outcome = Outcome.UNKNOWN if is_promised else Outcome.VALID
    return Verdict(
        NAME, outcome, summary, counts={"acknowledged": acknowledged}, data={NOT_JUDGED: True}
    )


def _acknowledged(operations: pa.Table) -> pa.Table:
    is_append = pc.is_in(operations["f"], value_set=pa.array(APPENDING))
    is_acked = pc.and_(is_append, pc.equal(operations["outcome"], "ok"))
    known = pc.and_(pc.is_valid(operations["offset"]), pc.is_valid(operations["return_ns"]))
    return operations.filter(pc.and_(is_acked, known)).sort_by(
        [("offset", "ascending"), ("op", "ascending")]
    )


def _last_reads(operations: pa.Table, from_ns: int) -> dict[int, dict[str, Any]]:
    """Return by offset the successful read that was called last, at or after `from_ns`."""
    is_read = pc.and_(pc.equal(operations["f"], "read"), pc.equal(operations["outcome"], "ok"))
    is_final = pc.and_(pc.greater_equal(operations["call_ns"], from_ns), is_read)
    reads = operations.filter(pc.and_(is_final, pc.is_valid(operations["offset"])))
    order = np.argsort(reads["call_ns"].to_numpy(), kind="stable")
    return {row["offset"]: row for row in reads.take(pa.array(order)).to_pylist()}


def _lost(row: dict[str, Any], read: dict[str, Any]) -> Finding:
    found = "nothing" if read["output"] is None else f"the value {read['output']}"
    by = row["node"] or "an unnamed node"
    message = (
        f"{row['key']}: the append of {row['input']} (op {row['op']}), acknowledged by {by} at"
        f" offset {row['offset']} after {row['return_ns'] / NS_PER_S:.3f} s, is lost: the last read"
        f" of that offset after the heal (op {read['op']}) found {found} there."
    )
    details = {
        "value": row["input"],
        "acknowledged_by": row["node"],
        "acknowledged_ns": row["return_ns"],
        "found": read["output"],
    }
    return Finding(
        "lost-append", message, row["key"], row["offset"], (row["op"], read["op"]), details
    )
