"""Who led when: the nodes' roles as spans of time, changes of the leader, and elections. Pure.

Read by pages, gates and the judge; without what draws them, which takes long to import. An election
ends when polling first sees the new leader, which is never before it really led.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from shaketable.harness.contracts.plugins import NO_ROLE, FaultWindow
from shaketable.reports.run_view import RoleSpan

NO_ANSWER = "no answer"
"""The role of a node that does not answer the poll."""


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


# Elections that followed a fault that hit the leader.

LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Election:
    """The election that followed a fault that hit the leader.

    `took_ns`: from the fault taking effect to the first status of a leader with a higher term; None
    if there was none before the next fault began (a leader may survive its fault).
    """

    took_ns: int | None


def aimed_plans(nemesis: pa.Table) -> dict[int, Mapping[str, Any]]:
    """Return the plan of each fault by its number, as aimed; malformed events are skipped."""
    plans: dict[int, Mapping[str, Any]] = {}
    for text in nemesis["value"].to_pylist():
        try:
            event = json.loads(text or "null")
            number, plan = int(event["fault"]), event["plan"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(plan, Mapping):
            plans.setdefault(number, plan)
    return plans


def hits_leader(plan: Mapping[str, Any], nodes: int) -> bool:
    """Return whether the plan kills the leader, cuts it off from every majority, or deposes it.

    A link cut in one direction counts as cut: a quorum needs requests and answers.
    """
    leader = plan.get("leader")
    if not isinstance(leader, str):
        return False
    if leader in (plan.get("victims") or ()):
        return True
    if plan.get("to") not in (None, leader):  # a leadership transfer
        return True
    cut = {
        node
        for link in plan.get("links") or ()
        if isinstance(link, Sequence) and leader in link
        for node in link
        if node != leader
    }
    return nodes > 0 and nodes - len(cut) <= nodes // 2


def elections(
    lanes: Iterable[RoleSpan],
    windows: Sequence[FaultWindow],
    plans: Mapping[int, Mapping[str, Any]],
    nodes: int,
) -> dict[int, Election]:
    """Return the election after each fault that took effect and hit the leader, by fault number."""
    led = sorted(
        (span.start_ns, span.term)
        for span in lanes
        if span.role == LEADER and span.term is not None
    )
    found = {}
    for window in windows:
        if not (led and window.took_effect and hits_leader(plans.get(window.fault, {}), nodes)):
            continue
        term = max((term for start_ns, term in led if start_ns <= window.from_ns), default=None)
        if term is None:
            continue  # no leader was seen, so there is no term to compare with
        after = min(
            (
                other.start_ns
                for other in windows
                if other.start_ns >= max(window.stop_ns, window.start_ns + 1)
            ),
            default=None,
        )
        times = [
            start_ns - window.from_ns
            for start_ns, new_term in led
            if new_term > term and start_ns > window.from_ns and (after is None or start_ns < after)
        ]
        found[window.fault] = Election(min(times, default=None))
    return found
