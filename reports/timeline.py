"""What happened to the nodes over time: phases, and who led in which term."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from reports.model import PhaseSpan, RoleSpan

NO_ANSWER = "no answer"
"""The role of a node that does not answer the poll."""


def phase_spans(phases: object, end_ns: int) -> tuple[PhaseSpan, ...]:
    """Read run.json's phases: rows or a map by name, with start_ns and (if it ended) stop_ns."""
    if isinstance(phases, Mapping):
        phases = [{"name": name, **span} for name, span in phases.items()]
    if not isinstance(phases, Sequence):
        return ()
    spans = []
    for phase in phases:
        start_ns = phase.get("start_ns")
        if start_ns is None:
            continue
        stop_ns = phase.get("stop_ns")
        name = str(phase.get("name") or phase.get("phase") or "?")
        spans.append(PhaseSpan(name, int(start_ns), int(end_ns if stop_ns is None else stop_ns)))
    return tuple(sorted(spans, key=lambda span: span.start_ns))


def role_spans(status: Iterable[Mapping[str, Any]], end_ns: int) -> tuple[RoleSpan, ...]:
    """Turn the polled changes of the nodes' roles into spans, joined while role and term stay."""
    changes: dict[str, list[tuple[int, str, int | None]]] = {}
    for row in sorted(status, key=lambda row: int(row.get("time_ns", 0))):
        role = str(row.get("role") or NO_ANSWER).lower()
        term = None if role == NO_ANSWER or row.get("term") is None else int(row["term"])
        lane = changes.setdefault(str(row.get("node")), [])
        if not lane or lane[-1][1:] != (role, term):
            lane.append((int(row.get("time_ns", 0)), role, term))
    spans = []
    for node in sorted(changes):
        lane = changes[node]
        stops = [start_ns for start_ns, _, _ in lane[1:]] + [max(end_ns, lane[-1][0])]
        for (start_ns, role, term), stop_ns in zip(lane, stops, strict=True):
            spans.append(RoleSpan(node, role, term, start_ns, stop_ns))
    return tuple(spans)


def leader_changes(lanes: Iterable[RoleSpan]) -> int:
    """Count how often another node led than in the term before (terms without a leader skipped)."""
    leaders = {span.term: span.node for span in lanes if span.role == "leader" and span.term}
    nodes = [leaders[term] for term in sorted(term for term in leaders if term is not None)]
    return sum(before != after for before, after in pairwise(nodes))
