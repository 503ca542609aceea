"""Measure how soon writes continue after the leader is killed (RTO).

A kill counts if it took effect, the leader was among its victims, and a majority survived:
without one no failover is possible. The time runs from sending SIGKILL to the first
acknowledgement of an append that a client invoked after the process was gone. Only a leader
elected since can have acknowledged such an append. One in flight during the kill may have been
acknowledged by the old leader and does not count, so the time is never too short.

Source: recovery time (RTO) of OpenChaos; goals: DESIGN.md section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.reports.availability.client_activity import ClientActivity
from shaketable.reports.availability.recovery import Recovery, recovery_times

KILL = "kill"
GOAL_MEDIAN_NS = 1_000_000_000
GOAL_P99_NS = 2_000_000_000
P99 = 0.99


@dataclass(frozen=True, slots=True)
class Failover:
    """The leader kills of a run, and the next acknowledged write after each.

    `kills` are those after which a client invoked an append; in `never` of them none was
    acknowledged again. The times are None if no kill was recovered from.
    """

    kills: int
    never: int
    median_ns: int | None
    p99_ns: int | None
    max_ns: int | None

    @property
    def meets_goals(self) -> bool:
        """Whether writes always continued, and within the goals."""
        return (
            self.never == 0
            and self.median_ns is not None
            and self.p99_ns is not None
            and self.median_ns <= GOAL_MEDIAN_NS
            and self.p99_ns <= GOAL_P99_NS
        )


def kills_leader(window: FaultWindow, plan: Mapping[str, Any], nodes: int) -> bool:
    """Return whether the fault is a kill that took effect, hit the leader and left a majority."""
    victims: Sequence[str] = plan.get("victims") or ()
    is_leader_in = plan.get("leader") is not None and plan["leader"] in victims
    return window.name == KILL and window.took_effect and is_leader_in and 2 * len(victims) < nodes


def failover(recoveries: Iterable[Recovery]) -> Failover | None:
    """Summarize the recoveries from leader kills; None if no append was invoked after any.

    The 99th percentile is a measured time (nearest rank): for up to 100 kills it is the slowest.
    """
    asked = [recovery for recovery in recoveries if recovery.asked]
    if not asked:
        return None
    times = sorted(one.recovery_ns for one in asked if one.recovery_ns is not None)
    return Failover(
        kills=len(asked),
        never=len(asked) - len(times),
        median_ns=int(np.median(times)) if times else None,
        p99_ns=times[math.ceil(P99 * len(times)) - 1] if times else None,
        max_ns=times[-1] if times else None,
    )


def measure(
    operations: pa.Table,
    windows: Sequence[FaultWindow],
    plans: Mapping[int, Mapping[str, Any]],
    nodes: int,
    activity: ClientActivity | None = None,
) -> Failover | None:
    """Measure a run's failover from its operations, faults and their plans as aimed.

    Without `activity`, kills after which every client was stuck waiting are missed.
    """
    recoveries = zip(windows, recovery_times(operations, windows, activity), strict=True)
    return failover(
        recovery
        for window, recovery in recoveries
        if kills_leader(window, plans.get(window.fault, {}), nodes)
    )


def to_json(found: Failover) -> dict[str, Any]:
    """Return the numbers for results.json, in seconds."""
    return {
        "leader_kills": found.kills,
        "never": found.never,
        "median_s": _seconds(found.median_ns),
        "p99_s": _seconds(found.p99_ns),
        "worst_s": _seconds(found.max_ns),
        "goal_median_s": GOAL_MEDIAN_NS / 1e9,
        "goal_p99_s": GOAL_P99_NS / 1e9,
        "meets_goals": found.meets_goals,
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1e9, 6)
