"""Checks that every acknowledged append is in the nodes' logs, at its offset.

Compares the answers that clients got with the entries in the nodes' files. An entry is a copy if
its log index is at or below the highest committed index that any node reported while draining:
nothing is promised above that. A follower that holds the entry holds a copy even if it did not
know yet that the entry is committed.

Whether an append is lost does not depend on any node's answer: it is lost if fewer logs hold it
than must have held it when it was acknowledged. A node whose log cannot be read may hold it.

Source: Raft section 5.4 (Leader Completeness); Jepsen's total-queue and kafka checkers
("lost-write", "duplicate"); DESIGN.md decisions 5 and 13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shaketable.checkers.findings import Findings, Gathered, gather, settle
from shaketable.checkers.logs.append_fates import (
    PLACES,
    Bools,
    LogPart,
    ValueSearch,
    bools,
    copies_at,
    damage_at,
    judge_unsettled,
    places_of,
    whole_part,
)
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict

NAME = "durability"
NOT_JUDGED = "not_judged"
"""Key in a verdict's data: neither a loss nor durability was shown."""
BEYOND = -2
"""The committed index of a node that reported none: before any entry."""


class Durability:
    """Every acknowledged append survives, as operations and the nodes' logs show.

    Findings: "lost-append" (fewer than a majority of all nodes hold it), "altered" (the same, and
    its offset holds a value that no append carried), "reordered" (the same, and a majority holds
    its value at another offset), "missing-on-node" (a majority holds it, a live node that had
    committed that far does not), "duplicated" (one value at two places of a log), "damaged" (an
    entry that fails the reader's checks).

    If a queue is too large for one task, parts of its values are judged separately
    (`judge_values`), then what is stored at the offsets of appends that were not found
    (`stored`, `judge_places`): all places with the same hash together.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations", "entries")
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Look up each acknowledged append of whole queues in every node's log.

        The entries without a queue (key null) are a partition too: it may have damaged ones.

        Raises:
            ValueError: an acknowledged append lacks its offset, value or return.
        """
        part = whole_part(tables["operations"], tables["entries"], context.nodes)
        findings, unsettled = self.judge_values(part, context)
        if not unsettled.num_rows:
            return findings
        is_wanted = np.zeros(PLACES, dtype=np.bool_)
        is_wanted[places_of(unsettled)] = True
        stored = self.stored(part, is_wanted, context)
        return pa.concat_tables([findings, self.judge_places([unsettled], [stored], context)])

    def judge_values(self, part: LogPart, context: CheckContext) -> tuple[pa.Table, pa.Table]:
        """Judge one part of the history by itself.

        Returns the findings with the part's counts, and a table of UNSETTLED: the acknowledged
        appends that are not where they must be.

        Raises:
            ValueError: an acknowledged append lacks its offset, value or return.
        """
        findings = Findings()
        search = ValueSearch(part, context)
        acknowledged = int(bools(part.appends["is_acked"]).sum())
        counts = {"acknowledged": acknowledged, "entries": part.entries}
        fate_counts, unsettled = search.fates()
        counts |= fate_counts
        search.duplicates(findings)
        counts["damaged_beyond_commit"] = _damage(part.damaged, context, findings)
        return findings.table(counts), unsettled

    def stored(self, part: LogPart, is_wanted: Bools, context: CheckContext) -> pa.Table:
        """Return what a part stores at wanted places (an element for each of PLACES)."""
        there = ValueSearch(copies_at(part, is_wanted), context).stored()
        return pa.concat_tables([there, damage_at(part, is_wanted, context)])

    def judge_places(
        self, unsettled: Iterable[pa.Table], stored: Iterable[pa.Table], context: CheckContext
    ) -> pa.Table:
        """Judge the unsettled appends of some places, given all that is stored there."""
        findings = Findings()
        judge_unsettled(pa.concat_tables(unsettled), pa.concat_tables(stored), context, findings)
        return findings.table({})

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        acknowledged = gathered.sums().get("acknowledged", 0)
        if not context.logs_declared and acknowledged and not gathered.sums().get("entries"):
            return _nothing_read(context, int(acknowledged))
        live = f"{len(context.committed)} of {len(context.nodes)}"
        copies = context.promises.copies
        where = (
            f"a majority and on every live node ({live})"
            if copies is None
            else f"at least {copies} node{'s' if copies > 1 else ''}"
        )
        return settle(
            NAME,
            gathered,
            context,
            clean=f"all {acknowledged} acknowledged appends are on {where}",
            doubts=_doubts(gathered, context),
            observed=lambda _kind: why_unpromised(context),
        )

    judges_partial_logs = True
    """It can judge the other logs if some cannot be read (`CheckContext.unread`)."""


PLUGIN = Durability()


def why_not_judged(context: CheckContext) -> str | None:
    """Return why no log can be judged: too few nodes reported a committed index; None if enough."""
    answered, majority = len(context.committed), len(context.nodes) // 2 + 1
    if answered >= majority:
        return None
    return (
        f"only {answered} of {len(context.nodes)} nodes reported what they had committed,"
        f" at least {majority} must"
    )


def _nothing_read(context: CheckContext, acknowledged: int) -> Verdict:
    """Return the verdict on logs without any entry, if the target promises no readable logs."""
    summary = (
        f"not judged: no log of any node has an entry that could be read, and {acknowledged:,}"
        " appends were acknowledged; the target does not say whether its logs can be read"
        " (logs_readable)"
    )
    is_promised = bool(context.promises.durable_under) and why_unpromised(context) is None
    outcome = Outcome.UNKNOWN if is_promised else Outcome.VALID
    return Verdict(
        NAME, outcome, summary, counts={"acknowledged": acknowledged}, data={NOT_JUDGED: True}
    )


def why_unpromised(context: CheckContext) -> str | None:
    """Return why losing acknowledged appends breaks no promise under these faults, or None."""
    beyond = context.unpromised_faults(context.promises.durable_under)
    return f"the target promises no durability under {beyond}" if beyond else None


def _doubts(gathered: Gathered, context: CheckContext) -> list[str]:
    counts = gathered.sums()
    why = why_not_judged(context)
    doubts = [] if why is None else [why]
    if unknown := counts.get("unknown_copies"):
        doubts.append(
            f"{unknown} acknowledged appends are on fewer nodes than must have them, as far as"
            " can be known: nodes did not answer, or their logs cannot be read"
        )
    if not counts.get("acknowledged"):
        doubts.append("no append was acknowledged")
    if behind := counts.get("behind"):
        doubts.append(
            f"{behind} times the log of a live node had not reached an acknowledged append"
        )
    if uncommitted := counts.get("uncommitted"):
        doubts.append(
            f"{uncommitted} acknowledged appends are on a majority, but after every"
            " committed index that a node named"
        )
    return doubts


def _damage(damaged: pa.Table, context: CheckContext, findings: Findings) -> int:
    """Report damaged entries that their node had committed; return the number of the others."""
    beyond = 0
    rows: list[dict[str, Any]] = []
    ordered = damaged.sort_by(
        [(name, "ascending") for name in ("key", "offset", "node", "position")]
    )
    for row in ordered.to_pylist():
        if row["index"] <= context.committed.get(row["node"], BEYOND):
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
