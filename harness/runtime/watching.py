"""Follows the recordings of clients while they work, and tells at once what cannot be.

Works on the recordings as they grow, so that clients know nothing of it; a bounded step at a time,
from the task that tells the counts, so that a simulated world stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shaketable.harness import discovery
from shaketable.harness.campaign import Campaign, faults_of, promises_of
from shaketable.harness.clients import topics_of
from shaketable.harness.errors import UsageError
from shaketable.harness.history.plain_files import NoPlainFileError, open_plain
from shaketable.harness.history.segments import MAGIC, Event, whole_events
from shaketable.harness.promises import stands
from shaketable.harness.runtime.online_check import OnlineCheck, Sighting
from shaketable.harness.words import family_of

log = logging.getLogger(__name__)

STEP_BYTES: Final = 128 << 10
"""Of a recording, read at once: some thousands of events, some milliseconds."""
TOLD_MAX: Final = 5
"""So many sightings are told in words, the first ones; of the rest, once, that there are more."""
KEPT_MAX: Final = 100
"""So many are kept for run.json, the first ones; all are counted."""
NOT_WATCHED: Final = (
    "--stop-at-first-violation has no effect: only appends and reads of a log (workloads log and"
    " combined) are watched live, under faults that the target promises to stand"
)
JUDGED: Final = frozenset({"append", "read", "end"})
CHECKER: Final = "linearizable-log"
"""The checker of whatever has the operations that the online check knows."""


@dataclass(slots=True)
class _Tail:
    """How far a recording was read, and whether it can be read on."""

    place: int = len(MAGIC)
    is_readable: bool = True


@dataclass(slots=True)
class Watch:
    """Looks at one run's recordings; `seen` are the first sightings, `count` is of all.

    `topics`: those of the log, where other topics hold something else; None: all.
    `is_off`: it failed, said so, and looks no more: a hint that fails ends no run.
    """

    segments: Path
    tell: Callable[[str], None]
    topics: frozenset[str] | None = None
    seen: list[Sighting] = field(default_factory=list)
    count: int = 0
    is_off: bool = False
    _check: OnlineCheck = field(default_factory=OnlineCheck)
    _tails: dict[str, _Tail] = field(default_factory=dict)

    def look(self) -> None:
        """Read what came since the last look, or a step of it, and tell what cannot be."""
        if self.is_off:
            return
        try:
            self._look()
        except Exception as error:
            self.is_off = True
            log.exception("event=watch_failed")
            self.tell(f"violations are not looked for any more: {type(error).__name__}: {error}")

    def _look(self) -> None:
        events: list[Event] = []
        is_all = True
        for path in sorted(self.segments.glob("worker-*.seg")):
            is_all = self._read(path, events) and is_all
        if self.topics is not None:
            events = [e for e in events if (e.key or "").partition("/")[0] in self.topics]
        events.sort(key=lambda event: event.time_ns)
        for sighting in self._check.see(events, is_all=is_all):
            self.count += 1
            if len(self.seen) < KEPT_MAX:
                self.seen.append(sighting)
            if self.count <= TOLD_MAX:
                self.tell(f"violation seen: {sighting.text} ({sighting.kind})")
            elif self.count == TOLD_MAX + 1:
                self.tell("more violations are seen, and no more of them told; the check has all")

    def _read(self, path: Path, events: list[Event]) -> bool:
        """Read a step of one recording; say whether that was all that it held."""
        tail = self._tails.setdefault(path.name, _Tail())
        if not tail.is_readable:
            return False
        try:
            file, size = open_plain(path)
            with file:
                file.seek(tail.place)
                data = file.read(STEP_BYTES)
        except (NoPlainFileError, OSError):
            return False
        found, read, tail.is_readable = whole_events(data)
        events += found
        tail.place += read
        return tail.is_readable and tail.place >= size


def watch_for(campaign: Campaign, segments: Path, tell: Callable[[str], None]) -> Watch | None:
    """Return what watches a campaign's run; None where what it sees might break no promise.

    It is certain where the operations are those of a log, and the target promises that they are
    linearizable and that what it acknowledged survives every fault that is asked for.
    """
    try:
        target = discovery.get("targets", campaign.target)
        promises = promises_of(campaign, target) or target.promises
        workload = discovery.get("workloads", campaign.workload)
        faults = {name: discovery.get("faults", name) for name in faults_of(campaign)}
    except UsageError:  # a rig that was put together by hand: of its parts nothing is known
        return None
    if CHECKER not in workload.checkers or not promises.linearizable >= JUDGED:
        return None
    if not all(
        stands(promises.durable_under, name, family_of(fault)) for name, fault in faults.items()
    ):
        return None
    return Watch(segments, tell, topics_of(workload).get(CHECKER))
