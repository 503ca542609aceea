"""The parts of a campaign on processes, assembled but not started."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from time import monotonic_ns
from typing import Protocol

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import (
    Campaign,
    faults_of,
    needs_name_server,
    promises_of,
    target_of,
)
from shaketable.harness.campaigns.schedule import Planned, encode_schedule, schedule
from shaketable.harness.campaigns.scripts import counted
from shaketable.harness.contracts.abilities import (
    Broken,
    HasVolatileDisk,
    NamesBrokers,
    PlantsBugsBeside,
    SteersNodes,
)
from shaketable.harness.contracts.capabilities import (
    OF_DISKS,
    STEERED,
    TAKE_LOGS,
    Capability,
    needs_of,
)
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import (
    Address,
    Fault,
    Json,
    Launch,
    NodeLayout,
    Target,
    World,
)
from shaketable.harness.history.run_folder import RunFolder, write_atomically
from shaketable.harness.history.segments import Recorder
from shaketable.harness.network.netns import PacketNetwork
from shaketable.harness.runtime import availability, sites
from shaketable.harness.runtime.clients.workers import WorkerGroup, WorkerPlan, plan_workers
from shaketable.harness.runtime.facts import RunFacts, describe, wall_clock
from shaketable.harness.runtime.group_status import AnsweredClocks, GroupStatus, Samples
from shaketable.harness.runtime.ledger import Ledger, Lines
from shaketable.harness.runtime.nemesis import Budget, Nemesis
from shaketable.harness.runtime.observer import Counts, Observer
from shaketable.harness.runtime.processes.disks import Member, watch_disks
from shaketable.harness.runtime.processes.faketime import FakedTime
from shaketable.harness.runtime.processes.nodes import Exit, NodeProcess
from shaketable.harness.runtime.sites import Site
from shaketable.harness.runtime.stored_logs import StoredLogs
from shaketable.harness.runtime.world import ProcessWorld
from shaketable.harness.volatile_disk.disk import VolatileDisk, why_no_volatile_disk

NAME_SERVERS = ("ns0", "ns1")
"""The name servers that run beside the nodes, if clients need one."""


class RunWorld(World, Protocol):
    """What the phases of a run need of its world, besides the primitives of faults."""

    exits: list[Exit]
    group_status: GroupStatus

    def start_all(self) -> tuple[str, ...]:
        """Start every node that does not run; return which."""
        ...

    def restore(self) -> tuple[str, ...]:
        """Repair whatever faults left behind; return what that was."""
        ...

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        ...

    async def stop_all(self) -> None:
        """Stop all nodes, gracefully if possible."""
        ...

    def explain(self, ended: Exit) -> str:
        """Describe in one line how a node ended by itself, and where to read more."""
        ...

    def remarks(self) -> tuple[str, ...]:
        """Return problems that the world itself observed: such a run is not valid."""
        ...

    def broken(self) -> tuple[Broken, ...]:
        """Return the invariants that the world saw violated, in order: such a run is invalid."""
        ...

    def awaited(self) -> frozenset[str]:
        """Return the nodes that lost their disk and have not caught up yet."""
        ...


class WorldWithWorkers(RunWorld, Protocol):
    """A world in real time: its clients are in worker processes."""

    workers: WorkerGroup


def is_own_fault(ended: Exit) -> bool:
    """True if a node ended because of a bug that it detected itself: it may never come back."""
    return bool(ended.cause) and not ended.excuse


def is_broken(world: RunWorld) -> bool:
    """True if any node ended because of a bug that it detected itself."""
    return any(map(is_own_fault, world.exits))


class RunWorkers(Protocol):
    """What the phases of a run need of its clients; see `WorkerGroup`."""

    async def start(self, timeout_s: float) -> None:
        """Get the clients ready."""
        ...

    async def generate(self) -> None:
        """Start the workload; it runs until `stop`."""
        ...

    async def stop(self) -> None:
        """Let clients start no further operations. Idempotent."""
        ...

    def counts(self) -> Counts:
        """Return the counts of operations so far."""
        ...

    def problems(self) -> tuple[str, ...]:
        """Return one line for each worker that failed."""
        ...

    def stalls(self) -> list[tuple[int, int]]:
        """Return when (from, to, in ns of the run) the client processes themselves stalled."""
        ...

    def violated(self) -> list[Broken]:
        """Return which rules of their own clients broke."""
        ...

    def recorded(self) -> Mapping[str, int | None]:
        """Return how far each segment is complete; see `GrowingSegments.note`."""
        ...

    def waiting(self) -> tuple[str, ...]:
        """Return what clients wait for or gave up, a line each; () if unknown here."""
        ...

    def pids(self) -> Mapping[str, int]:
        """Return the process ids of the client processes, by name."""
        ...

    async def finish_main(self, timeout_s: float | None = None) -> bool:
        """Stop clients; True if no operation is still open in time."""
        ...

    async def run_finals(self, timeout_s: float) -> bool:
        """Do the final operations; True if all were done in time."""
        ...

    async def close(self, timeout_s: float = 10.0) -> dict[str, int | None]:
        """Close the segments; return file name -> events written."""
        ...

    async def kill(self) -> None:
        """Kill what still runs. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Rig:
    """The parts of one run.

    `clock_ns` is the clock of the whole run: CLOCK_MONOTONIC, or a simulated world's. `services`
    run in the background for the length of the run, started in this order; `collect` copies what
    the nodes wrote into the run's folder, after they have ended. With `is_virtual`, time passes
    only while a task waits for it, so nothing is slow by itself. `not_recovered` then holds what
    failed to recover in time (`harness.runtime.liveness`), and `restore_late` tries for some
    seconds to repair what `world.restore` cannot at once, and returns what was left.
    `until_logs_are_read` waits so many seconds at most until what reads the nodes' logs is
    compiled, and returns whether it is; None if no fault has it read.
    """

    campaign: Campaign
    folder: RunFolder
    clock_ns: Callable[[], int]
    observer: Observer
    facts: RunFacts
    world: RunWorld
    workers: RunWorkers
    services: Sequence[Callable[..., Awaitable[None]]]
    collect: Callable[[], None]
    nemesis: Nemesis
    schedule: Sequence[Planned]
    recorder: Recorder
    ledger: Ledger
    logs: Sequence[Lines]
    let_go: Callable[[], None]
    is_virtual: bool = False
    restore_late: Callable[[float], Awaitable[Sequence[str]]] | None = None
    until_logs_are_read: Callable[[float], Awaitable[bool]] | None = None
    not_recovered: list[Broken] = field(default_factory=list)

    def close(self) -> int:
        """Close the files of the harness; return the number of nemesis events."""
        self.let_go()
        for log in self.logs:
            log.close()
        self.ledger.close()
        return self.recorder.close()


def build(
    campaign: Campaign,
    folder: RunFolder,
    observer: Observer,
    *,
    base_port: int | None = None,
    command: Sequence[str] = (),
) -> Rig:
    """Draw the schedule, choose ports, configure the nodes; start nothing.

    Args:
        campaign: resolved: with a seed and known names.
        folder: the run's folder, which exists.
        observer: is notified of progress.
        base_port: first of the loopback ports for the nodes; None: free ones.
        command: the command line, for the record.

    Raises:
        UsageError: the campaign leaves no room for its faults.
        HarnessError: a port is in use, a file cannot be written, a target fails.
    """
    target = target_of(campaign)
    start_ns = monotonic_ns()

    def now_ns() -> int:
        return monotonic_ns() - start_ns

    records = open_records(campaign, target, folder, command, now_ns, start_ns, monotonic_ns)
    records.facts.update(clock=wall_clock(now_ns))
    try:
        beside = beside_nodes(campaign)
        site = sites.lay_out(campaign, folder, base_port, node_options(campaign), beside)
    except BaseException:
        records.close()
        raise
    try:
        helpers = configure_name_servers(target, site, folder, start_ns, campaign.mutant)
        members = configure_nodes(target, site, folder, start_ns, capabilities_of(campaign))
    except BaseException:
        site.network.close()
        records.close()
        raise
    note_in_ledger(records.ledger, site, members, helpers)
    logs = StoredLogs(target.read_log, records.ledger.process)
    world = ProcessWorld(
        target, members, site.network, records.status_log, observer, start_ns, helpers, logs
    )
    clients = {node: layout.client_address for node, layout in site.layouts.items()}
    clients |= site.name_servers
    takes_logs = bool(capabilities_of(campaign) & TAKE_LOGS)
    return records.rig(
        observer, world, plan_workers(campaign, folder, clients, start_ns),
        services=(
            *_services(site, world, logs if takes_logs else None),
            partial(watch_disks, members),
        ),
        let_go=partial(let_go, site, members),
        restore_late=world.restore_disks,
        until_logs_are_read=logs.until_warm if takes_logs else None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Records:
    """The faults of a run and the files that its harness writes, in any world."""

    campaign: Campaign
    folder: RunFolder
    faults: Mapping[str, Fault]
    schedule: Sequence[Planned]
    facts: RunFacts
    status_log: Lines
    samples_log: Lines
    recorder: Recorder
    ledger: Ledger

    def rig(
        self,
        observer: Observer,
        world: WorldWithWorkers,
        plans: Sequence[WorkerPlan],
        *,
        services: Sequence[Callable[..., Awaitable[None]]],
        let_go: Callable[[], None],
        restore_late: Callable[[float], Awaitable[Sequence[str]]],
        until_logs_are_read: Callable[[float], Awaitable[bool]] | None = None,
    ) -> Rig:
        """Return the rig of a run in real time; see `Rig`. `plans` are those of client workers."""
        now_ns = self.facts.now_ns
        world.group_status.samples = Samples(self.samples_log, AnsweredClocks(), now_ns)
        world.workers = WorkerGroup(plans, self.ledger.process)
        return Rig(
            campaign=self.campaign,
            folder=self.folder,
            clock_ns=monotonic_ns,
            observer=observer,
            facts=self.facts,
            world=world,
            workers=world.workers,
            services=services,
            collect=_nothing,
            nemesis=make_nemesis(self.campaign, self, world, observer, now_ns),
            schedule=self.schedule,
            recorder=self.recorder,
            ledger=self.ledger,
            logs=(self.status_log, self.samples_log),
            let_go=let_go,
            restore_late=restore_late,
            until_logs_are_read=until_logs_are_read,
        )

    def close(self) -> None:
        """Close the files."""
        self.status_log.close()
        self.samples_log.close()
        self.ledger.close()
        self.recorder.close()


def open_records(
    campaign: Campaign,
    target: Target,
    folder: RunFolder,
    command: Sequence[str],
    now_ns: Callable[[], int],
    start_ns: int,
    clock_ns: Callable[[], int],
) -> Records:
    """Draw the schedule and open the files. `now_ns` returns the time since the run's start.

    Raises:
        UsageError: the campaign leaves no room for its faults, or none of them is available.
        HarnessError: a file cannot be written.
    """
    choice = availability.choose(campaign)
    planned = schedule(campaign, choice.faults)
    write_atomically(folder.schedule_json, encode_schedule(planned))
    promises = promises_of(campaign, target) or target.promises
    breaks = None if campaign.mutant is None else target.mutants.get(campaign.mutant)
    facts = RunFacts(folder.run_json, describe(campaign, promises, command, breaks), now_ns)
    if choice.unavailable:
        facts.update(faults_unavailable=dict(choice.unavailable))
    return Records(
        campaign=campaign,
        folder=folder,
        faults=choice.faults,
        schedule=planned,
        facts=facts,
        status_log=Lines(folder.status_jsonl),
        samples_log=Lines(folder.samples_jsonl),
        recorder=Recorder(folder.segment("nemesis"), start_ns, clock_ns),
        ledger=Ledger(folder.faults_jsonl, now_ns),
    )


def make_nemesis(
    campaign: Campaign,
    records: Records,
    world: RunWorld,
    observer: Observer,
    now_ns: Callable[[], int],
) -> Nemesis:
    """Return the nemesis of a run, subscribed to elections."""
    budget = Budget(world.nodes, keeps_quorum=campaign.budget == "quorum")
    record = records.recorder.nemesis
    nemesis = Nemesis(records.faults, world, records.ledger, record, observer, now_ns, budget)
    world.group_status.on_elected = nemesis.events.leader_elected
    nemesis.is_hopeless = partial(is_broken, world)
    return nemesis


def _services(
    site: Site, world: ProcessWorld, logs: StoredLogs | None
) -> Sequence[Callable[..., Awaitable[None]]]:
    """Return the background services; `logs` is given if faults remove stored entries."""
    if logs is None:
        return (site.network.run, world.run)
    reading = partial(logs.warm_up, tuple(site.layouts.values()), world.group_status.until_ready)
    return (site.network.run, world.run, reading)


def _nothing() -> None:
    """Do nothing: node processes write into the run's folder themselves."""


def node_options(campaign: Campaign) -> Json:
    """Return the options that a target gets for its nodes (`NodeLayout.options`)."""
    capabilities = capabilities_of(campaign)
    return {
        "mutant": campaign.mutant,
        "seed": campaign.seed,
        "disk": campaign.disk,
        "record": campaign.record,
        "ack": campaign.ack,
        "leases_ms": campaign.leases_ms,
        "spares": bool(capabilities & {Capability.WIPE}),
        "steering": bool(capabilities & STEERED)
        or any(counted(step.on or "") for step in campaign.script),
        "limits": campaign.limits,
        "data_file_bytes": campaign.data_file_bytes,
        "index_file_bytes": campaign.index_file_bytes,
    }


def beside_nodes(campaign: Campaign) -> Sequence[str]:
    """Return the name servers that run beside the nodes: two if faults strike one of them."""
    if not needs_name_server(campaign):
        return ()
    return (
        NAME_SERVERS
        if Capability.NAME_SERVER_PROCESSES in capabilities_of(campaign)
        else NAME_SERVERS[:1]
    )


def capabilities_of(campaign: Campaign) -> frozenset[Capability]:
    """Return all capabilities that the faults of a campaign need."""
    faults = (discovery.get("faults", name) for name in faults_of(campaign))
    return frozenset(capability for fault in faults for capability in needs_of(fault))


# The processes of a run's nodes, configured and registered, not started.


def configure_nodes(
    target: Target,
    site: Site,
    folder: RunFolder,
    start_ns: int,
    capabilities: Collection[Capability],
) -> dict[str, Member]:
    """Let the target configure each node, for faults with these capabilities.

    Nodes that need a skewed clock but cannot be steered run under libfaketime, and those that need
    a failing disk on one of the harness, which is mounted now.

    Raises:
        HarnessError: a folder cannot be made, a file cannot be written, a disk not be mounted.
    """
    is_faked = Capability.CLOCK in capabilities and bool(availability.clocks_of(target))
    launches = {node: _prepared(target, layout) for node, layout in site.layouts.items()}
    members: dict[str, Member] = {}
    with ExitStack() as opened:
        for node, layout in site.layouts.items():
            disk = _mounted(target, layout, capabilities)
            prefix = (*site.prefixes.get(node, ()),)
            if disk is not None:
                opened.callback(disk.close)
                prefix = (*prefix, *disk.enter_command(layout.directory))
            log = folder.node_log(node)
            process = NodeProcess(node, launches[node], layout.directory, log, start_ns, prefix)
            clock = FakedTime(layout.directory) if is_faked else None
            if clock is not None:
                process.launch = clock.launch(process.launch)
            members[node] = Member(layout, process, clock, disk)
        for member in members.values():
            if member.disk is not None:
                member.disk.ready()
        opened.pop_all()
    return members


def _mounted(
    target: Target, layout: NodeLayout, capabilities: Collection[Capability]
) -> VolatileDisk | None:
    """Start a node's disk, if faults need one, it is not to be real, and it works here."""
    is_wanted = OF_DISKS & set(capabilities) and layout.options.get("disk") == "volatile"
    if not is_wanted or isinstance(target, SteersNodes) or not isinstance(target, HasVolatileDisk):
        return None
    if why_no_volatile_disk() is not None:  # then those faults are not available, and others may be
        return None
    folder = target.disk(layout)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarnessError(f"cannot prepare the disk of {layout.node}: {error}") from error
    return VolatileDisk(layout.node, folder)


def configure_name_servers(
    target: Target, site: Site, folder: RunFolder, start_ns: int, mutant: str | None = None
) -> list[NodeProcess]:
    """Return the name server processes; `mutant` is their planted bug, if it is one of theirs.

    Raises:
        HarnessError: a folder cannot be made.
    """
    return [
        _name_server(name, _launch(target, at, mutant), folder, start_ns)
        for name, at in site.name_servers.items()
    ]


def note_in_ledger(
    ledger: Ledger, site: Site, members: Mapping[str, Member], helpers: Sequence[NodeProcess]
) -> None:
    """Register every started process in the ledger and with the proxies that identify callers."""
    if site.callers is not None:
        site.callers.pids = partial(_pids, members)
    for helper in helpers:
        helper.on_start = ledger.process
    for member in members.values():
        member.process.on_start = partial(_started, ledger, member.clock)
        if member.clock is not None:
            member.process.before_start = member.clock.starts
        if member.disk is not None:
            ledger.process(f"{member.layout.node}-disk", member.disk.pid)
    if isinstance(site.network, PacketNetwork):
        ledger.process("switch", site.network.pid)


def let_go(site: Site, members: Mapping[str, Member]) -> None:
    """Close links and disks, delete files of faked clocks, after the nodes ended (idempotent)."""
    site.network.close()
    for member in members.values():
        if member.disk is not None:
            member.disk.close()
        if member.clock is not None:
            member.clock.forget()


def _started(ledger: Ledger, clock: FakedTime | None, node: str, pid: int) -> None:
    if clock is not None:
        clock.started(pid)
    ledger.process(node, pid)


def _pids(members: Mapping[str, Member]) -> dict[str, int]:
    found = {node: member.process.pid for node, member in members.items()}
    return {node: pid for node, pid in found.items() if pid is not None}


def _launch(target: Target, address: Address, mutant: str | None) -> Launch:
    assert isinstance(target, NamesBrokers), "looked at when the campaign was resolved"
    if mutant is not None and isinstance(target, PlantsBugsBeside):
        return target.name_server_with(mutant, address)
    return target.name_server(address)


def _name_server(name: str, launch: Launch, folder: RunFolder, start_ns: int) -> NodeProcess:
    directory = folder.node(name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarnessError(f"cannot prepare name server {name}: {error}") from error
    return NodeProcess(name, launch, directory, folder.node_log(name), start_ns)


def _prepared(target: Target, layout: NodeLayout) -> Launch:
    try:
        layout.directory.mkdir(parents=True, exist_ok=True)
        return target.prepare(layout)
    except OSError as error:
        raise HarnessError(f"cannot prepare node {layout.node}: {error}") from error
