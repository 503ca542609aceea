"""Runs one campaign from its first process to its last, whatever ends it.

Ctrl-C, SIGTERM or SIGHUP ends the shaking: faults are undone, the clients finish, the nodes agree
as far as they do, and what was recorded is judged like any run. A second one only tears
down. On every way out no process, proxy or fault is left.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial

import trio

from shaketable.harness.campaign import Campaign
from shaketable.harness.errors import HarnessError, UsageError
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.runtime import phases
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.memory_use import MemoryUse
from shaketable.harness.runtime.nemesis import Tally
from shaketable.harness.runtime.observer import RETRY, Counts, Observer
from shaketable.harness.runtime.rig import Rig, build
from shaketable.harness.runtime.watching import NOT_WATCHED, Watch, watch_for

SHUTDOWN_TIMEOUT_S = 60.0
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of a run; the verdict on its history is the checkers'.

    `status` is "complete" or "interrupted". `is_drained` says that the final operations
    were done and all live nodes agreed on what is committed.
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
    """How far a run has come, for whoever has to end it."""

    memory: MemoryUse
    shaking: trio.CancelScope = field(default_factory=trio.CancelScope)
    has_clients: bool = False
    is_interrupted: bool = False
    is_drained: bool = False
    problems: list[str] = field(default_factory=list)
    watch: Watch | None = None
    stopped_at: str | None = None

    def look(self, is_to_stop: bool) -> None:
        """Look for violations while clients work; end the shaking at the first if asked to."""
        if self.watch is None:
            return
        self.watch.look()
        if is_to_stop and self.watch.seen and self.stopped_at is None:
            self.stopped_at = self.watch.seen[0].text
            self.shaking.cancel()


async def run_campaign(
    campaign: Campaign,
    folder: RunFolder,
    observer: Observer,
    *,
    base_port: int | None = None,
    command: Sequence[str] = (),
) -> RunResult:
    """Run a resolved campaign into its folder. Must be called in the main thread.

    Args:
        campaign: as `harness.campaign.resolve` returned it.
        folder: made by `harness.history.run_folder.create`.
        observer: told of phases, faults, leaders and counts.
        base_port: first of the loopback ports for the nodes; None: free ones.
        command: the command line, for run.json.

    Raises:
        UsageError: the campaign cannot be run as it is.
        HarnessError: the run could not be set up or done; one line says why.
    """
    return await run_rig(build(campaign, folder, observer, base_port=base_port, command=command))


async def run_rig(rig: Rig) -> RunResult:
    """Run what was put together, whatever its world. Raises as `run_campaign` does."""
    memory_log = Lines(rig.folder.memory_jsonl)
    progress = _Progress(MemoryUse(memory_log, rig.workers.pids, rig.facts.now_ns))
    progress.watch = watch_for(rig.campaign, rig.folder.segments, rig.observer.note)
    if progress.watch is None and rig.campaign.stop_at_first_violation:
        rig.observer.note(NOT_WATCHED)  # or somebody waits for it until the time limit
    try:
        with _one_line():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_listen_for_signals, rig, progress, nursery.cancel_scope)
                for service in rig.services:
                    await nursery.start(service)
                try:
                    await _run_phases(rig, progress)
                finally:
                    await _tear_down(rig, progress)
                nursery.cancel_scope.cancel()
    except BaseException as error:
        rig.facts.update(status="failed", error=f"{type(error).__name__}: {error}")
        raise
    finally:
        memory_log.close()
        rig.close()
    return _conclude(rig, progress)


async def _run_phases(rig: Rig, progress: _Progress) -> None:
    campaign = rig.campaign
    look = partial(progress.look, campaign.stop_at_first_violation)
    with progress.shaking:
        with _phase(rig, "setup", None):
            is_served = await phases.set_up(rig)
        if not is_served:
            return
        async with phases.telling_counts(rig, look), progress.memory.recorded(campaign.steady_s):
            began = trio.current_time()
            progress.has_clients = True
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
        async with phases.telling_counts(rig, partial(progress.look, False)):
            progress.is_drained = await phases.drain(rig)


async def _tear_down(rig: Rig, progress: _Progress) -> None:
    """End everything, shielded from whatever ended the run, but bounded."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + SHUTDOWN_TIMEOUT_S):
        with _phase(rig, "teardown", None):
            progress.problems += rig.workers.problems()
            try:
                segments = await phases.tear_down(rig)
                rig.collect()
            finally:
                await rig.workers.kill()
        progress.problems += rig.world.remarks()
        rig.observer.counts(rig.workers.counts())  # the exact ones: told as each worker closed
        segments["nemesis.seg"] = rig.recorder.close()
        rig.facts.update(segments=segments, stalls=rig.workers.stalls())


def _conclude(rig: Rig, progress: _Progress) -> RunResult:
    result = RunResult(
        folder=rig.folder,
        status="interrupted" if progress.is_interrupted else "complete",
        counts=rig.workers.counts(),
        faults_planned=len(rig.schedule),
        faults=rig.nemesis.tally,
        leader_changes=rig.world.standing.leader_changes,
        is_drained=progress.is_drained,
        problems=(*progress.problems, *(str(ended) for ended in rig.world.exits)),
    )
    rig.facts.update(
        status=result.status,
        counts=asdict(result.counts),
        faults_done={"planned": result.faults_planned, **asdict(result.faults)},
        leader_changes=result.leader_changes,
        drained=result.is_drained,
        exits=[asdict(ended) for ended in rig.world.exits],
        broken=[asdict(broken) for broken in (*rig.world.broken(), *rig.not_back)],
        left=list(rig.nemesis.left),
        problems=list(result.problems),
        seen_live=_seen_live(progress),
        stopped_at=progress.stopped_at,
        memory=progress.memory.summary(),
    )
    return result


def _seen_live(progress: _Progress) -> dict[str, object] | None:
    """What was seen while clients worked, for run.json; None where nobody looked."""
    watch = progress.watch
    return None if watch is None else {"count": watch.count, "first": [*map(asdict, watch.seen)]}


async def _listen_for_signals(rig: Rig, progress: _Progress, everything: trio.CancelScope) -> None:
    """First signal: end the shaking in good order. Second: end everything."""
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
def _one_line() -> Iterator[None]:
    """Turn a group of errors with a clear one in it into that one."""
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
