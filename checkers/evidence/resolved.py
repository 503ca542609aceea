"""Resolves indeterminate operations for a checker, and reports it: counts, summary, citations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from shaketable.checkers.evidence.node_logs import LogValues
from shaketable.checkers.evidence.resolve import READ, resolve
from shaketable.checkers.findings import Gathered
from shaketable.checkers.models.values import Values
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Verdict

BY_READS: Final = "closed_by_reads"
BY_LOGS: Final = "closed_by_logs"
CITED: Final = "cited"
"""Key in a row "checked": the citations with the lowest ids, as [id, sentence]."""
CITED_MAX: Final = 5
"""Citations that a verdict shows besides those of operations in findings."""
RESOLVED: Final = "closed"
"""Key in `Verdict.data`, and of an operation in a finding's details: why it was resolved."""

Citation = Mapping[str, Any]
"""A row of CITATIONS."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Operations, of which some indeterminate ones were resolved; `cited` has why, by their ids."""

    operations: pa.Table
    cited: Mapping[int, Citation] = field(default_factory=dict)


def resolve_outcomes(
    operations: pa.Table, held: LogValues | None, context: CheckContext, values: Values | None
) -> Resolved:
    """Resolve indeterminate operations by evidence; none if `values` is not known."""
    if values is None or operations.num_rows == 0:
        return Resolved(operations)
    resolved, citations = resolve(operations, held, context, values)
    return Resolved(resolved, {row["op"]: row for row in citations.to_pylist()})


def resolved_counts(cited: Iterable[Citation]) -> dict[str, int]:
    """Count citations by the kind of their evidence; kinds without any are left out."""
    kinds = [BY_READS if row["evidence"] == READ else BY_LOGS for row in cited]
    return {name: kinds.count(name) for name in (BY_READS, BY_LOGS) if name in kinds}


def first_citations(cited: Iterable[Citation]) -> dict[str, Any]:
    """Return the citations that a row "checked" carries: the lowest ids, however keys are split."""
    lowest = sorted((row["op"], row["message"]) for row in cited)[:CITED_MAX]
    return {CITED: [list(each) for each in lowest]} if lowest else {}


def with_resolved(verdict: Verdict, gathered: Gathered) -> Verdict:
    """Add to a verdict how many indeterminate operations were resolved, and some citations."""
    sums = gathered.sums()
    by_reads, by_logs = int(sums.get(BY_READS, 0)), int(sums.get(BY_LOGS, 0))
    total = by_reads + by_logs
    if not total:
        return verdict
    named = [f"{n} by {what}" for n, what in ((by_reads, "reads"), (by_logs, "logs")) if n]
    outcomes = "unknown outcome" if total == 1 else "unknown outcomes"
    cited = sorted(tuple(each) for counts in gathered.checked for each in counts.get(CITED, ()))
    messages = [message for _, message in cited[:CITED_MAX]]
    return replace(
        verdict,
        summary=f"{verdict.summary}; {total} {outcomes} closed: {', '.join(named)}",
        data={**verdict.data, RESOLVED: messages},
    )


def citation_sentence(cited: Mapping[int, Citation], ops: Sequence[int]) -> str:
    """Return the sentence on why these indeterminate operations count; "" if none was resolved."""
    texts = [str(cited[op]["message"]) for op in dict.fromkeys(ops) if op in cited]
    return f" Of unknown outcome: {' '.join(texts[:CITED_MAX])}" if texts else ""
