"""The processes of a run's nodes, configured and told to those who must know them, not started."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from shaketable.harness import availability
from shaketable.harness.abilities import NamesBrokers, PlantsBugsBeside
from shaketable.harness.errors import HarnessError
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.network.netns import PacketNetwork
from shaketable.harness.plugins import Address, Launch, NodeLayout, Target
from shaketable.harness.runtime.disks import Member
from shaketable.harness.runtime.faketime import FakedTime
from shaketable.harness.runtime.ledger import Ledger
from shaketable.harness.runtime.nodes import NodeProcess
from shaketable.harness.runtime.sites import Site
from shaketable.harness.words import Word


def configure(
    target: Target, site: Site, folder: RunFolder, start_ns: int, words: Collection[Word]
) -> dict[str, Member]:
    """Have the target configure each node, for faults that need these words.

    Where clocks are to be wrong of nodes that take no orders, each runs under a faked one.

    Raises:
        HarnessError: a folder cannot be made, or a file not be written.
    """
    is_faked = Word.CLOCK in words and bool(availability.clocks_of(target))
    members = {}
    for node, layout in site.layouts.items():
        process = _process(target, layout, folder, start_ns, site)
        clock = FakedTime(layout.directory) if is_faked else None
        if clock is not None:
            process.launch = clock.launch(process.launch)
        members[node] = Member(layout, process, clock)
    return members


def name_servers(
    target: Target, site: Site, folder: RunFolder, start_ns: int, mutant: str | None = None
) -> list[NodeProcess]:
    """Return the processes of the name servers, which have the planted bug if it is theirs.

    Raises:
        HarnessError: a folder cannot be made.
    """
    return [
        _name_server(name, _launch(target, at, mutant), folder, start_ns)
        for name, at in site.name_servers.items()
    ]


def introduce(
    ledger: Ledger, site: Site, members: Mapping[str, Member], helpers: Sequence[NodeProcess]
) -> None:
    """Have the ledger name every process that is started, and links know who calls."""
    if site.callers is not None:
        site.callers.pids = partial(_pids, members)
    for helper in helpers:
        helper.on_start = ledger.process
    for member in members.values():
        member.process.on_start = partial(_started, ledger, member.clock)
        if member.clock is not None:
            member.process.before_start = member.clock.starts
    if isinstance(site.network, PacketNetwork):
        ledger.process("switch", site.network.pid)


def let_go(site: Site, members: Mapping[str, Member]) -> None:
    """Close the links, and delete what faked clocks left: the nodes have ended (idempotent)."""
    site.network.close()
    for member in members.values():
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


def _process(
    target: Target, layout: NodeLayout, folder: RunFolder, start_ns: int, site: Site
) -> NodeProcess:
    try:
        layout.directory.mkdir(parents=True, exist_ok=True)
        launch = target.prepare(layout)
    except OSError as error:
        raise HarnessError(f"cannot prepare node {layout.node}: {error}") from error
    log = folder.node_log(layout.node)
    prefix = site.prefixes.get(layout.node, ())
    return NodeProcess(layout.node, launch, layout.directory, log, start_ns, prefix)
