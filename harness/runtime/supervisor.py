"""Runs one campaign from start to end, however it ends.

Ctrl-C, SIGTERM or SIGHUP ends the chaos: faults are undone, the clients finish, the nodes agree as
far as possible, and the recorded history is judged like any other. A second signal only tears down.
In all cases no process, proxy or fault is left.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import (
    EXISTING,
    HOSTS,
    Campaign,
    faults_of,
    promises_of,
    target_of,
)
from shaketable.harness.contracts.capabilities import family_of
from shaketable.harness.contracts.clients import topics_of
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.promises import is_promised
from shaketable.harness.history.run_folder import NoPlainFileError, RunFolder, open_plain
from shaketable.harness.history.segments import MAGIC, Event, whole_events
from shaketable.harness.runtime import existing_world, phases
from shaketable.harness.runtime.clients.online_check import OnlineCheck, Sighting
from shaketable.harness.runtime.hosts import world as on_hosts
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.nemesis import Tally
from shaketable.harness.runtime.observer import RETRY, Counts, Observer
from shaketable.harness.runtime.online import JudgeProgram, OnlineRun
from shaketable.harness.runtime.processes.limited_processes import resident_bytes
from shaketable.harness.runtime.rig import Rig, build, is_own_fault

SHUTDOWN_TIMEOUT_S = 60.0
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a run, without the checkers' verdict.

    `status` is "complete" or "interrupted". `is_drained`: the final operations were done and all
    live nodes agreed on what is committed.
    """

    folder: RunFolder
    status: str
    counts: Counts
    faults_planned: int
    faults: Tally
    leader_changes: int
    is_drained: bool
    problems: tuple[str, ...]


@dataclass(slots=True)
class _Progress:
    """The progress of a run, for the code that ends it."""

    memory: MemoryUse
    shaking: trio.CancelScope = field(default_factory=trio.CancelScope)
    has_clients: bool = False
    is_interrupted: bool = False
    is_drained: bool = False
    problems: list[str] = field(default_factory=list)
    watch: Watch | None = None
    stopped_at: str | None = None
    told: set[str] = field(default_factory=set)
    """What was told of rules of their own that clients broke: each rule once."""

    def stop_at(self, text: str) -> None:
        """End the chaos: a violation was seen."""
        if self.stopped_at is None:
            self.stopped_at = text
            self.shaking.cancel()

    def look(self, rig: Rig, *, may_stop: bool = True) -> None:
        """Look for violations while clients work; end the chaos at the first one if asked to."""
        found: list[str] = []
        if self.watch is not None:
            self.watch.look()
            found += [sighting.text for sighting in self.watch.seen]
        broken = rig.workers.violated()
        of_clients = [f"clients broke {each.invariant}: {each.finding}" for each in broken]
        for text in of_clients:
            if text not in self.told:
                rig.observer.note(text)
        self.told.update(of_clients)
        found += of_clients
        found += [f"node {ended}" for ended in rig.world.exits if is_own_fault(ended)]
        found += [f"{each.invariant}: {each.finding}" for each in rig.world.broken()]
        if found and may_stop and rig.campaign.stop_at_first_violation:
            self.stop_at(found[0])


async def run_campaign(
    campaign: Campaign,
    folder: RunFolder,
    observer: Observer,
    *,
    base_port: int | None = None,
    command: Sequence[str] = (),
    judge: JudgeProgram | None = None,
) -> RunResult:
    """Run a resolved campaign into its folder. Must be called in the main thread.

    Args:
        campaign: from `harness.campaigns.campaign.resolve`.
        folder: from `harness.history.run_folder.create`.
        observer: is notified of phases, faults, leaders and counts.
        base_port: first of the loopback ports for the nodes; None: free ones.
        command: the command line, for run.json.
        judge: what judges the run while it goes on, if anything of it can be.

    Raises:
        UsageError: the campaign cannot be run as it is.
        HarnessError: the run could not be set up or done; one line says why.
    """
    return await run_rig(
        await assemble(campaign, folder, observer, base_port=base_port, command=command), judge
    )


async def assemble(
    campaign: Campaign,
    folder: RunFolder,
    observer: Observer,
    *,
    base_port: int | None = None,
    command: Sequence[str] = (),
) -> Rig:
    """Assemble a run in the campaign's world, which takes real time; start nothing.

    Arguments and errors are those of `run_campaign`.
    """
    if campaign.world == EXISTING:
        return existing_world.build(campaign, folder, observer, command=command)
    if campaign.world == HOSTS:
        return await on_hosts.build(campaign, folder, observer, command=command)
    return build(campaign, folder, observer, base_port=base_port, command=command)


async def run_rig(rig: Rig, judge: JudgeProgram | None = None) -> RunResult:
    """Run an assembled rig in any world. Arguments and errors are those of `run_campaign`."""
    memory_log = Lines(rig.folder.memory_jsonl)
    online = OnlineRun.of(rig, judge)
    progress = _Progress(MemoryUse(memory_log, partial(_pids, rig, online), rig.facts.now_ns))
    online.on_first = progress.stop_at if rig.campaign.stop_at_first_violation else None
    progress.watch = watch_for(rig.campaign, rig.folder.segments, rig.observer.note)
    if progress.watch is None and not online.is_judged and rig.campaign.stop_at_first_violation:
        rig.observer.note(NOT_WATCHED)  # else a user may wait for it until the time limit
    try:
        with one_line():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_listen_for_signals, rig, progress, nursery.cancel_scope)
                for service in rig.services:
                    await nursery.start(service)
                async with online.judged():
                    try:
                        await _run_phases(rig, progress, online)
                    finally:
                        await _tear_down(rig, progress)
                nursery.cancel_scope.cancel()
    except BaseException as error:
        rig.facts.update(status="failed", error=f"{type(error).__name__}: {error}")
        raise
    finally:
        memory_log.close()
        rig.close()
    return _conclude(rig, progress, online)


def _pids(rig: Rig, online: OnlineRun) -> Mapping[str, int]:
    return {**rig.workers.pids(), **online.pids}


async def _run_phases(rig: Rig, progress: _Progress, online: OnlineRun) -> None:
    campaign = rig.campaign
    look = partial(progress.look, rig)
    with progress.shaking:
        with _phase(rig, "setup", None):
            is_served = await phases.set_up(rig)
            await online.ready()
        if not is_served:
            return
        async with phases.reporting_counts(rig, look), progress.memory.recorded(campaign.steady_s):
            began = trio.current_time()
            progress.has_clients = online.has_clients = True
            await rig.workers.generate()
            with _phase(rig, "steady", campaign.steady_s):
                await phases.steady(rig, began)
            with _phase(rig, "chaos", campaign.time_limit_s - campaign.steady_s):
                is_stopped = await phases.chaos(rig, began)
            if not is_stopped:
                with _phase(rig, RETRY, None):
                    await phases.retry(rig)
    if not progress.has_clients:
        return
    if progress.stopped_at is not None:
        rig.observer.note("undoing faults and ending the run at the first violation")
    with _phase(rig, "heal", None):
        progress.problems += await phases.heal(rig)
    with _phase(rig, "drain", None):
        async with phases.reporting_counts(rig, partial(progress.look, rig, may_stop=False)):
            progress.is_drained = await phases.drain(rig)


async def _tear_down(rig: Rig, progress: _Progress) -> None:
    """Stop everything, shielded from cancellation, but bounded."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + SHUTDOWN_TIMEOUT_S):
        with _phase(rig, "teardown", None):
            progress.problems += rig.workers.problems()
            try:
                segments = await phases.tear_down(rig)
                rig.collect()
            finally:
                await rig.workers.kill()
        progress.problems += rig.world.remarks()
        rig.observer.counts(rig.workers.counts())  # now exact: each worker has closed
        segments["nemesis.seg"] = rig.recorder.close()
        rig.facts.update(segments=segments, stalls=rig.workers.stalls())


def _conclude(rig: Rig, progress: _Progress, online: OnlineRun) -> RunResult:
    result = RunResult(
        folder=rig.folder,
        status="interrupted" if progress.is_interrupted else "complete",
        counts=rig.workers.counts(),
        faults_planned=len(rig.schedule),
        faults=rig.nemesis.tally,
        leader_changes=rig.world.group_status.leader_changes,
        is_drained=progress.is_drained,
        problems=(*progress.problems, *(str(ended) for ended in rig.world.exits)),
    )
    rig.facts.update(
        status=result.status,
        counts=asdict(result.counts),
        faults_done={"planned": result.faults_planned, **result.faults.to_json()},
        leader_changes=result.leader_changes,
        drained=result.is_drained,
        exits=[asdict(ended) for ended in rig.world.exits],
        broken=[
            asdict(broken)
            for broken in (*rig.world.broken(), *rig.workers.violated(), *rig.not_recovered)
        ],
        left=list(rig.nemesis.left),
        problems=list(result.problems),
        seen_live=_seen_live(progress),
        stopped_at=progress.stopped_at,
        **({"online": online.facts()} if online.is_judged else {}),
        memory=progress.memory.summary(),
    )
    return result


def _seen_live(progress: _Progress) -> dict[str, object] | None:
    """Return the violations seen while clients worked, for run.json; None without a watch."""
    watch = progress.watch
    return None if watch is None else {"count": watch.count, "first": [*map(asdict, watch.seen)]}


async def _listen_for_signals(rig: Rig, progress: _Progress, everything: trio.CancelScope) -> None:
    """First signal: end the chaos gracefully. Second: stop everything."""
    with trio.open_signal_receiver(*ENDING_SIGNALS) as signals:
        async for number in signals:
            name = signal.Signals(number).name
            if progress.is_interrupted:
                rig.observer.note(f"{name} again: ending everything now")
                everything.cancel()
                return
            progress.is_interrupted = True
            rig.observer.note(f"{name}: undoing faults and ending the run (again: at once)")
            progress.shaking.cancel()


@contextmanager
def _phase(rig: Rig, name: str, planned_s: float | None) -> Iterator[None]:
    with rig.facts.phase(name) as at_ns:
        rig.observer.phase_started(name, at_ns, planned_s)
        yield


@contextmanager
def one_line() -> Iterator[None]:
    """Replace an exception group by the one clear error in it."""
    try:
        yield
    except BaseExceptionGroup as group:
        clear, rest = group.split((HarnessError, UsageError))
        if clear is None or rest is not None:
            raise
        first: BaseException = clear
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group


# Follows the clients' recordings while they work, and reports violations at once.
#
# Reads the growing files, so clients are not involved, in bounded steps, from the task that reports
# the counts, so that a simulated world does not change.

log = logging.getLogger(__name__)

STEP_BYTES: Final = 128 << 10
"""Read of a recording at once: some thousands of events, some milliseconds."""
REPORTED_MAX: Final = 5
"""The first sightings are reported in full; then one line says that there are more."""
KEPT_MAX: Final = 100
"""The first ones are kept for run.json; all are counted."""
NOT_WATCHED: Final = (
    "what the clients of this campaign do is judged at its end: --stop-at-first-violation ends it"
    " at a rule that a node or a client checks itself"
)
JUDGED: Final = frozenset({"append", "read", "end"})
CHECKER: Final = "linearizable-log"
"""The checker for workloads whose operations the online check knows."""


@dataclass(slots=True)
class _Tail:
    """How far a recording was read, and whether it is still readable."""

    place: int = len(MAGIC)
    is_readable: bool = True


@dataclass(slots=True)
class Watch:
    """Watches one run's recordings. `seen` holds the first sightings, `count` counts all.

    `topics`: the topics that are logs, if other topics are not; None: all. `is_off`: it failed,
    reported that, and stopped; a failed hint ends no run.
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
        """Read what was appended since the last look, or a step of it, and report violations."""
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
            if self.count <= REPORTED_MAX:
                self.tell(f"violation seen: {sighting.text} ({sighting.kind})")
            elif self.count == REPORTED_MAX + 1:
                self.tell(
                    "more violations are seen, and no more of them are shown; the check has all"
                )

    def _read(self, path: Path, events: list[Event]) -> bool:
        """Read a step of one recording; return whether that was all of it."""
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
    """Return the watch for a campaign; None if a sighting might not be a violation.

    A sighting is certain if the operations are those of a log, and the target promises that they
    are linearizable and that acknowledged appends survive every requested fault.
    """
    try:
        target = target_of(campaign)
        promises = promises_of(campaign, target) or target.promises
        workload = discovery.get("workloads", campaign.workload)
        faults = {name: discovery.get("faults", name) for name in faults_of(campaign)}
    except UsageError:  # a rig assembled by hand: its parts are unknown
        return None
    if CHECKER not in workload.checkers or not promises.linearizable >= JUDGED:
        return None
    if not all(
        is_promised(promises.durable_under, name, family_of(fault))
        for name, fault in faults.items()
    ):
        return None
    return Watch(segments, tell, topics_of(workload).get(CHECKER))


# The memory of the harness and its client workers while clients work: it must not grow.
#
# Sampled every `SAMPLE_EVERY_S`, from the clients' start to their end; the check's memory comes
# later. All samples are in memory.jsonl; first, last and maximum in run.json.
#
# Source: proc(5), statm (resident set size).

SAMPLE_EVERY_S: Final = 5.0
HARNESS: Final = "harness"


class MemoryUse:
    """Tracks the memory of one run.

    Args:
        lines: memory.jsonl, open.
        pids: returns the other processes, by name.
        now_ns: returns the time since the run's start.
    """

    def __init__(
        self, lines: Lines, pids: Callable[[], Mapping[str, int]], now_ns: Callable[[], int]
    ) -> None:
        self._lines = lines
        self._pids = pids
        self._now_ns = now_ns
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._most: dict[str, int] = {}

    @asynccontextmanager
    async def recorded(self, settle_s: float) -> AsyncIterator[None]:
        """Sample within the body of `with`; the first to count is `settle_s` after its start."""

        async def take() -> None:
            await trio.sleep(settle_s)
            while True:
                self.sample()
                await trio.sleep(SAMPLE_EVERY_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()
                self.sample()

    def sample(self) -> None:
        """Sample all processes now."""
        found = {}
        for name, pid in {HARNESS: os.getpid(), **self._pids()}.items():
            used = resident_bytes(pid)
            if used is not None:
                found[name] = used
        for name, used in found.items():
            self._first.setdefault(name, used)
            self._last[name] = used
            self._most[name] = max(used, self._most.get(name, 0))
        self._lines.append({"time_ns": self._now_ns(), "bytes": found})

    def summary(self) -> dict[str, Json]:
        """Return first, last and maximum of each process, in bytes."""
        return {
            name: {"first": first, "last": self._last[name], "most": self._most[name]}
            for name, first in self._first.items()
        }
