"""A group of whole brokers in the simulated world, for campaigns (`run --world sim`).

The nodes, the name servers and the clients are those that also run as processes, started as the
target says (`harness.targets.programs`); sockets, disks, clocks and random generators are the
world's. The world's invariants are checked too: a broken one is a violation of the run, which goes
on, so that the checkers judge what the clients saw of it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from posixpath import relpath
from random import Random
from typing import Any, Final, Protocol

from shaketable.harness.contracts.abilities import Broken
from shaketable.harness.contracts.capabilities import Link, LinkShape
from shaketable.harness.contracts.plugins import (
    Address,
    Json,
    Launch,
    NodeLayout,
    Target,
    TargetClient,
)
from shaketable.harness.contracts.simulation import (
    Ended,
    SimulatedDiskFault,
    SimulatedReading,
    SteersSimulated,
)
from shaketable.harness.targets.programs import name_server
from shaketable.system.invariants.violated import Violated
from shaketable.system.sim.disk import DiskFaultRule, DiskFaultRules, PowerLoss
from shaketable.system.sim.planted_bugs import HEALTHY, Mutant, planted_bug
from shaketable.system.sim.rules.client_history import (
    check_all_closed,
    check_expected,
    check_in_time,
)
from shaketable.system.sim.schedules.faults import (
    Cut,
    LinkFault,
    LossyLink,
    LowMtu,
    NarrowLink,
    Reorder,
    SlowLink,
)
from shaketable.system.sim.schedules.schedule import Schedule, Settings
from shaketable.system.sim.stories.promises import promise_of
from shaketable.system.sim.trio_world.clocks import CURRENT, HeapClock, Process
from shaketable.system.sim.trio_world.host import CLIENT_PORT, PEER_PORT, STORE_ROOT, Host
from shaketable.system.sim.trio_world.programs import (
    SimulatedNameServer,
    exit_status,
    node_config,
    reason_of_end,
)
from shaketable.system.sim.trio_world.tcp_network import SimSocket, TcpNetwork
from shaketable.system.sim.trio_world.tcp_pipe import Pipe
from shaketable.system.sim.trio_world.world import TrioWorld, address_of

OBSERVER = Process("observer", "10.0.9.1", 0)
"""Where the campaign itself runs, and queries the nodes' status."""
CLIENTS = Process("clients", "10.0.9.2", 0)
FOLDER = Path(STORE_ROOT).parent
"""A node's folder, on its own machine."""
NAME_SERVER_PORT = 9876
RUN_MS_MAX = 10**12
"""The end of the world's time, far after that of any campaign."""
ONE_CALL = frozenset({"append", "send"})
"""Operations that are one call of a client, so that the operation's timeout bounds them.

Others call several brokers in turn, or retry, with a timeout for each call.
"""
CHOPPED = 0.1
"""Share of the connections that transfer bytes in small pieces."""
BROKEN_MAX = 20
"""Most broken invariants that are reported, each once: later reports have the same cause."""


class SimulatedTarget(Target, Protocol):
    """A target whose nodes are the system's programs, and whose clients take a random generator."""

    def client_of(
        self,
        addresses: Mapping[str, Address],
        timeout_s: float,
        bug: str | None,
        rng: Random,
        client_id: str,
    ) -> TargetClient:
        """Return a client with this random generator and id, and an optional planted bug."""
        ...


class _World(TrioWorld):
    """A world without a schedule of its own: the campaign injects the faults."""

    def __init__(self, schedule: Schedule, mutant: Mutant, launches: Mapping[str, Launch]) -> None:
        configs = {node: node_config(launch.files) for node, launch in launches.items()}
        super().__init__(schedule, mutant=mutant, configs=configs)
        self.broken: list[Broken] = []
        self.ended: list[Ended] = []
        self.stopping: set[str] = set()
        """Nodes that were asked to stop."""
        self.failure: Exception | None = None
        for process in (OBSERVER, CLIENTS):
            self.network.add_host(process.host, process.address)

    def play(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` in the world, and end the world with it. Raises what `main` raises."""
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
        """Record it and go on: the checkers judge what the clients saw."""
        is_known = any(each.invariant == found.invariant for each in self.broken)
        if is_known or len(self.broken) >= BROKEN_MAX:
            return
        promise = promise_of(found.invariant)
        at_ns = round(self.clock.now_ms * 1e6)
        self.broken.append(
            Broken(
                found.invariant, found.finding, found.node or node, at_ns,
                promise.statement, promise.impact,
            )
        )  # fmt: skip

    def lost_power(self, host: Host) -> None:
        """Handle a power loss in the middle of an operation; the machine stays off for now."""
        if host.is_up:
            assert host.process is not None
            self.network.end_process(host.process, loses_power=False)
            self.crash(host, loses_unsynced=True)
            self.network.power_up(host.name)

    def process_ended(self, host: Host, error: BaseException | None) -> None:
        """Handle a node's exit by itself: it stays down until it is started."""
        if isinstance(error, PowerLoss):
            self.lost_power(host)
            return
        last_output = (
            "it ended" if error is None else f"{type(error).__name__}: {reason_of_end(error)}"
        )
        self.crash(host, loses_unsynced=False)
        if host.name not in self.stopping:
            status = 0 if error is None else exit_status(error)
            self.ended.append(Ended(host.name, host.incarnation, last_output, status))

    def _check_end(self) -> None:
        """Check nothing: the group's final state is for the checkers to judge."""


class BrokerGroup:
    """Implements `contracts.simulation.SimulatedGroup`.

    Args:
        target: the brokers' target, an instance of its own: its connections are simulated.
        nodes: their ids.
        options: the node options of the target.
        name_servers: the names of the name servers beside them.
    """

    def __init__(
        self,
        target: SimulatedTarget,
        nodes: Sequence[str],
        options: Json,
        name_servers: Sequence[str] = (),
    ) -> None:
        self._target = target
        of_helpers = {
            name: Address(f"10.0.8.{number}", NAME_SERVER_PORT)
            for number, name in enumerate(name_servers, 1)
        }
        self.layouts: Mapping[str, NodeLayout] = _layouts(
            nodes, options, tuple(of_helpers.values())
        )
        self.addresses: Mapping[str, Address] = {
            **{node: layout.client_address for node, layout in self.layouts.items()},
            **of_helpers,
        }
        self._launches = {node: target.prepare(layout) for node, layout in self.layouts.items()}
        settings = Settings(
            members=len(nodes),
            run_ms=RUN_MS_MAX,
            data_file_bytes=options["data_file_bytes"],
            index_file_bytes=options["index_file_bytes"],
            ack=options["ack"],
            lease_ms=float(options["leases_ms"]),
            clients=0,
            chopped=CHOPPED,
        )
        schedule = Schedule(seed=_number(options["seed"]), settings=settings, faults=(), calls=())
        self._bug: str | None = options["mutant"]
        mutant = planted_bug(self._bug) or HEALTHY
        self._world = _World(schedule, mutant, self._launches)
        self._name_servers = {
            name: SimulatedNameServer(self._world, name, name_server(at, self._bug).argv)
            for name, at in of_helpers.items()
        }
        self.clients_host = CLIENTS.host
        self._clients = 0
        self.machines: SteersSimulated = Machines(self._world)
        self.ended = self._world.ended
        self.broken = self._world.broken
        self._logs = SimulatedLogs((*nodes, *name_servers), lambda: self._world.clock.now_ms)
        self._world.on_log_line = self._logs.add_line

    @property
    def target(self) -> SimulatedTarget:
        """The brokers' target."""
        return self._target

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` in the world, on a host beside the nodes. Raises what it raises."""
        for server in self._name_servers.values():
            self._world.heap.push(0.0, server.start)
        self._world.play(main)

    def now_ns(self) -> int:
        """Return the virtual time since the start, in ns."""
        return round(self._world.clock.now_ms * 1e6)

    def run_as_client(self) -> None:
        """Put the running task, and those that it starts, on the clients' host."""
        CURRENT.set(CLIENTS)

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> TargetClient:
        """Return a client of the group, with a random generator of the world."""
        self._clients += 1
        rng = self._world.rngs.stream(f"campaign-client/{self._clients}")
        own_id = f"{CLIENTS.address}@{self._clients}"
        return self._target.client_of(addresses, timeout_s, self._bug, rng, own_id)

    def operation_ended(self, what: str, took_s: float, may_s: float) -> None:
        """Check that a client's operation did not take longer than it may."""
        if what in ONE_CALL:
            self._expect(check_in_time, what, took_s * 1000, may_s * 1000)

    def operation_raised(self, what: str, error: Exception) -> None:
        """Check that a client's operation raised no unexpected error."""
        self._expect(check_expected, what, error)

    def clients_closed(self) -> None:
        """Check that no socket of the clients is open, once all are closed."""
        self._expect(check_all_closed, CLIENTS.host, self._world.network.open_of(CLIENTS.host))

    def _expect(self, check: Callable[..., None], *args: Any) -> None:
        try:
            check(*args)
        except Violated as found:
            self._world.violated(found, CLIENTS.host)

    def incarnation(self, node: str) -> int:
        """Return how often the node was started."""
        return self._machine(node).incarnation

    def is_running(self, node: str) -> bool:
        """Return whether the node has a process, paused or not."""
        return self._machine(node).is_up

    def is_paused(self, node: str) -> bool:
        """Return whether its process is paused."""
        machine = self._machine(node)
        return machine.is_up and machine.is_paused

    def start(self, node: str) -> None:
        """Start a node that is not running."""
        self._world.stopping.discard(node)
        if not self.is_running(node):
            self._logs.mark(node, f"incarnation {self.incarnation(node) + 1} starts")
        if node in self._name_servers:
            self._name_servers[node].start()
        else:
            self._world.restart(self._host(node))

    def configure(self, node: str, launch: Launch) -> None:
        """Set how the node is started from now on."""
        self._launches[node] = launch
        self._host(node).config = node_config(launch.files)

    def kill(self, node: str) -> None:
        """Kill the node's process; with a volatile disk, what was not synced is lost.

        As in the world of processes, the machine keeps running: its kernel closes the connections.
        """
        if node in self._name_servers:
            self._name_servers[node].kill()
            self._logs.mark(node, f"incarnation {self.incarnation(node)} killed")
            return
        self._end(node, loses_unsynced=self._host(node).config.disk == "volatile")

    def lose_power(self, node: str) -> None:
        """Cut the power of the node's machine, and start the machine again without the process."""
        self._end(node, loses_unsynced=True)

    def _end(self, node: str, *, loses_unsynced: bool) -> None:
        host, network = self._host(node), self._world.network
        assert host.process is not None, f"{node} does not run"
        network.end_process(host.process, loses_power=False)
        self._world.crash(host, loses_unsynced=loses_unsynced)
        network.power_up(node)
        self._logs.mark(node, f"incarnation {self.incarnation(node)} killed")

    def stop(self, node: str) -> None:
        """Ask the node to stop gracefully, which takes time."""
        self._world.stopping.add(node)
        self._host(node).stop()

    def pause(self, node: str) -> None:
        """Pause the node's process."""
        self._machine(node).pause()
        self._logs.mark(node, "paused")

    def resume(self, node: str) -> None:
        """Resume the node's process."""
        self._logs.mark(node, "resumed")
        self._machine(node).resume()

    def lose_disk(self, node: str) -> int:
        """Empty the disk of a node that is not running; return how many files were lost."""
        files, _ = self._host(node).lose_disk()
        self._logs.mark(node, "lost its disk")
        return files

    def cut(self, links: Sequence[tuple[str, str]]) -> Callable[[str], None]:
        """Hold what flows from a to b, for each (a, b); return a function that heals this cut."""
        fault = Cut(start_ms=0, duration_ms=0, links=tuple(links))
        cut = [self._world.network.link(a, b) for a, b in links]
        for link in cut:
            link.add_fault(fault)

        def heal(how: str) -> None:
            for link in cut:
                link.resets = how == "reset"
                link.remove_fault(fault)

        return heal

    def shape(self, links: Sequence[Link], shape: LinkShape) -> ShapedLinks:
        """Shape these links; see `contracts.simulation`."""
        return ShapedLinks(self._world.network, self._world.clock, links, shape)

    def held(self, links: Sequence[tuple[str, str]]) -> tuple[int, int]:
        """Return how many bytes and how many connections these links hold back now."""
        counts = [self._world.network.held(a, b) for a, b in links]
        return sum(size for size, _ in counts), sum(number for _, number in counts)

    def break_connections(self, node: str) -> int:
        """Reset all connections between clients and a node; return how many there were."""
        connections = self._world.network.connections(CLIENTS.host, node)
        for ends in connections:
            for end in ends:
                end.reset()
        return len(connections)

    def save(self, name: str, directory: Path) -> None:
        """Copy a stopped node's files, or a name server's, into a folder of this machine."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "node.log").write_text(self._logs.text(name), encoding="utf-8")
        if name in self._name_servers:
            return
        self._launches[name].write_files(directory)
        for path, inode in sorted(self._host(name).disk.platter.inodes.items()):
            to = directory / "store" / relpath(path, STORE_ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            with to.open("wb") as file:
                file.write(inode.view)
                file.truncate(inode.size)

    def problems(self) -> tuple[str, ...]:
        """Return one line for each name server that exited by itself."""
        return tuple(
            f"the name server {name} ended: {server.failure!r}"
            for name, server in self._name_servers.items()
            if server.failure is not None
        )

    def _machine(self, name: str) -> Host | SimulatedNameServer:
        return self._name_servers.get(name) or self._host(name)

    def _host(self, node: str) -> Host:
        return self._world.members[node]


def _layouts(
    nodes: Sequence[str], options: Json, name_servers: tuple[Address, ...]
) -> dict[str, NodeLayout]:
    """Give each node a machine of its own."""
    peers = {node: Address(address_of(node), PEER_PORT) for node in nodes}
    return {
        node: NodeLayout(
            node=node,
            directory=FOLDER,
            client_address=Address(address_of(node), CLIENT_PORT),
            peer_address=peers[node],
            peers={peer: at for peer, at in peers.items() if peer != node},
            options=options,
            name_servers=name_servers,
        )
        for node in nodes
    }


def _number(seed: Any) -> int:
    """Derive a world's seed from a campaign's."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "big") >> 2


# Shaped links of simulated nodes, built on the link faults of `system.sim`.
#
# Connections are simulated, not packets: a lost or corrupted segment is late by its retransmission,
# and a reordered one delays all after it, as in TCP (head-of-line blocking). TCP drops duplicates,
# so duplication has no effect.

OVERTAKEN_MS = 20.0
"""A reordered segment is late by up to this."""
LATE_MIN_MS = 1.0


class ShapedLinks:
    """One shape in force; implements `contracts.simulation.SimulatedShape`."""

    def __init__(
        self, network: TcpNetwork, clock: HeapClock, links: Sequence[Link], shape: LinkShape
    ) -> None:
        self._network = network
        self._clock = clock
        self._links = tuple(links)
        self._shape = shape
        self._faults = _faults(self._links, shape)
        self._rng = Random(f"{shape.seed}/resets")
        self._has_ended = False
        self._bytes = self._chunks = self._delayed = self._lost = self._overtaken = 0
        self._late_ms = 0.0
        self._resets = 0
        self._void: list[Pipe] = []
        self._untold: list[SimSocket] = []
        self._unread = 0
        for link in (network.link(a, b) for a, b in self._links):
            link.notes.append(self._note)
            for fault in self._faults:
                link.add_fault(fault)
        if shape.half_open:
            self._open_half()
        if shape.reset_every_ms:
            self._reset_all()

    def end(self) -> None:
        """Remove the shape; half-open ends learn only now that their connection is reset."""
        self._unread = self._unread_bytes()
        self._has_ended = True
        for link in (self._network.link(a, b) for a, b in self._links):
            link.notes.remove(self._note)
            for fault in self._faults:
                link.remove_fault(fault)
        for near in self._untold:
            near.reset()

    def did(self) -> Json:
        """Return its effects so far."""
        mean_ms = self._late_ms / self._delayed if self._delayed else 0.0
        return {
            "bytes": self._bytes,
            "chunks": self._chunks,
            "delayed": self._delayed,
            "delay_ms_mean": round(mean_ms, 3),
            "dropped": self._lost if self._shape.loss or self._shape.mtu_bytes else 0,
            "corrupted": self._lost if self._shape.corrupt and not self._shape.loss else 0,
            "reordered": self._overtaken if self._shape.reorder else 0,
            "resets": self._resets,
            "half_open": len(self._void),
            "unread": self._unread if self._has_ended else self._unread_bytes(),
        }

    def _note(self, size: int, late_ms: float, losses: int, is_overtaken: bool) -> None:
        self._bytes += size
        self._chunks += 1
        self._lost += losses
        self._overtaken += is_overtaken
        if late_ms >= LATE_MIN_MS:
            self._delayed += 1
            self._late_ms += late_ms

    def _open_half(self) -> None:
        """Reset the far side of each connection; what the near side sends is swallowed."""
        for a, b in self._links:
            for near, far in self._network.connections(a, b):
                assert near.outgoing is not None, "the connection is whole"
                near.outgoing.swallowed = 0
                self._void.append(near.outgoing)
                self._untold.append(near)
                far.reset()

    def _unread_bytes(self) -> int:
        return sum(pipe.swallowed or 0 for pipe in self._void)

    def _reset_all(self) -> None:
        """Reset the connections of these links, and again after a random time."""
        if self._has_ended:
            return
        for a, b in self._links:
            for near, far in self._network.connections(a, b):
                near.reset()
                far.reset()
                self._resets += 1
        self._clock.after(self._shape.reset_every_ms * self._rng.uniform(0.5, 1.5), self._reset_all)


def _faults(links: tuple[Link, ...], shape: LinkShape) -> list[LinkFault]:
    """Convert a shape to the simulation's link faults."""
    found: list[LinkFault] = []
    least_ms = max(0.0, shape.delay_ms - shape.jitter_ms)
    if least_ms:
        found.append(SlowLink(start_ms=0, duration_ms=0, links=links, delay_ms=least_ms))
    if shape.jitter_ms or shape.reorder:
        late_ms = 2 * shape.jitter_ms if shape.jitter_ms else OVERTAKEN_MS
        share = 1.0 if shape.jitter_ms else shape.reorder
        found.append(
            Reorder(start_ms=0, duration_ms=0, links=links, probability=share, delay_ms=late_ms)
        )
    lost = max(shape.loss, shape.corrupt)
    if lost:
        found.append(LossyLink(start_ms=0, duration_ms=0, links=links, probability=lost))
    if shape.rate_bytes_s:
        found.append(
            NarrowLink(start_ms=0, duration_ms=0, links=links, bytes_per_s=shape.rate_bytes_s)
        )
    if shape.mtu_bytes:
        found.append(LowMtu(start_ms=0, duration_ms=0, links=links, mtu_bytes=shape.mtu_bytes))
    return found


# The clocks and disks of simulated members (`contracts.simulation.SteersSimulated`).


class Machines:
    """The machines of a world's members."""

    def __init__(self, world: TrioWorld) -> None:
        self._world = world
        self._disk_faults: dict[str, DiskFaultRules] = {}
        self._known: dict[str, list[tuple[SimulatedDiskFault, DiskFaultRule]]] = {}

    def set_rate(self, node: str, rate: float) -> None:
        """Set the rate of a node's clocks from now on."""
        self._host(node).run_clock_at(rate)

    def advance(self, node: str, ahead_ms: float) -> None:
        """Advance a node's monotonic clock by `ahead_ms`."""
        self._host(node).clock.advance(ahead_ms)

    def set_wall_error(self, node: str, error_ms: float) -> None:
        """Set by how much a node's wall clock is ahead."""
        clock = self._host(node).clock
        clock.offset_ms = round(error_ms - clock.ahead_ms)

    def reading(self, node: str) -> SimulatedReading:
        """Read a node's clocks."""
        clock = self._host(node).clock
        return SimulatedReading(self._world.clock.now_ms, clock.ahead_ms, clock.wall_error_ms)

    def set_disk_faults(self, node: str, faults: Sequence[SimulatedDiskFault]) -> None:
        """Replace the disk faults in force on a node; those that end keep their counts."""
        self.count(node)
        before = {id(fault): rule for fault, rule in self._known.get(node, [])}
        known = [
            (
                fault,
                before.get(id(fault))
                or DiskFaultRule(fault.op, fault.error, fault.nth, fault.times),
            )
            for fault in faults
        ]
        self._known[node] = known
        self._of(node).set_rules([rule for _, rule in known])

    def count(self, node: str) -> None:
        """Update the counts of the disk faults."""
        for fault, rule in self._known.get(node, []):
            fault.calls, fault.errors = rule.calls, rule.errors

    def set_lateness(self, node: str, late_ms: float) -> None:
        """Delay each disk operation of a node by `late_ms`."""
        self._host(node).late_ms = late_ms

    def stall(self, node: str, until_ms: float) -> None:
        """Let no disk operation of a node complete before `until_ms` (world time)."""
        self._host(node).stalled_until_ms = until_ms

    def effects(self, node: str) -> Mapping[str, int]:
        """Return how many calls a node's disk got so far."""
        self.count(node)
        return {**self._of(node).calls, "work": self._host(node).works}

    def lost_bytes(self) -> int:
        """Return how many unsynced bytes crashes discarded so far, on all nodes."""
        return self._world.counts.lost_bytes

    def _of(self, node: str) -> DiskFaultRules:
        if node not in self._disk_faults:
            self._disk_faults[node] = DiskFaultRules(self._host(node).disk.platter)
        return self._disk_faults[node]

    def _host(self, node: str) -> Host:
        return self._world.members[node]


# The logs of a simulated group's nodes, saved with their files.
#
# Lines have the format of real nodes' logs, with timestamps of the world's clock, which starts in
# 1970. Faults are noted between them as marks, as in the world of processes.

LINES_MAX: Final = 20_000
"""Lines kept for each node, the last ones; the first line states how many were dropped."""
MARK: Final = "--- shaketable:"
"""Prefix of lines by the harness, as in `harness.runtime.processes.nodes`."""
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SimulatedLogs:
    """The logs of a group's nodes."""

    def __init__(self, nodes: Iterable[str], now_ms: Callable[[], float]) -> None:
        self._lines: dict[str, deque[str]] = {node: deque(maxlen=LINES_MAX) for node in nodes}
        self._written = dict.fromkeys(self._lines, 0)
        self._now_ms = now_ms

    def add_line(self, at_ms: float, node: str, level: str, text: str) -> None:
        """Keep a line of a node's log; lines of other hosts are dropped."""
        stamp = (_BEGIN + timedelta(milliseconds=at_ms)).replace(tzinfo=None)
        self._add(node, f"{stamp.isoformat(timespec='milliseconds')} level={level} {text}")

    def mark(self, node: str, what: str) -> None:
        """Note a fault or a start of a node."""
        self._add(node, f"{MARK} {node} {what} at {self._now_ms() / 1e3:.3f} s")

    def text(self, node: str) -> str:
        """Return a node's log; every line ends with a newline."""
        lines = list(self._lines[node])
        if gone := self._written[node] - len(lines):
            lines.insert(0, f"{MARK} {node} {gone} lines before these were not kept")
        return "".join(f"{line}\n" for line in lines)

    def _add(self, node: str, line: str) -> None:
        if node in self._lines:
            self._lines[node].append(line)
            self._written[node] += 1
