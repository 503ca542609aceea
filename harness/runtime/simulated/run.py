"""Runs one campaign in a target's simulated world: the same phases, files and verdicts.

Everything happens in this process, in virtual time, and follows from the campaign's seed: the same
campaign gives the same history.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

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
from shaketable.harness.runtime.clients.worker import WorkerPlan
from shaketable.harness.runtime.clients.workers import TaskWorkers
from shaketable.harness.runtime.facts import SIMULATED_CLOCK
from shaketable.harness.runtime.group_status import Samples, SimulatedClocks
from shaketable.harness.runtime.observer import Observer
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


class SimulatedWorkers(TaskWorkers):
    """Clients as tasks of a simulated world, which is told of what they do."""

    def __init__(self, plan: WorkerPlan, group: SimulatedGroup) -> None:
        super().__init__(plan, group.now_ns)
        self._group = group

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the worker until it is told to close; then wait to be cancelled."""
        self._group.run_as_client()
        worker = self.worker()
        worker.on_ended = self._group.operation_ended
        worker.on_unexpected = self._group.operation_raised
        worker.gives_up = False  # nothing is slow here: no answer is a finding
        task_status.started()
        await worker.run()
        self._group.clients_closed()
        await trio.sleep_forever()
