"""A group of real processes with proxies between them, in a `ProcessWorld`, without a campaign."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from shaketable.harness.contracts.plugins import Address, NodeLayout
from shaketable.harness.network.proxy import ProxyNetwork
from shaketable.harness.runtime.group_status import wait_until
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.processes import ports
from shaketable.harness.runtime.processes.disks import Member
from shaketable.harness.runtime.processes.nodes import NodeProcess
from shaketable.harness.runtime.world import ProcessWorld

PATIENCE_S = 60
NODES = ("n0", "n1", "n2")


@asynccontextmanager
async def process_group(
    tmp_path: Path, target: Any, options: Mapping[str, Any]
) -> AsyncIterator[tuple[ProcessWorld, Mapping[str, Member]]]:
    """Run three nodes until they are ready, hand them over, and see that no process is left."""
    start_ns = time.monotonic_ns()
    numbers = ports.find_free(2 * len(NODES))
    addresses = [Address(ports.HOST, number) for number in numbers]
    clients = dict(zip(NODES, addresses[: len(NODES)], strict=True))
    peers = dict(zip(NODES, addresses[len(NODES) :], strict=True))
    network = ProxyNetwork(peers)
    members = {}
    for node in NODES:
        folder = tmp_path / node
        folder.mkdir()
        reach = {peer: network.address(node, peer) for peer in NODES if peer != node}
        layout = NodeLayout(node, folder, clients[node], peers[node], reach, dict(options))
        process = NodeProcess(node, target.prepare(layout), folder, folder / "node.log", start_ns)
        members[node] = Member(layout, process)
    lines = Lines(tmp_path / "status.jsonl")
    world = ProcessWorld(target, members, network, lines, SilentObserver(), start_ns)
    try:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(network.run)
                await nursery.start(world.run)
                assert world.start_all() == NODES
                await ready(world)
                yield world, members
                nursery.cancel_scope.cancel()
    finally:
        lines.close()
        network.close()
    assert not any(member.process.is_running for member in members.values())


async def ready(world: ProcessWorld) -> None:
    """Wait until all nodes that run know one leader, by answers to questions from now on."""
    since = trio.current_time()
    assert not world.group_status.is_ready(since), "answers to older questions must not count"
    assert await wait_until(lambda: world.group_status.is_ready(since), PATIENCE_S), (
        world.group_status.why_not_ready()
    )
