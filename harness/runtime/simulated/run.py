"""Runs one campaign in a target's simulated world: the same phases, files and verdicts.

Everything happens in this process, in virtual time, and follows from the campaign's seed: the same
campaign gives the same history.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import trio

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import (
    Campaign,
    clients,
    node_names,
    workload_options,
)
from shaketable.harness.contracts.abilities import ExplainsEnds
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Target
from shaketable.harness.contracts.simulation import SimulatedGroup, SimulatesGroups
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.runtime.clients.worker import ANSWER_GRACE_S, Worker, WorkerPlan
from shaketable.harness.runtime.clients.workers import FINALS_GRACE_S
from shaketable.harness.runtime.facts import SIMULATED_CLOCK
from shaketable.harness.runtime.group_status import Samples, SimulatedClocks
from shaketable.harness.runtime.observer import Counts, Observer
from shaketable.harness.runtime.rig import (
    Rig,
    beside_nodes,
    make_nemesis,
    node_options,
    open_records,
)
from shaketable.harness.runtime.simulated.world import SimulatedWorld
from shaketable.harness.runtime.supervisor import RunResult, run_rig

WORKER = "worker-0"


def run_simulated(
    campaign: Campaign,
    folder: RunFolder,
    observer: Observer,
    *,
    command: Sequence[str] = (),
    on_clock: Callable[[Callable[[], int]], None] | None = None,
) -> RunResult:
    """Run a resolved campaign in its target's simulated world. Must be called in the main thread.

    `on_clock` is called with the world's clock, which all reported times are in.

    Raises:
        UsageError: the target has no simulated world.
        HarnessError: the run could not be set up or done; one line says why.
    """
    group = new_group(campaign)
    results: list[RunResult] = []
    if on_clock is not None:
        on_clock(group.now_ns)

    async def main() -> None:
        rig = build(campaign, group, folder, observer, command)
        results.append(await run_rig(rig))

    group.run(main)
    if not results:
        raise HarnessError("the simulated world ended before the campaign did")
    return results[0]


def new_group(campaign: Campaign) -> SimulatedGroup:
    """Return the group of a resolved campaign, not started, with name servers if it needs them.

    Raises:
        UsageError: its target has no simulated world.
    """
    target: Target = discovery.get("targets", campaign.target)
    beside = beside_nodes(campaign)
    return groups_of(target).simulated_group(node_names(campaign), node_options(campaign), beside)


def groups_of(target: Target) -> SimulatesGroups:
    """Return the target as one whose groups can be simulated.

    Raises:
        UsageError: it has no simulated world for campaigns.
    """
    if not isinstance(target, SimulatesGroups):
        raise UsageError(f"world sim: the target {target.name} has no simulated world")
    return target


def build(
    campaign: Campaign,
    group: SimulatedGroup,
    folder: RunFolder,
    observer: Observer,
    command: Sequence[str] = (),
) -> Rig:
    """Assemble a run in a simulated world; call it inside `group.run`.

    Raises as `harness.runtime.rig.build` does.
    """
    target: Target = discovery.get("targets", campaign.target)
    nodes = node_names(campaign)
    records = open_records(campaign, target, folder, command, group.now_ns, 0, group.now_ns)
    records.facts.update(clock=SIMULATED_CLOCK)
    clocks = SimulatedClocks(group.machines, group.now_ns)
    causes = target.end_causes if isinstance(target, ExplainsEnds) else {}
    world = SimulatedWorld(nodes, group, records.status_log, observer, causes)
    world.group_status.samples = Samples(records.samples_log, clocks, group.now_ns)
    workers = SimulatedWorkers(_plan(campaign, folder, group), group)

    def collect() -> None:
        for name in group.addresses:
            try:
                group.save(name, folder.node(name))
            except OSError as error:
                raise HarnessError(f"cannot write {folder.node(name)}: {error}") from error

    return Rig(
        campaign=campaign,
        folder=folder,
        clock_ns=group.now_ns,
        observer=observer,
        facts=records.facts,
        world=world,
        workers=workers,
        services=(world.run, workers.run),
        collect=collect,
        nemesis=make_nemesis(campaign, records, world, observer, group.now_ns),
        schedule=records.schedule,
        recorder=records.recorder,
        ledger=records.ledger,
        logs=(records.status_log, records.samples_log),
        let_go=lambda: None,
        is_virtual=True,
        restore_late=world.restore_disks,
    )


def _plan(campaign: Campaign, folder: RunFolder, group: SimulatedGroup) -> WorkerPlan:
    """Return the plan of a single worker with all clients: there is only one process."""
    assert campaign.seed is not None, "operations are drawn from a seed"
    count = clients(campaign)
    return WorkerPlan(
        name=WORKER,
        target=campaign.target,
        workload=campaign.workload,
        seed=campaign.seed,
        addresses=dict(group.addresses),
        slots=tuple(range(count)),
        clients=count,
        rate_hz=campaign.rate_hz,
        think_time_s=campaign.think_time_s,
        op_timeout_s=campaign.op_timeout_s,
        start_ns=0,
        segment=folder.segment(WORKER),
        parent_pid=os.getpid(),
        options=workload_options(campaign),
        client_factory=group.client,
    )


# The clients of a campaign in a simulated world: tasks of this process, in virtual time.
#
# The same `Worker` as in a client process, but its messages stay in memory.

WORDS_MAX: Final = 16
"""Limit of messages that the worker has not received yet."""
POLL_S: Final = 0.02


class SimulatedWorkers:
    """Implements `harness.runtime.rig.RunWorkers` with one worker that has all clients."""

    def __init__(self, plan: WorkerPlan, group: SimulatedGroup) -> None:
        self._plan = plan
        self._group = group
        self._to, self._coming = trio.open_memory_channel[tuple[Any, ...]](WORDS_MAX)
        self._messages: dict[str, list[Any]] = {}
        self._counts = Counts()
        self._worker: Worker | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the worker until it is told to close; then wait to be cancelled."""
        self._group.run_as_client()
        self._worker = Worker(self._plan, self, self._group.now_ns)
        self._worker.on_ended = self._group.operation_ended
        self._worker.on_unexpected = self._group.operation_raised
        self._worker.gives_up = False  # nothing is slow here: no answer is a finding
        task_status.started()
        await self._worker.run()
        self._group.clients_closed()
        await trio.sleep_forever()

    # ---- the worker's end of the connection --------------------------------------------

    def send(self, message: tuple[Any, ...]) -> None:
        """Take a message from the worker."""
        word, *arguments = message
        if word == "counts":
            self._counts = Counts(*arguments)
        else:
            self._messages[word] = arguments

    async def receive(self) -> tuple[Any, ...]:
        """Return the next message to the worker."""
        return await self._coming.receive()

    # ---- the supervisor's end ----------------------------------------------------------

    async def start(self, timeout_s: float = 30.0) -> None:
        """Wait until the clients are ready."""
        await self._awaited("ready", timeout_s)

    async def generate(self) -> None:
        """Start the workload; it runs until `stop`."""
        await self._to.send(("generate",))

    async def stop(self) -> None:
        """Let clients start no further operations. Idempotent."""
        await self._to.send(("stop",))

    def counts(self) -> Counts:
        """Return the counts of operations so far."""
        return self._counts

    def problems(self) -> tuple[str, ...]:
        """Return (): a worker that fails ends the run."""
        return ()

    def stalls(self) -> list[tuple[int, int]]:
        """Return []: no virtual time passes while clients compute."""
        return []

    def recorded(self) -> Mapping[str, int | None]:
        """Return nothing: a simulated run is over before it is worth following."""
        return {}

    def waiting(self) -> tuple[str, ...]:
        """Return what clients wait for, or gave up, a line each."""
        return () if self._worker is None else self._worker.waiting()

    def pids(self) -> Mapping[str, int]:
        """Return none: the clients are tasks of this process."""
        return {}

    async def finish_main(self, timeout_s: float | None = None) -> bool:
        """Stop clients; True if no operation is still open in time."""
        await self.stop()
        default_s = self._plan.op_timeout_s + 2 * ANSWER_GRACE_S
        return await self._awaited("generated", default_s if timeout_s is None else timeout_s)

    async def run_finals(self, timeout_s: float) -> bool:
        """Run the final operations; True if all were done in time."""
        await self._to.send(("finals", self._group.now_ns() + int(timeout_s * 1e9)))
        in_time = await self._awaited("finals", timeout_s + FINALS_GRACE_S)
        return in_time and self._messages["finals"] == [0]

    async def close(self, timeout_s: float = 10.0) -> dict[str, int | None]:
        """Close the segment; return file name -> events written."""
        await self._to.send(("close",))
        await self._awaited("closed", timeout_s)
        return {self._plan.segment.name: next(iter(self._messages.get("closed", [])), None)}

    async def kill(self) -> None:
        """Do nothing: the clients are tasks of the run, and end with it."""
        await trio.lowlevel.checkpoint()

    async def _awaited(self, word: str, timeout_s: float) -> bool:
        with trio.move_on_after(timeout_s):
            while word not in self._messages:  # noqa: ASYNC110 - the worker knows no Event of ours
                await trio.sleep(POLL_S)
        return word in self._messages
