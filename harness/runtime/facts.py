"""The facts of a run (run.json), written along the way, so that a killed run has them too.

Keys: status ("running", "complete", "interrupted", "failed"), name, seed, world, target,
mutant, mutant_breaks (what the planted bug does), workload, nodes (ids), faults (requested),
faults_unavailable (name -> why, only if there are any), started (UTC), clock ({"unix_ns",
"utc_offset_s"}: what the nodes' wall clock showed when the run's own time was 0, and how far
their local time is from UTC), group (only of one that runs already: {"nodes", "keys"}, its
addresses, and what the run's keys begin with), command, versions, promises,
phases ([{"name", "start_ns", "stop_ns"}]), and at the end segments (file name -> events
written, null if the worker died), faults_done, leader_changes, exits, broken (what the nodes'
world saw, and what did not come back), left (names of faults that could not be undone), problems,
drained, counts, repeat (the command that repeats it, only if it is not that of its campaign),
online (what was judged while the run went on, only if it was: {"checker", "operations", "outcome",
"left", "violations"}), memory (process -> {"first", "last", "most"}, bytes in RAM), machine
({"cpus", "busy_with_others"}, a share of them that other work took).
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from shaketable.harness.campaigns.campaign import Campaign, faults_of, node_names
from shaketable.harness.contracts.plugins import Json, Promises
from shaketable.harness.history.run_folder import write_atomically

SIMULATED_CLOCK: Json = {"unix_ns": 0, "utc_offset_s": 0}
"""The wall clock of simulated nodes: a world starts with the year 1970."""
LAST_PHASE = "teardown"
"""When it is over, all processes of the run have ended."""
PACKAGES = ("shaketable", "trio", "multiprocess", "pyarrow", "pyspark")


class RunFacts:
    """Keeps run.json up to date. `now_ns` returns the time since the run's start."""

    def __init__(self, path: Path, facts: Json, now_ns: Callable[[], int]) -> None:
        self._path = path
        self._facts: Json = {"status": "running", **facts, "phases": []}
        self._now_ns = now_ns
        self._machine = read_machine()
        self._write()

    def now_ns(self) -> int:
        """Return the time since the run's start."""
        return self._now_ns()

    @contextmanager
    def phase(self, name: str) -> Iterator[int]:
        """Record a phase's start and, however it ends, its stop; yields the start (ns)."""
        span: Json = {"name": name, "start_ns": self._now_ns(), "stop_ns": None}
        self._facts["phases"].append(span)
        self._write()
        try:
            yield span["start_ns"]
        finally:
            span["stop_ns"] = self._now_ns()
            if name == LAST_PHASE:
                self._facts["machine"] = machine_use_between(self._machine, read_machine())
            self._write()

    def update(self, **facts: object) -> None:
        """Add or replace facts."""
        self._facts.update(facts)
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, json.dumps(self._facts, indent=2) + "\n")


def describe(
    campaign: Campaign, promises: Promises, command: Sequence[str], mutant_breaks: str | None = None
) -> Json:
    """Return the facts known before the run; `mutant_breaks` describes the planted bug."""
    return {
        "name": campaign.name,
        "seed": campaign.seed,
        "world": campaign.world,
        "target": campaign.target,
        "mutant": campaign.mutant,
        "mutant_breaks": mutant_breaks,
        "workload": campaign.workload,
        "nodes": list(node_names(campaign)),
        "faults": list(faults_of(campaign)),
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": " ".join(command),
        "versions": versions(),
        "promises": promises.as_json(),
    }


def wall_clock(now_ns: Callable[[], int]) -> Json:
    """Return this machine's wall clock at the run's start: nodes stamp their logs by it."""
    offset = datetime.now().astimezone().utcoffset()
    return {
        "unix_ns": time.time_ns() - now_ns(),
        "utc_offset_s": 0 if offset is None else round(offset.total_seconds()),
    }


def versions() -> dict[str, str]:
    """Return the versions of the software in a run, as far as installed."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


# The share of the machine's CPU time that other work took: it slows a run down.
#
# Source: proc(5), /proc/stat; getrusage(2). The time of children counts once they were waited for,
# so the account is complete when the nodes and workers have ended.

STAT: Final = Path("/proc/stat")
FIELDS: Final = 8
"""The fields of the first line: user, nice, system, idle, iowait, irq, softirq, steal."""
IDLE: Final = (3, 4)


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU seconds since the machine's start: all, those not idle, and ours."""

    total_s: float
    busy_s: float
    ours_s: float


def read_machine() -> Reading | None:
    """Read the CPU times of the machine and of this harness; None if not available."""
    try:
        total_s, busy_s = parse(STAT.read_text(), os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None
    times = os.times()
    ours_s = times.user + times.system + times.children_user + times.children_system
    return Reading(total_s, busy_s, ours_s)


def parse(stat: str, ticks_a_s: int) -> tuple[float, float]:
    """Return all CPU time and the time that was not idle, in seconds.

    Raises:
        ValueError: malformed.
        IndexError: likewise.
    """
    name, *numbers = stat.splitlines()[0].split()
    ticks = [int(number) for number in numbers[:FIELDS]]
    if name != "cpu" or len(ticks) < FIELDS:
        raise ValueError(stat[:80])
    idle = sum(ticks[place] for place in IDLE)
    return sum(ticks) / ticks_a_s, (sum(ticks) - idle) / ticks_a_s


def machine_use_between(first: Reading | None, last: Reading | None) -> Json:
    """Return the facts: `cpus`, and `busy_with_others`, a share of them all, 0 to 1 (or null)."""
    facts: Json = {"cpus": os.cpu_count(), "busy_with_others": None}
    if first is not None and last is not None and last.total_s > first.total_s:
        others_s = (last.busy_s - first.busy_s) - (last.ours_s - first.ours_s)
        share = others_s / (last.total_s - first.total_s)
        facts["busy_with_others"] = round(min(1.0, max(0.0, share)), 3)
    return facts
