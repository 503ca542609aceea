"""Every acknowledged append stands, at its offset, in the logs that the nodes left behind.

Compares what clients were told with the entries in the nodes' own files. An entry is a
copy if its log index is at or below the highest committed index that any node named
while draining: above that nothing is promised, and a follower that has the entry but had
not yet heard that it is committed has it all the same.

Source: Raft section 5.4 (Leader Completeness); Jepsen's total-queue and kafka checkers
("lost-write", "duplicate"); DESIGN.md decisions 5 and 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.findings import Findings, Gathered, gather, just_before, name_of, settle, windows_at
from checkers.replicas import (
    NOWHERE,
    Acknowledged,
    Bools,
    Ints,
    Replica,
    load_acknowledged,
    load_replicas,
)
from harness.plugins import CheckContext
from harness.verdict import Finding, Verdict

NAME = "durability"
NS_PER_S = 1_000_000_000


class Durability:
    """Checker "durability": each queue by itself, from the operations and the nodes' logs.

    Findings: "lost-append" (fewer than a majority of all nodes hold it), "altered" (the
    same, and what stands there was never appended by anyone), "missing-on-node" (a
    majority holds it, a live node that had committed that far does not), "duplicated"
    (one value at two places of a log), "damaged" (an entry that fails the reader's checks).
    """

    name = NAME
    tables: tuple[str, ...] = ("operations", "entries")
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Look up each acknowledged append of one queue in every node's log.

        The entries without a queue (key null) are a partition too: damage is found there.

        Raises:
            ValueError: an acknowledged append lacks its offset, value or return.
        """
        findings = Findings()
        acks = load_acknowledged(tables["operations"])
        counts = {"acknowledged": len(acks.op), "entries": tables["entries"].num_rows}
        if why_not_judged(context) is None:
            search = _Search(acks, load_replicas(tables["entries"], context), context)
            counts |= search.appends(findings)
            search.duplicates(findings, tables["entries"])
            counts["damaged_beyond_commit"] = _damage(search.replicas, findings)
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        acknowledged = gathered.sums().get("acknowledged", 0)
        live = f"{len(context.committed)} of {len(context.nodes)}"
        return settle(
            NAME,
            gathered,
            context,
            clean=f"all {acknowledged} acknowledged appends stand on a majority and on every"
            f" live node ({live})",
            doubts=_doubts(gathered, context),
            observed=lambda _kind: _why_unpromised(context),
        )


PLUGIN = Durability()


def why_not_judged(context: CheckContext) -> str | None:
    """Say why no log can be judged, if too few nodes named their committed index."""
    answered, majority = len(context.committed), len(context.nodes) // 2 + 1
    if answered >= majority:
        return None
    return (
        f"only {answered} of {len(context.nodes)} nodes said what they had committed,"
        f" at least {majority} must"
    )


def _why_unpromised(context: CheckContext) -> str | None:
    beyond = sorted(set(context.faults_asked) - context.promises.durable_under)
    if not beyond:
        return None
    return f"the target promises no durability under {', '.join(beyond)}"


def _doubts(gathered: Gathered, context: CheckContext) -> list[str]:
    counts = gathered.sums()
    why = why_not_judged(context)
    doubts = [] if why is None else [why]
    if not counts.get("acknowledged"):
        doubts.append("no append was acknowledged")
    if behind := counts.get("behind"):
        doubts.append(
            f"{behind} times the log of a live node had not reached an acknowledged append"
        )
    if uncommitted := counts.get("uncommitted"):
        doubts.append(
            f"{uncommitted} acknowledged appends stand on a majority, but behind every"
            " committed index that a node named"
        )
    return doubts


class _Search:
    """Looks acknowledged appends up in the replicas of their queue."""

    def __init__(
        self, acks: Acknowledged, replicas: Sequence[Replica], context: CheckContext
    ) -> None:
        self.acks = acks
        self.replicas = replicas
        self.context = context
        self.majority = len(context.nodes) // 2 + 1
        found = [replica.find(acks.offset, acks.value) for replica in replicas]
        self.indices: Ints = np.array(found).reshape(len(replicas), len(acks.op))
        self.committed_max = max(context.committed.values(), default=NOWHERE)

    def appends(self, findings: Findings) -> dict[str, int]:
        """Judge each acknowledged append; return counts, also of what could not be judged.

        A live node that lacks an append is at fault only if it said that it had committed
        that far: one that had not caught up yet breaks no promise, but shows nothing.
        """
        present = self.indices != NOWHERE
        copies = (present & (self.indices <= self.committed_max)).sum(axis=0)
        is_held = copies >= self.majority
        is_uncommitted = ~is_held & (present.sum(axis=0) >= self.majority)
        missing, behind = self._missing(present, is_held)

        lost = np.flatnonzero(~is_held & ~is_uncommitted).tolist()
        altered = [n for n in lost if self._is_altered(n)]
        gone = sorted(set(lost) - set(altered))
        findings.add("lost-append", gone, lambda n: self._describe("lost-append", n))
        findings.add("altered", altered, lambda n: self._describe("altered", n))
        missed = np.flatnonzero(missing).tolist()
        findings.add("missing-on-node", missed, lambda n: self._describe("missing-on-node", n))
        return {
            "standing": int((is_held & ~missing).sum()),
            "behind": behind,
            "uncommitted": int(is_uncommitted.sum()),
        }

    def duplicates(self, findings: Findings, entries: pa.Table) -> None:
        """Find values that one node's committed log holds at more than one place."""
        per_node = [replica.values_twice() for replica in self.replicas]
        twice = np.setdiff1d(np.unique(np.concatenate(per_node)), self.acks.repeated)
        key = entries["key"][0].as_py() if entries.num_rows else None

        def describe(value: int) -> Finding:
            places = {r.node: r.offsets_of(value) for r in self.replicas if r.offsets_of(value)}
            offsets = sorted({offset for found in places.values() for offset in found})
            writer = self.acks.writer_of(value)
            message = f"{key}: the value {value} stands more than once, at offsets {offsets}."
            details = {"value": value, "offsets": places}
            operations = () if writer is None else (writer,)
            return Finding("duplicated", message, key, offsets[0], operations, details)

        findings.add("duplicated", twice.tolist(), describe)

    def _missing(self, present: Bools, is_held: Bools) -> tuple[Bools, int]:
        """Return which held appends a live node lacks, and how often one is only behind."""
        missing = np.zeros(len(self.acks.op), dtype=np.bool_)
        behind = 0
        index = self.indices.max(axis=0, initial=NOWHERE)
        for n, replica in enumerate(self.replicas):
            if replica.is_live:
                lacks = is_held & ~present[n]
                missing |= lacks & (index <= replica.committed)
                behind += int((lacks & (index > replica.committed)).sum())
        return missing, behind

    def _is_altered(self, n: int) -> bool:
        """True if at an append's offset some node holds a value that nobody ever appended."""
        return any(
            not replica.has_value[row] or self.acks.writer_of(int(replica.value[row])) is None
            for replica in self.replicas
            for row in replica.at(int(self.acks.offset[n]))
        )

    def _describe(self, kind: str, n: int) -> Finding:
        """Say what became of an acknowledged append, with the evidence node by node."""
        acks = self.acks
        op, offset, value = int(acks.op[n]), int(acks.offset[n]), int(acks.value[n])
        moment_ns, node = int(acks.acknowledged_ns[n]), acks.node[n] or "an unnamed node"
        windows = windows_at(self.context, moment_ns)
        faults = [name_of(window) for window in windows]
        under = f"under {' and '.join(faults)}" if windows else "under no fault"
        if not windows and (next_fault := just_before(self.context, moment_ns)):
            windows = [next_fault]
            under = f"just before {name_of(next_fault)}"
            faults = [under]
        holders = [r.node for r, i in zip(self.replicas, self.indices[:, n], strict=True) if i >= 0]
        stands = {r.node: self._what_stands(place, n) for place, r in enumerate(self.replicas)}
        instead = {name: what for name, what in stands.items() if name not in holders}
        details: dict[str, Any] = {
            "value": value,
            "process": int(acks.process[n]),
            "acknowledged_by": acks.node[n],
            "acknowledged_ns": moment_ns,
            "instead": stands,
            "held_by": holders,
            "faults": faults,
        }
        if windows:
            details["fault"] = windows[0].fault
        elsewhere = {r.node: r.offsets_of(value) for r in self.replicas if r.offsets_of(value)}
        if kind != "missing-on-node" and elsewhere and not holders:
            details["value_stands_at"] = elsewhere
        fate = "is lost" if kind == "lost-append" else "was altered" if kind == "altered" else ""
        held = f"{len(holders)} of {len(self.replicas)} nodes hold it"
        there = "; ".join(f"{name} has {what} there" for name, what in instead.items())
        message = (
            f"{acks.key}: the append of {value} (op {op}), acknowledged by {node} at offset"
            f" {offset} after {moment_ns / NS_PER_S:.3f} s {under},"
            f" {fate or 'is missing on a live node'}: {held}; {there}."
        )
        return Finding(kind, message, acks.key, offset, (op,), details)

    def _what_stands(self, place: int, n: int) -> str:
        """Say what the node of replica `place` holds at an append's offset."""
        replica, index = self.replicas[place], self.indices[place, n]
        if index != NOWHERE:
            return f"it (entry {index})"
        offset = int(self.acks.offset[n])
        found = [self._name(replica, row) for row in replica.at(offset)]
        if not found:
            damaged = replica.damaged.to_pylist()
            problems = [row["problem"] for row in damaged if row["offset"] == offset]
            found = [f"a damaged entry ({problem})" for problem in problems]
        return " and ".join(found) or "nothing"

    def _name(self, replica: Replica, row: int) -> str:
        if not replica.has_value[row]:
            return f"an entry without a value (entry {replica.index[row]})"
        value = int(replica.value[row])
        writer = self.acks.writer_of(value)
        by = "which nobody appended" if writer is None else f"op {writer}"
        return f"{value} ({by}, entry {replica.index[row]})"


def _damage(replicas: Sequence[Replica], findings: Findings) -> int:
    """Report damaged entries that a live node had committed; count those it had not."""
    beyond = 0
    rows: list[dict[str, Any]] = []
    for replica in replicas:
        for row in replica.damaged.to_pylist():
            if replica.is_live and row["index"] <= replica.committed:
                rows.append(row)
            else:
                beyond += 1

    def describe(n: int) -> Finding:
        row = rows[n]
        where = f"entry {row['index']} at position {row['position']} of {row['node']}'s log"
        message = f"{where}, which it had committed, is damaged: {row['problem']}."
        details = {name: row[name] for name in ("node", "index", "position", "problem", "value")}
        return Finding("damaged", message, row["key"], row["offset"], (), details)

    findings.add("damaged", range(len(rows)), describe)
    return beyond
