"""Follow a run in progress: read its new records incrementally, a bounded amount at a time.

Source: the growing files of a run's folder: segments, faults.jsonl, status.jsonl, its log.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.segments import MAGIC, whole_events
from shaketable.harness.serving.store import NotHereError, open_regular, read_tail

STEP_BYTES: Final = 4 << 20
"""Read from a segment at a time: a late viewer of a long run catches up in several steps."""
SECONDS_SHOWN: Final = 120
TAIL_BYTES: Final = 64 << 10
LOG_LINES: Final = 12
FOLLOWED_MAX: Final = 16
"""Runs followed at a time; the counts of a dropped one start again from zero."""


@dataclass(frozen=True, slots=True)
class FaultNow:
    """A fault and its start time; `state` is applying, on, healed or the ledger's event."""

    number: int
    name: str
    state: str
    at_s: float
    what: str


@dataclass(frozen=True, slots=True)
class NodeNow:
    """The last known status of a node.

    Role and term are recorded when they change, positions in the log at most twice a second; each
    has its time, in seconds since the start of the run ("" if it is not known).
    """

    node: str
    role: str
    term: str
    since_s: str
    committed: str = "-"
    seen_s: str = ""


@dataclass(frozen=True, slots=True)
class Live:
    """A run as recorded so far; `rates` are its acknowledged operations of the last seconds."""

    phase: str
    at_s: float
    counts: dict[str, int]
    rates: tuple[int, ...]
    first_s: int
    nodes: tuple[NodeNow, ...]
    faults: tuple[FaultNow, ...]
    log: tuple[str, ...]
    is_behind: bool


@dataclass(slots=True)
class _Followed:
    """How far a run has been read."""

    places: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: Counter[int] = field(default_factory=Counter)
    last_ns: int = 0


@dataclass(slots=True)
class Follower:
    """Follows runs in progress. Thread-safe."""

    _runs: dict[Path, _Followed] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read_new(self, folder: RunFolder) -> Live:
        """Return the progress of a run, after reading what is new since the last call."""
        with self._lock:
            followed = self._runs.pop(folder.path, None) or _Followed()
            self._runs[folder.path] = followed
            while len(self._runs) > FOLLOWED_MAX:
                self._runs.pop(next(iter(self._runs)))
            is_behind = _follow(folder, followed)
            counts, seconds = dict(followed.counts), followed.seconds
            last_s = followed.last_ns // 1_000_000_000
            first_s = max(0, last_s - SECONDS_SHOWN)
            rates = tuple(seconds[second] for second in range(first_s, last_s))
        log = read_tail(folder.log, TAIL_BYTES).decode(errors="replace").splitlines()
        return Live(
            phase=_phase(log),
            at_s=followed.last_ns / 1e9,
            counts=counts,
            rates=rates,
            first_s=first_s,
            nodes=_nodes(
                read_tail(folder.status_jsonl, TAIL_BYTES),
                read_tail(folder.samples_jsonl, TAIL_BYTES),
            ),
            faults=_faults(read_tail(folder.faults_jsonl, TAIL_BYTES)),
            log=tuple(log[-LOG_LINES:]),
            is_behind=is_behind,
        )


def _follow(folder: RunFolder, followed: _Followed) -> bool:
    """Count new events; return whether more are left than were read in this step."""
    is_behind = False
    if folder.segments.is_symlink():
        return False
    for path in sorted(folder.segments.glob("worker-*.seg")):
        try:
            file, size = open_regular(path)
        except NotHereError:
            continue
        with file:
            place = followed.places.setdefault(path.name, len(MAGIC))
            file.seek(place)
            data = file.read(STEP_BYTES)
        events, read, _ = whole_events(data)
        for event in events:
            followed.last_ns = max(followed.last_ns, event.time_ns)
            if event.process >= 0 and event.type != "invoke":
                followed.counts[event.type] += 1
                if event.type == "ok":
                    followed.seconds[event.time_ns // 1_000_000_000] += 1
        followed.places[path.name] = place + read
        is_behind = is_behind or (read > 0 and place + len(data) < size)
    return is_behind


def _phase(log: list[str]) -> str:
    for line in reversed(log):
        _, found, phase = line.partition("event=phase ")
        if found:
            return phase.partition("phase=")[2].split(" ")[0]
    return ""


def _nodes(statuses: bytes, samples: bytes) -> tuple[NodeNow, ...]:
    """Return each node's last role, and its last position, with the times of both."""
    last: dict[str, NodeNow] = {}
    for row in _rows(statuses):
        role, term = (_short(row.get(name)) for name in ("role", "term"))
        node = str(row.get("node"))[:40]
        shown = "no answer" if role == "-" else role
        last[node] = NodeNow(node, shown, term, since_s=_seconds(row))
    for row in _rows(samples):
        node = str(row.get("node"))[:40]
        if node in last:
            committed = _short(row.get("committed_index"))
            last[node] = replace(last[node], committed=committed, seen_s=_seconds(row))
    return tuple(last[node] for node in sorted(last))


def _short(value: object) -> str:
    return "-" if value is None else str(value)[:40]


def _seconds(row: Mapping[str, Any]) -> str:
    """Return when a row was written, as seconds of the run."""
    time_ns = row.get("time_ns")
    return f"{time_ns / 1e9:.1f} s" if isinstance(time_ns, int) else ""


STATES: Final = {"applying": "applying", "applied": "on", "undone": "healed"}


def _faults(tail: bytes) -> tuple[FaultNow, ...]:
    faults: dict[int, FaultNow] = {}
    for row in _rows(tail):
        number, event = row.get("fault"), str(row.get("event"))
        if not isinstance(number, int):
            continue
        before = faults.get(number)
        plan = row.get("plan")
        victims = plan.get("victims") if isinstance(plan, dict) else None
        at_ns = row.get("at_ns")
        faults[number] = FaultNow(
            number=number,
            name=str(row.get("name") or (before.name if before else "?"))[:60],
            state=STATES.get(event, event[:40]),
            at_s=before.at_s if before else at_ns / 1e9 if isinstance(at_ns, int) else 0.0,
            what=", ".join(map(str, victims))[:80]
            if isinstance(victims, list)
            else (before.what if before else ""),
        )
    return tuple(faults[number] for number in sorted(faults))


def _rows(tail: bytes) -> list[dict[str, Any]]:
    """Parse JSON lines; ignore a cut first or last line."""
    rows = []
    for line in tail.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
