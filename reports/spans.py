"""What went on when: a run's phases, and the role of each node, as spans of time.

Read by pages, gates and the judge; without what draws them, which takes long to import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeGuard

from shaketable.harness.contracts.plugins import NO_ROLE
from shaketable.reports.availability.outages import PhaseSpan
from shaketable.reports.run_view import RoleSpan

PHASES_MAX: Final = 1_000
TIME_NS_MAX: Final = 366 * 86_400 * 1_000_000_000
"""No run lasts longer: a file with a later time is damaged."""
NO_ANSWER = "no answer"
"""The role of a node that does not answer the poll."""


def phase_spans(phases: object, end_ns: int) -> tuple[PhaseSpan, ...]:
    """Read run.json's phases: rows or a map by name, with start_ns and (if it ended) stop_ns.

    Entries that are no valid phase (wrong types, impossible times) are skipped.
    """
    if isinstance(phases, Mapping):
        phases = [
            {"name": name, **span} for name, span in phases.items() if isinstance(span, Mapping)
        ]
    if not isinstance(phases, Sequence):
        return ()
    spans = []
    for phase in phases[:PHASES_MAX]:
        if not isinstance(phase, Mapping):
            continue
        start_ns, stop_ns = phase.get("start_ns"), phase.get("stop_ns")
        stop_ns = end_ns if stop_ns is None else stop_ns
        if not (_is_time(start_ns) and _is_time(stop_ns)):
            continue
        name = str(phase.get("name") or phase.get("phase") or "?")
        spans.append(PhaseSpan(name, start_ns, max(start_ns, stop_ns)))
    return tuple(sorted(spans, key=lambda span: span.start_ns))


def _is_time(value: object) -> TypeGuard[int]:
    """Return whether a value of an untrusted file can be a time of a run, in ns since its start."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and 0 <= value <= TIME_NS_MAX  # type: ignore[operator]  # a number, as tested


def role_spans(status: Iterable[Mapping[str, Any]], end_ns: int) -> tuple[RoleSpan, ...]:
    """Turn polled changes of the nodes' roles into spans; equal role and term make one span."""
    changes: dict[str, list[tuple[int, str, int | None]]] = {}
    for row in sorted(status, key=lambda row: int(row.get("time_ns", 0))):
        role = str(row.get("role") or NO_ANSWER).lower()
        has_term = role not in (NO_ANSWER, NO_ROLE) and row.get("term") is not None
        term = int(row["term"]) if has_term else None
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
    """Count changes of the leader from term to term; in time if the target has no terms.

    Terms and times without a leader are skipped. If there is any other term, 0 is one too: the
    first of Kafka's epochs.
    """
    led = [span for span in lanes if span.role == "leader"]
    in_time = [span.node for span in sorted(led, key=lambda span: span.start_ns)]
    leaders = {span.term or 0: span.node for span in led}
    nodes = [leaders[term] for term in sorted(leaders)] if any(leaders) else in_time
    return sum(before != after for before, after in pairwise(nodes))
