"""Measure how soon another node led after a fault that hit the leader. Pure functions.

An election ends when polling first sees the new leader, which is never before it really led.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.reports.run_view import RoleSpan

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
