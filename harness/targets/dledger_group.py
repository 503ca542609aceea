"""A group of whole broker nodes in the simulated world, for campaigns (`run --world sim`).

The node and its client are the ones that run in processes; sockets, disks, clocks and dice
are the world's. Its invariants are watched as well: what breaks one is a remark of the run,
and the checkers go on to judge what the clients saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from posixpath import relpath
from typing import Any

from harness.plugins import Address, Json, NodeLayout, NodeStatus
from harness.simulated_nodes import SteersSimulated
from harness.simulation import Ended
from harness.targets.dledger import DLedgerTarget
from harness.targets.dledger_client import DLedgerClient
from harness.targets.dledger_links import ShapedLinks
from harness.targets.dledger_machines import Machines
from harness.targets.simulated_logs import SimulatedLogs
from harness.words import Link, LinkShape
from system.sim.disk import PowerLoss
from system.sim.faults import Cut
from system.sim.planted_bugs import HEALTHY, Mutant, planted_bug
from system.sim.schedule import Schedule, Settings
from system.sim.trio_world.host import PEER_PORT, STORE_ROOT, Host
from system.sim.trio_world.process import CURRENT, Process
from system.sim.trio_world.world import TrioWorld
from system.sim.violation import Violated

OBSERVER = Process("observer", "10.0.9.1", 0)
"""Where the campaign itself runs: it asks the nodes for their status."""
CLIENTS = Process("clients", "10.0.9.2", 0)
RUN_MS_MAX = 10**12
"""The world's own end, far behind that of any campaign."""
REMARKS_MAX = 20


class _World(TrioWorld):
    """A world without a schedule of its own: a campaign does what is done."""

    def __init__(self, schedule: Schedule, mutant: Mutant) -> None:
        super().__init__(schedule, mutant=mutant)
        self.loses_unsynced = True
        self.remarks: list[str] = []
        self.ended: list[Ended] = []
        self.stopping: set[str] = set()
        """Nodes that were asked to end."""
        self.failure: Exception | None = None
        for process in (OBSERVER, CLIENTS):
            self.network.add_host(process.host, process.address)

    def play(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` in the world; when it is over, so is the world. Raises what it raises."""
        self.heap.push(0.0, self.spawn, self._play, main)
        self.run()
        if self.failure is not None:
            raise self.failure

    async def _play(self, main: Callable[[], Awaitable[None]]) -> None:
        CURRENT.set(OBSERVER)
        try:
            await main()
        except Exception as error:
            self.failure = error
        finally:
            self._finish()

    def violated(self, found: Violated, node: str) -> None:
        """A remark; what the clients saw is the checkers' to judge."""
        if len(self.remarks) < REMARKS_MAX:
            at = f" at {found.node or node}" if found.node or node else ""
            self.remarks.append(f"invariant {found.invariant} broken{at}: {found.finding}")

    def lost_power(self, host: Host) -> None:
        """A machine lost power in the middle of an operation; it stays off until it is started."""
        if host.is_up:
            assert host.process is not None
            self.network.end_process(host.process, loses_power=False)
            self.crash(host, loses_unsynced=self.loses_unsynced)
            self.network.power_up(host.name)

    def process_ended(self, host: Host, error: BaseException | None) -> None:
        """A node ended by itself: it stays down until somebody starts it."""
        if isinstance(error, PowerLoss):
            self.lost_power(host)
            return
        said = "it ended" if error is None else f"{type(error).__name__}: {error}"
        self.crash(host, loses_unsynced=False)
        if host.name not in self.stopping:
            self.ended.append(Ended(host.name, host.incarnation, said))

    def _check_end(self) -> None:
        """What the group must have done in the end is for the checkers to say."""


class DLedgerGroup:
    """Implements `harness.simulation.SimulatedGroup`."""

    def __init__(self, nodes: Sequence[str], options: Json) -> None:
        self._options = options
        settings = Settings(
            members=len(nodes),
            run_ms=RUN_MS_MAX,
            data_file_bytes=options["data_file_bytes"],
            index_file_bytes=options["index_file_bytes"],
            ack=options["ack"],
            lease_ms=float(options["leases_ms"]),
            clients=0,
        )
        schedule = Schedule(seed=_number(options["seed"]), settings=settings, faults=(), calls=())
        self._world = _World(schedule, planted_bug(options["mutant"]) or HEALTHY)
        self._world.loses_unsynced = options["disk"] == "volatile"
        assert tuple(self._world.members) == tuple(nodes), "both count their nodes from n0"
        self._target = DLedgerTarget()  # its connections are of this world
        self._clients = 0
        self.addresses: Mapping[str, Address] = {
            name: Address(*at) for name, at in self._world.client_addresses().items()
        }
        self.layouts: Mapping[str, NodeLayout] = {
            name: NodeLayout(name, Path(STORE_ROOT), at, _peer_address(at), {}, options)
            for name, at in self.addresses.items()
        }
        self.operator = self._target
        self.machines: SteersSimulated = Machines(self._world)
        self.ended = self._world.ended
        self.remarks = self._world.remarks
        self._logs = SimulatedLogs(nodes, lambda: self._world.clock.now_ms)
        self._world.on_said = self._logs.said

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` in the world, on a host beside the nodes. Raises what it raises."""
        self._world.play(main)

    def now_ns(self) -> int:
        """The world's time since its start."""
        return round(self._world.clock.now_ms * 1e6)

    def be_client(self) -> None:
        """Let the running task, and those that it starts, be of the clients' host."""
        CURRENT.set(CLIENTS)

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> DLedgerClient:
        """Return a client of the group; its dice are the world's."""
        self._clients += 1
        return DLedgerClient(
            addresses, timeout_s, self._world.draws.stream(f"campaign-client/{self._clients}")
        )

    async def status(self, node: str, timeout_s: float) -> NodeStatus | None:
        """Ask a node for its status; None if it does not answer in time."""
        return await self._target.status(self._layout(node), timeout_s)

    async def transfer_leadership(self, node: str, to: str, timeout_s: float) -> None:
        """Ask the node, which leads, to hand leadership over."""
        await self._target.transfer_leadership(self._layout(node), to, timeout_s)

    def incarnation(self, node: str) -> int:
        """How often the node was started."""
        return self._host(node).incarnation

    def is_running(self, node: str) -> bool:
        """True while the node has a process, paused or not."""
        return self._host(node).is_up

    def is_paused(self, node: str) -> bool:
        """True while its process stands still."""
        return self._host(node).is_up and self._host(node).is_paused

    def start(self, node: str) -> None:
        """Start a node that does not run."""
        self._world.stopping.discard(node)
        if not self.is_running(node):
            self._logs.mark(node, f"incarnation {self.incarnation(node) + 1} starts")
        self._world.restart(self._host(node))

    def kill(self, node: str) -> None:
        """End the node's process at once; with a volatile disk what was not synced is lost.

        As in the world of processes the machine stays: its kernel closes the connections.
        """
        host, network = self._host(node), self._world.network
        assert host.process is not None, f"{node} does not run"
        network.end_process(host.process, loses_power=False)
        self._world.crash(host, loses_unsynced=self._options["disk"] == "volatile")
        network.power_up(node)
        self._logs.mark(node, f"incarnation {self.incarnation(node)} killed")

    def stop(self, node: str) -> None:
        """Ask the node to end in good order; it takes its time."""
        self._world.stopping.add(node)
        self._host(node).stop()

    def pause(self, node: str) -> None:
        """Let the node's process stand still."""
        self._host(node).pause()
        self._logs.mark(node, "paused")

    def resume(self, node: str) -> None:
        """Let it go on."""
        self._logs.mark(node, "resumed")
        self._host(node).go_on()

    def cut(self, links: Sequence[tuple[str, str]]) -> Callable[[str], None]:
        """Hold what flows from a to b, for each (a, b); return what mends exactly that."""
        fault = Cut(start_ms=0, duration_ms=0, links=tuple(links))
        cut = [self._world.network.link(a, b) for a, b in links]
        for link in cut:
            link.begin(fault)

        def mend(how: str) -> None:
            for link in cut:
                link.resets = how == "reset"
                link.end(fault)

        return mend

    def shape(self, links: Sequence[Link], shape: LinkShape) -> ShapedLinks:
        """Shape these links; see `harness.simulated_links`."""
        return ShapedLinks(self._world.network, self._world.clock, links, shape)

    def held(self, links: Sequence[tuple[str, str]]) -> tuple[int, int]:
        """The bytes, and the connections, that these links hold back now."""
        counts = [self._world.network.held(a, b) for a, b in links]
        return sum(size for size, _ in counts), sum(number for _, number in counts)

    def save(self, node: str, directory: Path) -> None:
        """Copy a stopped node's files into a folder of this machine."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "node.log").write_text(self._logs.text(node), encoding="utf-8")
        for path, inode in sorted(self._host(node).disk.platter.inodes.items()):
            to = directory / "store" / relpath(path, STORE_ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            with to.open("wb") as file:
                file.write(inode.view)
                file.truncate(inode.size)

    def _host(self, node: str) -> Host:
        return self._world.members[node]

    def _layout(self, node: str) -> NodeLayout:
        at = self.addresses[node]
        return NodeLayout(node, Path(STORE_ROOT), at, at, {}, self._options)


def _peer_address(client: Address) -> Address:
    return Address(client.host, PEER_PORT)


def _number(seed: Any) -> int:
    """Turn a campaign's seed into a world's."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "big") >> 2
