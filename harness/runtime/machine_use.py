"""How much of the machine's processors went to work that was not the run's: it slows a run down.

Source: proc(5), /proc/stat; getrusage(2). What children used counts once they were waited for, so
the account is whole when the nodes and workers have ended.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shaketable.harness.plugins import Json

STAT: Final = Path("/proc/stat")
FIELDS: Final = 8
"""Of the first line: user, nice, system, idle, iowait, irq, softirq, steal."""
IDLE: Final = (3, 4)


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds of processor time since the machine's start: all there was, not idle, and ours."""

    total_s: float
    busy_s: float
    ours_s: float


def read() -> Reading | None:
    """Read the machine's account and ours; None where there is none to be read."""
    try:
        total_s, busy_s = parse(STAT.read_text(), os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None
    times = os.times()
    ours_s = times.user + times.system + times.children_user + times.children_system
    return Reading(total_s, busy_s, ours_s)


def parse(stat: str, ticks_a_s: int) -> tuple[float, float]:
    """Return all processor time and that which was not idle, in seconds.

    Raises:
        ValueError: it is no such account.
        IndexError: likewise.
    """
    name, *numbers = stat.splitlines()[0].split()
    ticks = [int(number) for number in numbers[:FIELDS]]
    if name != "cpu" or len(ticks) < FIELDS:
        raise ValueError(stat[:80])
    idle = sum(ticks[place] for place in IDLE)
    return sum(ticks) / ticks_a_s, (sum(ticks) - idle) / ticks_a_s


def between(first: Reading | None, last: Reading | None) -> Json:
    """Return the facts: `cpus`, and `busy_with_others`, a share of them all, 0 to 1 (or null)."""
    facts: Json = {"cpus": os.cpu_count(), "busy_with_others": None}
    if first is not None and last is not None and last.total_s > first.total_s:
        others_s = (last.busy_s - first.busy_s) - (last.ours_s - first.ours_s)
        share = others_s / (last.total_s - first.total_s)
        facts["busy_with_others"] = round(min(1.0, max(0.0, share)), 3)
    return facts
