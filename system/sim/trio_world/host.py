"""A simulated machine that runs the unchanged node, incarnation after incarnation.

It has the words that faults need (`system.sim.fault_actions`): crash, restart, pause, clocks
and disk; the node on it is assembled as in a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import trio

from shaketable.system.broker.broker import Broker
from shaketable.system.node.assembly import assemble
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.machine import Machine
from shaketable.system.node.node import Node
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import Message, RoleChange
from shaketable.system.sim.disk import SimDisk
from shaketable.system.sim.trio_world.config_watch import SavedFiles
from shaketable.system.sim.trio_world.disk_time import TimedDiskWork
from shaketable.system.sim.trio_world.host_clock import HostClock, ProcessClock
from shaketable.system.sim.trio_world.native_watch import NativeWatch
from shaketable.system.sim.trio_world.process import CURRENT, Process
from shaketable.system.sim.trio_world.sim_poll import SimPoll
from shaketable.system.sim.trio_world.watch import Watch
from shaketable.system.sim.violation import Violated
from shaketable.system.store.commit_log import CommitLog

if TYPE_CHECKING:
    from shaketable.system.sim.trio_world.world import TrioWorld

PEER_PORT = 40_911
CLIENT_PORT = 30_911
STORE_ROOT = "/store"


class Host:
    """One node's machine. `disk` is its disk for the present incarnation."""

    def __init__(self, world: TrioWorld, name: str, address: str, config: NodeConfig) -> None:
        self.world = world
        self.name = name
        self.address = address
        self.config = config
        self.disk = SimDisk()
        self.clock = HostClock(world.clock)
        self.incarnation = 0
        self.is_up = False
        self.is_rotten = False
        self._saved = SavedFiles()
        """A bit of its log was flipped: that it does not start is explained."""
        self.must_notice = False
        """A file was damaged that no start may pass over."""
        self.loses_unsynced = True
        """Whether a crash at an operation takes what was not synced."""
        self.is_gone = False
        """Removed for good: nothing restarts it."""
        self.slow_factor = 1.0
        self.slow_until_ms = 0.0
        self.stalled_until_ms = 0.0
        self.late_ms = 0.0
        """How much longer each piece of disk work takes."""
        self.works = 0
        """Pieces of disk work begun."""
        self.process: Process | None = None
        self.node: Node | None = None
        self._disk_draw = world.draws.stream(f"disk/{name}")
        self._crash_draw = world.draws.stream(f"crash/{name}")
        self._watch: Watch | NativeWatch | None = None
        self._work: TimedDiskWork | None = None
        self._scope = trio.CancelScope()

    # ---- what the world may ask -------------------------------------------------------

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
        """Whether its process stands still."""
        return self.process is not None and self.process.is_paused

    # ---- a process' life --------------------------------------------------------------

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
        """End the process, wherever its disk work is; perhaps the machine with it."""
        assert self.process is not None
        assert self._work is not None
        assert self._watch is not None
        self._watch.ended(loses_unsynced=loses_unsynced)
        self._work.die(self.disk, self._crash_draw)
        self.is_up = False
        self.node = None
        self.disk.crash()
        self.process.end()
        self._scope.cancel()
        self.world.network.end_process(self.process, loses_power=loses_unsynced)
        platter = self.disk.platter
        lost = platter.lost_bytes
        self.disk = self.disk.restart(loses_unsynced=loses_unsynced, rng=self._crash_draw)
        self.world.counts.lost_bytes += platter.lost_bytes - lost

    def lose_disk(self) -> tuple[int, int]:
        """Be a machine with an empty disk; return how many files went, and their bytes."""
        assert not self.is_up, "the disk of a process that runs is its own"
        self.world.native_invariants.lost_disk(self.name)
        self._saved = SavedFiles()
        return self.disk.platter.wipe()

    def end(self) -> None:
        """The run is over: end the process where it stands."""
        if self.process is not None:
            self.process.end()
            self._scope.cancel()

    def stop(self) -> None:
        """Tell the node to end in order, as by SIGTERM."""
        process = self.process
        if self.node is not None and process is not None:
            process.when_running(self.node.end)

    def pause(self) -> None:
        """Let the process stand still (SIGSTOP)."""
        if self.process is not None:
            self.process.is_paused = True

    def go_on(self) -> None:
        """Let it go on with all that came meanwhile (SIGCONT)."""
        if self.is_paused and self.process is not None:
            self.process.resume()

    def _new_watch(self) -> Watch | NativeWatch:
        """Return what tells the invariants of the next incarnation."""
        if self.config.native is not None:
            return NativeWatch(self.name, self.world.native_invariants, self, self._saved)
        return Watch(self.config.self_id, self.world.invariants, self)

    async def _run(
        self, process: Process, disk: SimDisk, watch: Watch | NativeWatch, work: TimedDiskWork
    ) -> None:
        CURRENT.set(process)
        error: BaseException | None = None
        try:
            with self._scope:  # within the try: it takes its own cancellation out of a group
                await self._serve(process, disk, watch, work)
        except* Exception as raised:
            error = first_of(raised)
        # What a process that is gone still says concerns nobody.
        if process.is_alive:
            self.world.process_ended(self, error)

    async def _serve(
        self, process: Process, disk: SimDisk, watch: Watch | NativeWatch, work: TimedDiskWork
    ) -> None:
        clock, dice = ProcessClock(self.clock, process), self.world.node_dice(self)
        machine = Machine(disk, clock, dice, work, partial(SimPoll, process))
        if self.incarnation == 1:
            self.world.older.bring(disk, STORE_ROOT, self.name)
        node = assemble(self.config, machine, watch.watched(self.world.mutant))
        self.node = node
        watch.started(node)
        self.world.node_started(self)
        await node.run()
        await node.stop()

    def _lost_power(self) -> None:
        """The disk stopped in the middle of an operation."""
        self.world.lost_power(self)

    # ---- clocks and disk --------------------------------------------------------------

    @property
    def wall_offset_ms(self) -> int:
        """How wrong its wall clock is."""
        return self.clock.offset_ms

    @wall_offset_ms.setter
    def wall_offset_ms(self, offset_ms: int) -> None:
        """Let it be wrong by so much."""
        self.clock.offset_ms = offset_ms

    def measure_disk(self, *, older_by_ms: int = 0) -> None:
        """Let the node look at its disk, on which everything is older by so much."""
        process = self.process
        if self.node is not None and process is not None:
            process.when_running(self.node.measure_disk, older_by_ms)

    def run_clock_at(self, rate: float) -> None:
        """Let its clocks run at another rate from now on."""
        self.clock.set_rate(rate)

    def work_ms(self) -> float:
        """Return how long the next piece of disk work takes on a disk that is well."""
        settings = self.world.settings
        self.works += 1
        return settings.sync_ms + settings.sync_jitter_ms * self._disk_draw.random() + self.late_ms

    # ---- what a watch tells -----------------------------------------------------------

    def violated(self, found: Violated) -> None:
        """An invariant broke."""
        self.world.violated(found, self.name)

    def served(self, broker: Broker) -> None:
        """Time has passed for the node's broker. Raises Violated."""
        self.world.older.check_serving(broker, self.name)

    def changed_role(self, change: RoleChange) -> None:
        """The node's role, term or leader changed."""
        self.world.changed_role(self, change)

    def received(self, role: str, message: Message) -> None:
        """The node takes a message of another member."""
        self.world.received(self, role, message)


def first_of(error: BaseException) -> BaseException:
    """Return the first error of a nested group that is none itself."""
    return next(_flat(error))


def _flat(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _flat(inner)
    else:
        yield error
