"""A master and its slaves in the whole-node world, with a name server and an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.raft.batch import LogEnd
from shaketable.system.sim.broken_starts.broken_recovery import check_recovery
from shaketable.system.sim.broken_starts.file_damage import damage_broker_file
from shaketable.system.sim.disks.disk import SimDisk
from shaketable.system.sim.master_slave_world.clients import ForeignSlaves, MasterSlaveClients
from shaketable.system.sim.master_slave_world.settled import SettledState, check_settled
from shaketable.system.sim.master_slave_world.setup import (
    MASTER,
    NAME_SERVER,
    NAME_SERVER_ADDRESS,
    NAME_SERVER_PORT,
    FileDamage,
    Setup,
    configs_of,
    draw_setup,
)
from shaketable.system.sim.rules.client_history import Operation
from shaketable.system.sim.rules.violation import Violated, Violation
from shaketable.system.sim.run_trace import Counts, Trace
from shaketable.system.sim.schedules.schedule import Schedule, Settings
from shaketable.system.sim.trio_world.host import STORE_ROOT, Host
from shaketable.system.sim.trio_world.programs import SimulatedNameServer
from shaketable.system.sim.trio_world.world import TrioWorld, address_of
from shaketable.system.store.native.commit_log import NativeCommitLog

CHECK_INTERVAL_MS = 500.0
LOST_CHECKS_MAX = 4
"""A slave seen so often in a row to need expired files is wiped."""
REPLACED_AFTER_MS = 300.0


class MasterSlaveWorld(TrioWorld):
    """One run of masters and slaves. `run` returns the first violated invariant, or None."""

    def __init__(
        self, setup: Setup, *, mutant: Mutant = HEALTHY, trace: Trace | None = None
    ) -> None:
        settings = Settings(
            members=len(setup.nodes),
            run_ms=setup.run_ms,
            data_file_bytes=setup.file_bytes,
            clients=0,
        )
        schedule = Schedule(seed=setup.seed, settings=settings, faults=setup.faults, calls=())
        super().__init__(schedule, mutant=mutant, trace=trace, configs=configs_of(setup))
        self.setup = setup
        self.broker_clients = MasterSlaveClients(self, setup)
        setup.older.write(self.members[MASTER].disk, STORE_ROOT, setup.file_bytes)
        self._foreign_slaves = ForeignSlaves(self, MASTER, address_of(MASTER))
        self.healed_ms = float(setup.healed_ms)
        at = ("--host", NAME_SERVER_ADDRESS, "--port", str(NAME_SERVER_PORT))
        self._names = SimulatedNameServer(
            self, NAME_SERVER, ("-m", "shaketable.system.node.name_server", *at)
        )
        self._lost: dict[str, int] = {}
        self._settled: SettledState | None = None

    def run(self) -> Violation | None:
        """Run to the end, or to the first violated invariant."""
        self.heap.push(0.0, self._names.start)
        self.heap.push(0.0, self.broker_clients.start)
        for at_ms, slave in self.setup.wiped:
            self.heap.push(float(at_ms), self._wipe, slave)
        for damage in self.setup.damages:
            self.heap.push(float(damage.at_ms), self._kill_and_damage, damage)
        for foreign in self.setup.foreign_slaves:
            self.heap.push(float(foreign.at_ms), self._foreign_slaves.connect, foreign)
        self.heap.push(CHECK_INTERVAL_MS, self._wipe_lost_slaves)
        self.heap.push(self.setup.settled_ms - 1.0, self._check_settled)
        self.heap.push(self.setup.run_ms - 1.0, self._check_taken_over)
        return super().run()

    def _wipe(self, name: str) -> None:
        """Wipe a slave's disk; it restarts without messages."""
        host = self.members[name]
        if host.is_up:
            self.crash(host, loses_unsynced=True)
            self.heap.push(self.clock.now_ms + REPLACED_AFTER_MS, self.restart, host)
        host.lose_disk()
        self.counts.fault("wipe")

    def _kill_and_damage(self, damage: FileDamage) -> None:
        """Kill a running broker and damage one of its files before the restart."""
        host = self.members[damage.node]
        if host.is_up and not host.is_paused:
            self.crash(host, loses_unsynced=False)
            self.heap.push(self.clock.now_ms + REPLACED_AFTER_MS, self.restart, host)
            self._damage(host, damage)

    def _damage(self, host: Host, damage: FileDamage) -> None:
        platter = host.disk.platter
        if damage_broker_file(platter, STORE_ROOT, damage.file, damage.way, damage.place):
            self.counts.files_damaged += 1
            self.counts.fault(f"damage_{damage.file}")

    def _wipe_lost_slaves(self) -> None:
        """Wipe slaves that need expired files, as an operator does.

        RocketMQ's slave never recovers from that by itself.
        """
        if self.clock.now_ms > self.setup.settled_ms - CHECK_INTERVAL_MS:
            return
        master = self.members[MASTER]
        for host in self.members.values():
            if host is not master:
                checks = self._lost.get(host.name, 0) + 1 if _is_lost(host, master) else 0
                self._lost[host.name] = checks
                if checks >= LOST_CHECKS_MAX:
                    self._lost[host.name] = 0
                    self.counts.fault("slave_behind_expired")
                    self._wipe(host.name)
        self.heap.push(self.clock.now_ms + CHECK_INTERVAL_MS, self._wipe_lost_slaves)

    def _check_settled(self) -> None:
        """Check that slaves have caught up, then fail the master and crash the slaves."""
        try:
            check_settled(self, self.setup)
        except Violated as found:
            self.violated(found, found.node)
            return
        self._settled = SettledState.of(self)
        for host in self.members.values():
            self.crash(host, loses_unsynced=True)
            if self.setup.last_damage is not None:
                self._damage(host, self.setup.last_damage)
            host.is_removed = host.name == MASTER and self.setup.slaves > 0
            self.heap.push(self.clock.now_ms + REPLACED_AFTER_MS, self.restart, host)

    def _check_taken_over(self) -> None:
        """Check that the remaining brokers kept all that was settled before the power loss."""
        assert self._settled is not None, "the run went on"
        try:
            self._settled.check_kept(self)
            self._check_recoveries()
        except Violated as found:
            self.violated(found, found.node)

    def _check_recoveries(self) -> None:
        """Recover copies of each broker's disk that have a torn tail, again and again."""
        rng = self.rngs.stream("native_world/recovery")
        folder, file_bytes = f"{STORE_ROOT}/commitlog", self.setup.file_bytes

        def end_on(disk: SimDisk) -> LogEnd:
            return NativeCommitLog.open(disk, STORE_ROOT, folder, file_bytes).end

        for name, host in self.present.items():
            # RocketMQ's format has no durable watermark, as a member's log has.
            self.counts.broken += check_recovery(
                host.disk, end_on, folder, file_bytes, rng, name, remembers_cuts=False
            )

    def _check_end(self) -> None:
        """Do nothing: all was checked while the brokers still ran."""


def _is_lost(slave: Host, master: Host) -> bool:
    """Return whether a slave's log ends before its master's starts."""
    if slave.node is None or master.node is None:
        return False
    end = slave.node.commit_log.end.position
    return 0 < end < master.node.commit_log.start.position


# Run one seed of masters and slaves.


@dataclass(frozen=True, slots=True)
class MasterSlaveResult:
    """The outcome of one seed. `digest` is the same whenever and wherever the run is repeated."""

    seed: int
    violation: Violation | None
    ended_ms: float
    counts: Counts
    digest: str
    history: tuple[Operation, ...]


def run_seed(
    seed: int,
    run_ms: int,
    role: str,
    *,
    has_slaves: bool = True,
    mutant: Mutant | None = None,
    trace: Callable[[str], None] | None = None,
) -> MasterSlaveResult:
    """Run a seed with `run_ms` of faults to its end or the first violation.

    `role` is the master's; `mutant` plants a bug; `trace` is called with each line of the trace.
    """
    setup = draw_setup(seed, role, run_ms, has_slaves=has_slaves)
    recorder = Trace(trace)
    world = MasterSlaveWorld(setup, mutant=mutant or HEALTHY, trace=recorder)
    violation = world.run()
    ends = (
        f"{name} {shadow.start} {shadow.end} {shadow.durable}"
        for name, shadow in world.broker_invariants.shadows.items()
    )
    digest = recorder.final_digest(ends, violation)
    history = tuple(world.broker_clients.history)
    ended_ms = setup.run_ms if violation is None else violation.at_ms
    return MasterSlaveResult(seed, violation, ended_ms, world.counts, digest, history)
