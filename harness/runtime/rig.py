"""Everything that a campaign on processes is made of, put together but not yet moving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns

from harness import availability, discovery
from harness.campaign import Campaign, node_names
from harness.errors import HarnessError
from harness.history.recorder import Recorder
from harness.history.run_folder import RunFolder, write_atomically
from harness.network.proxy import ProxyNetwork
from harness.plugins import Address, Json, NodeLayout, Target
from harness.runtime import ports
from harness.runtime.facts import RunFacts, describe
from harness.runtime.ledger import Ledger, Lines
from harness.runtime.nemesis import Nemesis
from harness.runtime.nodes import NodeProcess
from harness.runtime.observer import Observer
from harness.runtime.workers import WorkerGroup, plan_workers
from harness.runtime.world import Member, ProcessWorld
from harness.schedule import Planned, encode_schedule, schedule


@dataclass(frozen=True, slots=True)
class Rig:
    """The parts of one run. `start_ns` is the run's start on CLOCK_MONOTONIC."""

    campaign: Campaign
    folder: RunFolder
    start_ns: int
    observer: Observer
    facts: RunFacts
    network: ProxyNetwork
    world: ProcessWorld
    workers: WorkerGroup
    nemesis: Nemesis
    schedule: Sequence[Planned]
    recorder: Recorder
    ledger: Ledger
    status_log: Lines

    def close(self) -> int:
        """Close the files that the harness writes; return the nemesis's count of events."""
        self.network.close()
        self.status_log.close()
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
        campaign: resolved: its seed is drawn, its names are known.
        folder: the run's folder, made.
        observer: who is told what happens.
        base_port: first of the loopback ports for the nodes; None: free ones.
        command: the command line, for the record.

    Raises:
        UsageError: the campaign leaves its faults no room.
        HarnessError: a port is in use, a file cannot be written, a target fails.
    """
    target: Target = discovery.get("targets", campaign.target)
    choice = availability.choose(campaign)
    planned = schedule(campaign, choice.faults)
    write_atomically(folder.schedule_json, encode_schedule(planned))
    start_ns = monotonic_ns()

    def now_ns() -> int:
        return monotonic_ns() - start_ns

    facts = RunFacts(folder.run_json, describe(campaign, target.promises, command), now_ns)
    if choice.unavailable:
        facts.update(faults_unavailable=dict(choice.unavailable))
    network, layouts = _lay_out(campaign, folder, base_port)
    try:
        members = {
            node: Member(layout, _process(target, layout, folder, start_ns))
            for node, layout in layouts.items()
        }
        status_log = Lines(folder.status_jsonl)
        recorder = Recorder(folder.segment("nemesis"), start_ns)
        ledger = Ledger(folder.faults_jsonl, now_ns)
    except BaseException:
        network.close()
        raise
    world = ProcessWorld(target, members, network, status_log, observer, start_ns)
    clients = {node: layout.client_address for node, layout in layouts.items()}
    return Rig(
        campaign=campaign,
        folder=folder,
        start_ns=start_ns,
        observer=observer,
        facts=facts,
        network=network,
        world=world,
        workers=WorkerGroup(plan_workers(campaign, folder, clients, start_ns)),
        nemesis=Nemesis(choice.faults, world, ledger, recorder.nemesis, observer, now_ns),
        schedule=planned,
        recorder=recorder,
        ledger=ledger,
        status_log=status_log,
    )


def node_options(campaign: Campaign) -> Json:
    """What a target is told about its nodes (`NodeLayout.options`)."""
    return {
        "mutant": campaign.mutant,
        "seed": campaign.seed,
        "disk": campaign.disk,
        "data_file_bytes": campaign.data_file_bytes,
        "index_file_bytes": campaign.index_file_bytes,
    }


def _lay_out(
    campaign: Campaign, folder: RunFolder, base_port: int | None
) -> tuple[ProxyNetwork, Mapping[str, NodeLayout]]:
    """Give each node two ports and a folder, and each ordered pair a proxy."""
    nodes = node_names(campaign)
    owners = [f"the {who} of node {node}" for node in nodes for who in ("clients", "peers")]
    numbers = (
        ports.find_free(len(owners)) if base_port is None else ports.take_from(base_port, owners)
    )
    addresses = [Address(ports.HOST, port) for port in numbers]
    client_of = dict(zip(nodes, addresses[0::2], strict=True))
    peer_of = dict(zip(nodes, addresses[1::2], strict=True))
    network = ProxyNetwork(peer_of, ports.HOST)
    layouts = {
        node: NodeLayout(
            node=node,
            directory=folder.node(node),
            client_address=client_of[node],
            peer_address=peer_of[node],
            peers={peer: network.address(node, peer) for peer in nodes if peer != node},
            options=node_options(campaign),
        )
        for node in nodes
    }
    return network, layouts


def _process(target: Target, layout: NodeLayout, folder: RunFolder, start_ns: int) -> NodeProcess:
    try:
        layout.directory.mkdir(parents=True, exist_ok=True)
        launch = target.prepare(layout)
    except OSError as error:
        raise HarnessError(f"cannot prepare node {layout.node}: {error}") from error
    log = folder.node_log(layout.node)
    return NodeProcess(layout.node, launch, layout.directory, log, start_ns)
