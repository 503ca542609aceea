"""The facts of a run (run.json), written along the way, so that a killed run has them too.

Keys: status ("running", "complete", "interrupted", "failed"), name, seed, world, target,
mutant, mutant_breaks (what the planted bug does), workload, nodes (ids), faults (asked for),
faults_unavailable (name -> why, only if there are any), started (UTC), clock ({"unix_ns",
"utc_offset_s"}: what the nodes' wall clock showed when the run's own time was 0, and how far
their local time is from UTC), command, versions, promises,
phases ([{"name", "start_ns", "stop_ns"}]), and at the end segments (file name -> events
written, null if the worker died), faults_done, leader_changes, exits, broken (what the nodes'
world saw, and what did not come back), left (names of faults that could not be undone), problems,
drained, counts, memory (process -> {"first", "last", "most"}, bytes in RAM), machine ({"cpus",
"busy_with_others"}, a share of them that other work took).
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from shaketable.harness.campaign import Campaign, faults_of, node_names
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.plugins import Json, Promises
from shaketable.harness.runtime import machine_use

SIMULATED_CLOCK: Json = {"unix_ns": 0, "utc_offset_s": 0}
"""What simulated nodes stamp their logs by: a world begins with the year 1970."""
LAST_PHASE = "teardown"
"""When it is over, all processes of the run have ended."""
PACKAGES = ("shaketable", "trio", "multiprocess", "pyarrow", "pyspark")


class RunFacts:
    """Keeps run.json up to date. `now_ns` is the time since the run's start."""

    def __init__(self, path: Path, facts: Json, now_ns: Callable[[], int]) -> None:
        self._path = path
        self._facts: Json = {"status": "running", **facts, "phases": []}
        self._now_ns = now_ns
        self._machine = machine_use.read()
        self._write()

    def now_ns(self) -> int:
        """The time since the run's start."""
        return self._now_ns()

    @contextmanager
    def phase(self, name: str) -> Iterator[int]:
        """Note a phase's start and, however it ends, its stop; yields the start (ns)."""
        span: Json = {"name": name, "start_ns": self._now_ns(), "stop_ns": None}
        self._facts["phases"].append(span)
        self._write()
        try:
            yield span["start_ns"]
        finally:
            span["stop_ns"] = self._now_ns()
            if name == LAST_PHASE:
                self._facts["machine"] = machine_use.between(self._machine, machine_use.read())
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
    """The facts that are known before the run; `mutant_breaks` says what the planted bug does."""
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
        "promises": {
            "durable_under": sorted(promises.durable_under),
            "linearizable": sorted(promises.linearizable),
            "committed_prefix": promises.committed_prefix,
            "excludes": sorted(promises.excludes),
            "note": promises.note,
            "copies": promises.copies,
            "delivered_under": sorted(promises.all_delivered_under),
            "documented": promises.documented,
        },
    }


def wall_clock(now_ns: Callable[[], int]) -> Json:
    """What this machine's wall clock showed at the run's begin: nodes stamp their logs by it."""
    offset = datetime.now().astimezone().utcoffset()
    return {
        "unix_ns": time.time_ns() - now_ns(),
        "utc_offset_s": 0 if offset is None else round(offset.total_seconds()),
    }


def versions() -> dict[str, str]:
    """The versions of what takes part in a run, as far as they are installed."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
