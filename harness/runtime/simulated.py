"""Runs one campaign in a target's simulated world: the same phases, files and verdicts.

Everything happens in this process and on the world's own time, and follows from the
campaign's seed: the same campaign gives the same history.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from harness import discovery
from harness.campaign import Campaign, clients, node_names, workload_options
from harness.errors import HarnessError, UsageError
from harness.history.run_folder import RunFolder
from harness.plugins import Target
from harness.runtime.facts import SIMULATED_CLOCK
from harness.runtime.observer import Observer
from harness.runtime.rig import Rig, make_nemesis, node_options, open_records
from harness.runtime.samples import Samples, SimulatedClocks
from harness.runtime.sim_workers import SimulatedWorkers
from harness.runtime.sim_world import SimulatedWorld
from harness.runtime.supervisor import RunResult, run_rig
from harness.runtime.worker import WorkerPlan
from harness.simulation import Groups, Simulated, SimulatedGroup

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

    `on_clock` is given the world's clock, by which all times are told.

    Raises:
        UsageError: the target has no such world.
        HarnessError: the run could not be set up or done; one line says why.
    """
    target: Target = discovery.get("targets", campaign.target)
    group = groups_of(target).group(node_names(campaign), node_options(campaign))
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


def groups_of(target: Target) -> Groups:
    """Return what makes simulated groups of a target.

    Raises:
        UsageError: it has no simulated world, or none for campaigns.
    """
    simulator = target.simulator if isinstance(target, Simulated) else None
    if not isinstance(simulator, Groups):
        raise UsageError(f"world sim: the target {target.name} has no simulated world")
    return simulator


def build(
    campaign: Campaign,
    group: SimulatedGroup,
    folder: RunFolder,
    observer: Observer,
    command: Sequence[str] = (),
) -> Rig:
    """Put a run in a simulated world together; call it in `group.run`.

    Raises as `harness.runtime.rig.build` does.
    """
    target: Target = discovery.get("targets", campaign.target)
    nodes = node_names(campaign)
    records = open_records(campaign, target, folder, command, group.now_ns, 0, group.now_ns)
    records.facts.update(clock=SIMULATED_CLOCK)
    clocks = SimulatedClocks(group.machines, group.now_ns)
    world = SimulatedWorld(nodes, group, records.status_log, observer)
    world.standing.samples = Samples(records.samples_log, clocks, group.now_ns)
    workers = SimulatedWorkers(_plan(campaign, folder, group), group)

    def collect() -> None:
        for node in nodes:
            try:
                group.save(node, folder.node(node))
            except OSError as error:
                raise HarnessError(f"cannot write {folder.node(node)}: {error}") from error

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
    )


def _plan(campaign: Campaign, folder: RunFolder, group: SimulatedGroup) -> WorkerPlan:
    """One worker with all clients: more processes there are none."""
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
