"""Histories of registers as an export writes them: files sorted by key, of whole keys."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from shaketable.checkers.engine.judge import CheckJob
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.harness import discovery
from shaketable.harness.contracts.plugins import SearchBudget
from shaketable.harness.history.export import export
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.segments import Event, SegmentWriter
from tests.support.checker_histories import context, no_logs
from tests.support.large_segments import write_segments

KEYS = 20
CAS_REGISTER = Linearizable(discovery.get("models", "cas-register"), "0")


def recorded(folder: Path, events: Iterable[Event]) -> RunFolder:
    """Export what one worker recorded."""
    run = RunFolder(folder / "run")
    run.segments.mkdir(parents=True, exist_ok=True)
    writer = SegmentWriter(run.segment("worker-9"))
    writer.write(events)
    writer.close()
    export(run, with_events=False)
    return run


def stale_register(folder: Path) -> RunFolder:
    """Export many sound registers and one, "stale", that shows an old value."""
    write_segments(RunFolder(folder / "run").segments, 4000, KEYS)
    lie = [
        Event(1, 900_000, "invoke", "write", "stale", 7),
        Event(2, 900_000, "ok", "write", "stale"),
        Event(3, 900_001, "invoke", "read", "stale"),
        Event(4, 900_001, "ok", "read", "stale", output=0),
    ]
    return recorded(folder, lie)


def queues(folder: Path, count: int) -> RunFolder:
    """Export a read for each of some queues q/0, q/1, ..."""
    events = []
    for n in range(count):
        events.append(Event(2 * n + 1, n, "invoke", "read", f"q/{n}"))
        events.append(Event(2 * n + 2, n, "ok", "read", f"q/{n}", output=0))
    return recorded(folder, events)


def job_of(run: RunFolder, *checkers, deadline_unix_s: float | None = None) -> CheckJob:
    """Return the job of judging an exported run's operations."""
    files = tuple(sorted(run.operations.glob("*.parquet")))
    budget = SearchBudget(deadline_unix_s=deadline_unix_s)
    return CheckJob(files, {}, no_logs, context(search=budget), checkers)
