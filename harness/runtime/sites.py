"""Where the nodes of a run live: their addresses, folders, and the links among them.

In world `process` all nodes share this machine's loopback, and reach each other through proxies. In
world `netns` each has its own network namespace and addresses, with a switch in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shaketable.harness.campaigns.campaign import Campaign, node_names, target_of
from shaketable.harness.contracts.abilities import (
    AdvertisesAddresses,
    ListensFurther,
    ListensOnce,
    TellsOwnAddresses,
)
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Address, FurtherPort, Json, NodeLayout
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.network import netns as at
from shaketable.harness.network.links import Network
from shaketable.harness.network.netns import PacketNetwork
from shaketable.harness.network.proxy import Callers, ProxyNetwork
from shaketable.harness.runtime.processes import ports

NETNS = "netns"
BASE_PORT = 10_000
"""In a namespace of its own every port is free: nodes listen here for clients, one above for peers,
and above that for what else they listen for."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where each node lives.

    `prefixes` are put before the nodes' commands, so that each runs in its place. `callers` has to
    be given the nodes' processes, if the links need them.
    """

    network: Network
    layouts: Mapping[str, NodeLayout]
    name_servers: Mapping[str, Address]
    prefixes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    callers: Callers | None = None


class _Listening(NamedTuple):
    """Whether nodes listen once for clients and peers, and for what else; `direct`: no proxies."""

    once: bool
    further: Sequence[str]
    direct: bool


def lay_out(
    campaign: Campaign,
    folder: RunFolder,
    base_port: int | None,
    options: Json,
    name_servers: Sequence[str],
) -> Site:
    """Give each node its addresses and a folder, and open the links.

    Args:
        campaign: resolved.
        folder: the run's folder.
        base_port: the first port of the nodes; None: any free ones.
        options: what the target is told about its nodes.
        name_servers: the names of the name servers beside the nodes.

    Raises:
        HarnessError: a port is in use, or namespaces cannot be made.
    """
    target = target_of(campaign)
    is_advertised = isinstance(target, AdvertisesAddresses) and target.advertises_addresses
    once = isinstance(target, ListensOnce) and target.listens_once
    further = tuple(target.further_ports) if isinstance(target, ListensFurther) else ()
    direct = isinstance(target, TellsOwnAddresses) and target.tells_own_addresses
    if further and not (is_advertised or direct):
        raise HarnessError(
            f"target {target.name} has further_ports, and neither advertises_addresses nor"
            " tells_own_addresses: links to them could not be cut"
        )
    if campaign.world == NETNS:
        site = _in_namespaces(campaign, folder, base_port, options, name_servers, once=once)
        return _with_further(_advertised(site) if is_advertised else site, further)
    callers = Callers() if is_advertised else None
    listening = _Listening(once, further, direct)
    return _on_loopback(campaign, folder, base_port, options, name_servers, callers, listening)


def _on_loopback(
    campaign: Campaign,
    folder: RunFolder,
    base_port: int | None,
    options: Json,
    name_servers: Sequence[str],
    callers: Callers | None,
    listening: _Listening,
) -> Site:
    """Give each node its ports, each ordered pair (or node) a proxy, a name server a port."""
    once, further, direct = listening
    nodes = node_names(campaign)
    owners = [f"the {who} of node {node}" for node in nodes for who in ("clients", "peers")]
    owners += [f"the name server {name}" for name in name_servers]
    owners += [f"the {name} of node {node}" for name in further for node in nodes]
    numbers = (
        ports.find_free(len(owners)) if base_port is None else ports.take_from(base_port, owners)
    )
    addresses = [Address(ports.HOST, port) for port in numbers]
    of_nodes, rest = addresses[: 2 * len(nodes)], addresses[2 * len(nodes) :]
    of_helpers, left = rest[: len(name_servers)], iter(rest[len(name_servers) :])
    client_of = dict(zip(nodes, of_nodes[0::2], strict=True))
    peer_of = client_of if once else dict(zip(nodes, of_nodes[1::2], strict=True))
    further_of = {name: {node: next(left) for node in nodes} for name in further}
    network = ProxyNetwork(peer_of, ports.HOST, callers, {} if direct else further_of)
    reached = (
        further_of
        if direct
        else {name: {node: network.further(name, node) for node in nodes} for name in further}
    )
    layouts = {
        node: NodeLayout(
            node=node,
            directory=folder.node(node),
            client_address=client_of[node],
            peer_address=peer_of[node],
            peers={
                peer: peer_of[peer] if direct else network.address(node, peer)
                for peer in nodes
                if peer != node
            },
            options=options,
            name_servers=tuple(of_helpers),
            advertised_address=None if callers is None else network.advertised(node),
            further={name: FurtherPort(further_of[name][node], reached[name]) for name in further},
        )
        for node in nodes
    }
    helpers = dict(zip(name_servers, of_helpers, strict=True))
    return Site(network, layouts, helpers, callers=callers)


def _advertised(site: Site) -> Site:
    """Let nodes in namespaces advertise their own address: all others reach them there."""
    layouts = {
        node: replace(layout, advertised_address=layout.peer_address)
        for node, layout in site.layouts.items()
    }
    return replace(site, layouts=layouts)


def _with_further(site: Site, further: Sequence[str]) -> Site:
    """Let nodes in namespaces listen besides, at the ports above that for peers."""
    reached = {
        name: {
            node: replace(layout.peer_address, port=layout.peer_address.port + place)
            for node, layout in site.layouts.items()
        }
        for place, name in enumerate(further, 1)
    }
    layouts = {
        node: replace(
            layout, further={name: FurtherPort(at[node], at) for name, at in reached.items()}
        )
        for node, layout in site.layouts.items()
    }
    return replace(site, layouts=layouts)


def _in_namespaces(
    campaign: Campaign,
    folder: RunFolder,
    base_port: int | None,
    options: Json,
    name_servers: Sequence[str],
    *,
    once: bool,
) -> Site:
    """Give each node a namespace; its peers reach its own address, through the switch."""
    nodes = node_names(campaign)
    port = BASE_PORT if base_port is None else base_port
    peer_of = {
        node: Address(at.node_address(number), port if once else port + 1)
        for number, node in enumerate(nodes)
    }
    helpers = {name: Address(at.HARNESS, port + number) for number, name in enumerate(name_servers)}
    network = PacketNetwork(nodes, folder.path / "switch.log")
    layouts = {
        node: NodeLayout(
            node=node,
            directory=folder.node(node),
            client_address=Address(peer_of[node].host, port),
            peer_address=peer_of[node],
            peers={peer: there for peer, there in peer_of.items() if peer != node},
            options=options,
            name_servers=tuple(helpers.values()),
        )
        for node in nodes
    }
    prefixes = {node: network.enter_command(node) for node in nodes}
    return Site(network, layouts, helpers, prefixes)
