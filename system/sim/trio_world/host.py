"""A simulated machine that runs the unchanged node, incarnation after incarnation.

It has the operations that faults need (`system.sim.fault_actions`): crash, restart, pause, clocks
and disk. The node is assembled as in a real process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from random import Random
from typing import Any, Protocol

import trio

from shaketable.system.broker.broker import Broker
from shaketable.system.invariants.saved_files import SavedFiles
from shaketable.system.invariants.violated import Violated
from shaketable.system.mutants import Mutant
from shaketable.system.node.assembly import assemble
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.machine import Machine, Result
from shaketable.system.node.node import Node
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import Message, RoleChange, Write
from shaketable.system.sim.disk import PowerLoss, SimDisk
from shaketable.system.sim.initial_disks.older_stores import OlderStores
from shaketable.system.sim.rules.invariants import Invariants
from shaketable.system.sim.rules.master_slave_invariants import (
    MasterSlaveInvariants,
)
from shaketable.system.sim.run_trace import Counts
from shaketable.system.sim.schedules.random_streams import RandomStream, RandomStreams
from shaketable.system.sim.schedules.schedule import Settings
from shaketable.system.sim.trio_world.clocks import (
    CURRENT,
    HeapClock,
    HostClock,
    Park,
    Process,
    ProcessClock,
)
from shaketable.system.sim.trio_world.tcp_network import SimSocket, TcpNetwork
from shaketable.system.sim.trio_world.watch import MasterSlaveWatch, Watch
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import StoreError

PEER_PORT = 40_911
CLIENT_PORT = 30_911
STORE_ROOT = "/store"


class HostWorld(Protocol):
    """What a host needs of the world it is in."""

    settings: Settings
    mutant: Mutant
    clock: HeapClock
    rngs: RandomStreams
    network: TcpNetwork
    older: OlderStores
    counts: Counts
    invariants: Invariants
    broker_invariants: MasterSlaveInvariants

    def spawn(self, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start a task, which ends with the run at the latest."""
        ...

    def violated(self, found: Violated, node: str) -> None:
        """Record a violated invariant."""
        ...

    def node_rng_factory(self, host: Host) -> Callable[[str], Random]:
        """Return a factory of a node's random streams, new ones for each incarnation."""
        ...

    def node_started(self, host: Host) -> None:
        """A node has recovered and serves."""
        ...

    def process_ended(self, host: Host, error: BaseException | None) -> None:
        """A node's process ended by itself."""
        ...

    def lost_power(self, host: Host) -> None:
        """A host's disk lost power in the middle of an operation."""
        ...

    def changed_role(self, host: Host, change: RoleChange) -> None:
        """A node's role, term or leader changed."""
        ...

    def ordered(self, host: Host, writes: Sequence[Write]) -> None:
        """A node is about to hand writes to its disk."""
        ...

    def received(self, host: Host, role: str, message: Message) -> None:
        """A node receives a message from another member."""
        ...


class Host:
    """One node's machine. `disk` is the current incarnation's view of its disk."""

    def __init__(self, world: HostWorld, name: str, address: str, config: NodeConfig) -> None:
        self.world = world
        self.name = name
        self.address = address
        self.config = config
        self.disk = SimDisk()
        self.clock = HostClock(world.clock)
        self.incarnation = 0
        self.is_up = False
        self.is_damaged = False
        """Its log or a file was damaged by a fault: a failing start is explained."""
        self._saved = SavedFiles()
        """The broker's saved config files; a new object once the disk is lost."""
        self.must_detect = False
        """A file was damaged in a way that every start must detect."""
        self.loses_unsynced = True
        """Whether a crash at a disk operation loses what was not synced."""
        self.is_removed = False
        """Removed for good: nothing restarts it."""
        self.slow_factor = 1.0
        self.slow_until_ms = 0.0
        self.stalled_until_ms = 0.0
        self.late_ms = 0.0
        """Extra time of each piece of disk work."""
        self.works = 0
        """Number of pieces of disk work started."""
        self.process: Process | None = None
        self.node: Node | None = None
        self._disk_rng = world.rngs.stream(f"disk/{name}")
        self._crash_rng = world.rngs.stream(f"crash/{name}")
        self._watch: Watch | MasterSlaveWatch | None = None
        self._work: TimedDiskWork | None = None
        self._scope = trio.CancelScope()

    # ---- for the world ----------------------------------------------------------------

    @property
    def core(self) -> RaftCore:
        """The running node's core."""
        assert self.node is not None
        core = self.node.broker.core
        assert isinstance(core, RaftCore), "this is a member of a group"
        return core

    @property
    def log(self) -> CommitLog:
        """The running node's log."""
        assert self.node is not None
        commit_log = self.node.commit_log
        assert isinstance(commit_log, CommitLog), "this is a member of a group"
        return commit_log

    @property
    def is_paused(self) -> bool:
        """Whether its process is paused."""
        return self.process is not None and self.process.is_paused

    # ---- process lifecycle ------------------------------------------------------------

    def start(self) -> None:
        """Start a process on what the disk holds; it recovers at once, then serves."""
        assert not self.is_up
        self.incarnation += 1
        self.is_up = True
        process = self.process = Process(self.name, self.address, self.incarnation)
        self._watch = self._new_watch()
        self._work = TimedDiskWork(self.world.clock, self, process, self._lost_power)
        self._scope = trio.CancelScope()
        self.world.network.power_up(self.name)
        self.world.spawn(self._run, process, self.disk, self._watch, self._work)

    def crash(self, *, loses_unsynced: bool) -> None:
        """Kill the process in the middle of its disk work; with `loses_unsynced`, the machine."""
        assert self.process is not None
        assert self._work is not None
        assert self._watch is not None
        self._watch.ended(loses_unsynced=loses_unsynced)
        self._work.kill(self.disk, self._crash_rng)
        self.is_up = False
        self.node = None
        self.disk.crash()
        self.process.end()
        self._scope.cancel()
        self.world.network.end_process(self.process, loses_power=loses_unsynced)
        platter = self.disk.platter
        lost = platter.lost_bytes
        self.disk = self.disk.restart(loses_unsynced=loses_unsynced, rng=self._crash_rng)
        self.world.counts.lost_bytes += platter.lost_bytes - lost

    def lose_disk(self) -> tuple[int, int]:
        """Replace the disk by an empty one; return the number of files lost, and their bytes."""
        assert not self.is_up, "the disk of a process that runs is its own"
        self.world.broker_invariants.lost_disk(self.name)
        self._saved = SavedFiles()
        return self.disk.platter.wipe()

    def end(self) -> None:
        """End the process where it is, since the run is over."""
        if self.process is not None:
            self.process.end()
            self._scope.cancel()

    def stop(self) -> None:
        """Stop the node cleanly, as by SIGTERM."""
        process = self.process
        if self.node is not None and process is not None:
            process.when_running(self.node.request_shutdown)

    def pause(self) -> None:
        """Pause the process (SIGSTOP)."""
        if self.process is not None:
            self.process.is_paused = True

    def resume(self) -> None:
        """Resume the process with all that came meanwhile (SIGCONT)."""
        if self.is_paused and self.process is not None:
            self.process.resume()

    def _new_watch(self) -> Watch | MasterSlaveWatch:
        """Return the watch that reports the next incarnation to the invariants."""
        if self.config.master_slave is not None:
            return MasterSlaveWatch(self.name, self.world.broker_invariants, self, self._saved)
        return Watch(self.config.self_id, self.world.invariants, self)

    async def _run(
        self, process: Process, disk: SimDisk, watch: Watch | MasterSlaveWatch, work: TimedDiskWork
    ) -> None:
        CURRENT.set(process)
        error: BaseException | None = None
        try:
            with self._scope:  # within the try: it takes its own cancellation out of a group
                await self._serve(process, disk, watch, work)
        except* Exception as raised:
            error = first_of(raised)
        # An error of a process that was killed is ignored.
        if process.is_alive:
            self.world.process_ended(self, error)

    async def _serve(
        self, process: Process, disk: SimDisk, watch: Watch | MasterSlaveWatch, work: TimedDiskWork
    ) -> None:
        clock, rng = ProcessClock(self.clock, process), self.world.node_rng_factory(self)
        machine = Machine(disk, clock, rng, work, partial(SimPoll, process))
        if self.incarnation == 1:
            self.world.older.write_older_files(disk, STORE_ROOT, self.name)
        node = assemble(self.config, machine, watch.watched(self.world.mutant))
        self.node = node
        watch.started(node, clock.now_ms())
        self.world.node_started(self)
        await node.run()
        await node.stop()

    def _lost_power(self) -> None:
        """The disk lost power in the middle of an operation."""
        self.world.lost_power(self)

    # ---- clocks and disk --------------------------------------------------------------

    @property
    def wall_offset_ms(self) -> int:
        """How far its wall clock is off, in milliseconds."""
        return self.clock.offset_ms

    @wall_offset_ms.setter
    def wall_offset_ms(self, offset_ms: int) -> None:
        """Set how far its wall clock is off."""
        self.clock.offset_ms = offset_ms

    def measure_disk(self, *, older_by_ms: int = 0) -> None:
        """Make the node measure its disk, as if everything were older by `older_by_ms`."""
        process = self.process
        if self.node is not None and process is not None:
            process.when_running(self.node.measure_disk, older_by_ms)

    def run_clock_at(self, rate: float) -> None:
        """Run its clocks at another rate from now on."""
        self.clock.set_rate(rate)

    def work_ms(self) -> float:
        """Return how long the next piece of disk work takes on a healthy disk."""
        settings = self.world.settings
        self.works += 1
        return settings.sync_ms + settings.sync_jitter_ms * self._disk_rng.random() + self.late_ms

    # ---- reports of a watch -----------------------------------------------------------

    def violated(self, found: Violated) -> None:
        """An invariant was violated."""
        self.world.violated(found, self.name)

    def served(self, broker: Broker) -> None:
        """The node's broker was ticked. Raises Violated."""
        self.world.older.check_serving(broker, self.name)

    def changed_role(self, change: RoleChange) -> None:
        """The node's role, term or leader changed."""
        self.world.changed_role(self, change)

    def ordered(self, writes: Sequence[Write]) -> None:
        """The node is about to hand writes to its disk."""
        self.world.ordered(self, writes)

    def received(self, role: str, message: Message) -> None:
        """The node receives a message from another member."""
        self.world.received(self, role, message)


def first_of(error: BaseException) -> BaseException:
    """Return the first leaf error of a nested exception group."""
    return next(_flat(error))


def _flat(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _flat(inner)
    else:
        yield error


# A process's disk work in a simulated world: inline, after a virtual delay.
#
# `system.sim.disk` does everything at once; its duration is random. The work is done at the
# end of the delay, so a crash within the delay finds it not started or half done.

OPERATIONS_BEFORE_CRASH_MAX = 12
"""Most disk operations of work in progress that a crash still lets happen."""


class DiskSpeed(Protocol):
    """How fast a host's disk is at present. Times in virtual milliseconds."""

    stalled_until_ms: float
    """No work ends before."""
    slow_factor: float
    slow_until_ms: float
    """When the last slow-disk fault ends."""

    def work_ms(self) -> float:
        """Return how long the next piece of work takes on a healthy disk."""
        ...


class TimedDiskWork:
    """One process's `system.node.machine.DiskWork`.

    As with a real process's thread, work that has started is awaited, even by a node that is told
    to stop; only a kill ends it. `on_power_loss` is called when the disk loses power in the middle
    of an operation.
    """

    def __init__(
        self,
        clock: HeapClock,
        speed: DiskSpeed,
        process: Process,
        on_power_loss: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._speed = speed
        self._process = process
        self._on_power_loss = on_power_loss
        self._number = 0
        self._started: dict[int, Callable[[], object]] = {}

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Run `work` when its time has passed. Raises what it raises."""
        process = self._process
        self._number += 1
        number = self._number
        with trio.CancelScope(shield=True) as scope:
            process.shielded[number] = scope
            self._started[number] = work
            try:
                await self._let_time_pass()
                del self._started[number]
                return work()
            except PowerLoss:
                self._on_power_loss()
                raise
            finally:
                self._started.pop(number, None)
                process.shielded.pop(number, None)
        raise PowerLoss

    def kill(self, disk: SimDisk, rng: RandomStream) -> None:
        """Kill the process: a random number of disk operations in progress still happens."""
        started, self._started = self._started, {}
        for number in sorted(started):
            if disk.is_dead:
                return
            platter = disk.platter
            platter.stop_at = platter.operations + rng.randint(1, OPERATIONS_BEFORE_CRASH_MAX)
            with suppress(PowerLoss, StoreError):
                started[number]()

    async def _let_time_pass(self) -> None:
        clock, speed = self._clock, self._speed
        work_ms = speed.work_ms()
        due_ms = clock.now_ms + work_ms * speed.slow_factor
        # After the fault the disk has its usual speed: overlapping slow faults would take minutes
        # more.
        due_ms = min(due_ms, max(clock.now_ms, speed.slow_until_ms) + work_ms)
        park = Park(self._process)
        while (left_ms := max(due_ms, speed.stalled_until_ms) - clock.now_ms) > 0:
            timer = clock.timer(left_ms, park.wake)
            try:
                await park.wait()
            finally:
                timer.cancel()


# A simulated process's epoll instance: which of its sockets are readable.


class SimPoll:
    """A `system.node.machine.Poll` over simulated sockets, in the order they were added."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sockets: dict[SimSocket, int] = {}
        """Each socket's place in the order."""
        self._places = count()
        self._maybe_readable: set[SimSocket] = set()
        """Sockets that may be readable: all others are known not to be."""
        self._park = Park(process)

    def add(self, sock: trio.socket.SocketType) -> None:
        """Watch a socket from now on."""
        assert isinstance(sock, SimSocket)
        self._sockets.setdefault(sock, next(self._places))
        sock.on_readable = partial(self._notify, sock)
        self._notify(sock)

    def remove(self, sock: trio.socket.SocketType) -> None:
        """Stop watching a socket."""
        assert isinstance(sock, SimSocket)
        if self._sockets.pop(sock, None) is not None:
            sock.on_readable = None
            self._maybe_readable.discard(sock)

    def _notify(self, sock: SimSocket) -> None:
        """A socket may have become readable."""
        self._maybe_readable.add(sock)
        self._park.wake()

    async def wait(self) -> list[trio.socket.SocketType]:
        """Wait for readable sockets and return them."""
        await trio.lowlevel.checkpoint_if_cancelled()
        has_waited = False
        while not (found := self._readable()):
            await self._park.wait()
            has_waited = True
        if not has_waited:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return found

    def _readable(self) -> list[trio.socket.SocketType]:
        """Return the readable sockets; the others wait for their next notification."""
        self._maybe_readable = {sock for sock in self._maybe_readable if sock.is_readable()}
        return [*sorted(self._maybe_readable, key=self._sockets.__getitem__)]

    def close(self) -> None:
        """Stop watching all sockets."""
        for sock in tuple(self._sockets):
            self.remove(sock)
