"""Seeds of masters and slaves: clean seeds are clean, the same everywhere, and bugs are found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.simulation import RunSpec, Step
from shaketable.harness.targets.simulators import (
    NODE,
    SLAVE_BEHIND_EXPIRED,
    STRANGER,
    MasterSlaveSimulator,
)
from shaketable.harness.targets.sync_double_write import PLUGIN as SYNC
from shaketable.system.broker.broker import Broker
from shaketable.system.broker.delay_levels import LEVELS_MAX
from shaketable.system.broker.deliveries import DelayDelivery
from shaketable.system.master_slave.config_files import DELAYS
from shaketable.system.master_slave.ha import MasterConnection, SlaveConnection
from shaketable.system.mutants import Mutant
from shaketable.system.node.master_slave.config_files import ConfigFiles
from shaketable.system.node.master_slave.parts import MasterSlaveParts
from shaketable.system.sim.master_slave_world.setup import (
    AHEAD,
    MASTER,
    NO_EXPIRY_MS,
    NOWHERE,
    SAME_END,
    FileDamage,
    ForeignSlave,
    OlderStore,
    Setup,
    draw_setup,
)
from shaketable.system.sim.master_slave_world.world import MasterSlaveWorld, run_seed
from shaketable.system.sim.planted_bugs import planted_bug
from shaketable.system.sim.schedules.faults import OF_A_BROKER, Crash, Cut

CUT_MS = 5_000
SETUP = Setup(
    seed=7,
    role="ASYNC_MASTER",
    slaves=1,
    is_sync_flush=False,
    file_bytes=4_096,
    transfer_bytes_max=300,
    tail_bytes_max=1_000,
    reserved_ms=2_000,
    sync_flush_timeout_ms=5_000,
    slave_timeout_ms=3_000,
    body_bytes_max=1_000,
    sends_per_s=15,
    healed_ms=2_500 + CUT_MS,
    faults=(Cut(start_ms=2_000, duration_ms=CUT_MS, links=((MASTER, "n1"), ("n1", MASTER))),),
    wiped=(),
)
"""A slave is cut off for longer than its master keeps what it then needs."""


@pytest.mark.parametrize("seed", [5, 8])
@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_drawn_seeds_are_clean_and_the_same_each_time(role: str, seed: int) -> None:
    first = run_seed(seed, 6_000, role)
    assert first.violation is None
    assert first.counts.acknowledged > 20
    assert first.counts.faults
    if seed == 8:
        assert run_seed(seed, 6_000, role, trace=lambda _: None).digest == first.digest


def test_a_master_without_slaves_has_none() -> None:
    setup = draw_setup(1, "ASYNC_MASTER", 6_000, has_slaves=False)
    assert (setup.nodes, setup.wiped) == ((MASTER,), ())
    assert run_seed(1, 6_000, "ASYNC_MASTER", has_slaves=False).violation is None


def test_a_slave_that_needs_what_has_expired_copies_anew() -> None:
    world = MasterSlaveWorld(SETUP)
    assert world.run() is None
    assert world.counts.faults == {"cut": 1, "slave_behind_expired": 1, "wipe": 1}
    begin = world.broker_invariants.shadows["n1"].start
    assert begin > 0
    assert begin % SETUP.file_bytes == 0


def test_a_slave_that_is_far_behind_copies_what_is_in_older_files() -> None:
    world = MasterSlaveWorld(msgspec.structs.replace(SETUP, reserved_ms=NO_EXPIRY_MS))
    assert world.run() is None
    assert world.counts.faults == {"cut": 1}
    assert world.broker_invariants.shadows["n1"].start == 0
    assert world.broker_invariants.shadows["n1"].end > 4 * SETUP.file_bytes


DOWN = msgspec.structs.replace(
    SETUP,
    reserved_ms=NO_EXPIRY_MS,
    faults=(Crash(start_ms=2_000, duration_ms=CUT_MS, node="n1", loses_unsynced=False),),
)


class SendsAllItHas(SlaveConnection):
    """A slave without messages is sent the whole log."""

    def _start_position(self, position: int) -> int:
        return position or self._core.log.start.position


class TakesOneFile(MasterConnection):
    """A slave takes nothing that stands in another file than the first."""

    def _complete_bytes(self) -> int:
        return 0 if self._core.log.end_position >= self._file_bytes else super()._complete_bytes()


@pytest.mark.parametrize(
    ("setup", "parts", "invariant"),
    [
        (SETUP, MasterSlaveParts(slave_connection=SendsAllItHas), "slave-begins-late"),
        (DOWN, MasterSlaveParts(master_connection=TakesOneFile), "every-node-catches-up"),
    ],
)
def test_copying_wrongly_is_found(setup: Setup, parts: MasterSlaveParts, invariant: str) -> None:
    bug = Mutant("planted", master_slave=parts)
    found = MasterSlaveWorld(setup, mutant=bug).run()
    assert found is not None
    assert found.invariant == invariant


class ForgetsTheLastLevel(DelayDelivery):
    """Looks at all levels but the last."""

    def _deliver_level(
        self, level: int, count_max: int, bytes_max: int, wall_ms: int
    ) -> tuple[int, int]:
        if level == LEVELS_MAX - 1:
            return 0, 0
        return super()._deliver_level(level, count_max, bytes_max, wall_ms)


def test_a_delayed_message_of_the_last_level_is_delivered(monkeypatch) -> None:
    setup = msgspec.structs.replace(DOWN, older=OlderStore(waiting=(1, 1), delivered=(0, 0)))
    assert MasterSlaveWorld(setup).run() is None
    monkeypatch.setattr(Broker, "delays_type", ForgetsTheLastLevel)
    found = MasterSlaveWorld(setup).run()
    assert found is not None
    assert found.invariant == "delayed-is-delivered"


def test_a_slave_learns_how_far_deliveries_were_before() -> None:
    older = OlderStore(waiting=(3, 2), delivered=(1, 2))
    setup = msgspec.structs.replace(DOWN, older=older)
    assert MasterSlaveWorld(setup).run() is None
    bug = planted_bug("delays-not-synchronized")
    assert bug is not None
    found = MasterSlaveWorld(setup, mutant=bug).run()
    assert found is not None
    assert found.invariant == "slave-has-tables"


@pytest.mark.parametrize("ahead_bytes", [NOWHERE, SAME_END, *AHEAD])
def test_what_a_stranger_reports_is_no_copy(ahead_bytes: int) -> None:
    slave = ForeignSlave(at_ms=2_500, ahead_bytes=ahead_bytes)
    setup = msgspec.structs.replace(
        DOWN, role="SYNC_MASTER", slave_timeout_ms=200, foreign_slaves=(slave,)
    )
    world = MasterSlaveWorld(setup)
    assert world.run() is None
    assert world.counts.faults == {"crash": 1, "stranger": 1}
    bug = planted_bug("any-report-counts")
    assert bug is not None
    found = MasterSlaveWorld(setup, mutant=bug).run()
    if ahead_bytes != NOWHERE:
        assert found is not None
        assert found.invariant == "reports-fit-what-was-sent"


def test_a_planted_bug_is_found_by_a_seed_and_replayed(tmp_path: Path) -> None:
    simulator = SYNC.simulator
    assert isinstance(simulator, MasterSlaveSimulator)
    spec = RunSpec(seed=402, world=NODE, mutant="flush-stands-for-slave", virtual_s=8.0)
    assert spec.mutant in simulator.mutants
    steps: list[Step] = []
    found = simulator.run(spec)
    assert found.violation is not None
    assert found.violation.invariant == "acknowledged-is-copied"
    assert simulator.replay(spec, steps.append) == found.violation
    assert steps[-1].at_ms == pytest.approx(found.violation.at_ms, abs=1.0)
    assert (
        {"wipe", SLAVE_BEHIND_EXPIRED, STRANGER}
        == set(found.occurred)
        == set(simulator.occurrences)
    )
    assert simulator.states(NODE) == frozenset()
    with pytest.raises(UsageError, match="by their seeds"):
        simulator.replay_file(tmp_path / "run.json", steps.append)


@pytest.mark.parametrize("file", OF_A_BROKER)
@pytest.mark.parametrize("node", [MASTER, "n1"])
def test_what_is_lost_beside_a_whole_log_is_built_anew(file: str, node: str) -> None:
    one = FileDamage(at_ms=3_000, node=node, file=file, way="short", place=0.5)
    setup = msgspec.structs.replace(
        SETUP, reserved_ms=NO_EXPIRY_MS, healed_ms=4_000, faults=(), damages=(one,), last_damage=one
    )
    world = MasterSlaveWorld(setup)
    assert world.run() is None
    assert world.counts.files_damaged >= 2


class NoDelays(ConfigFiles):
    """How far deliveries are stands in the checkpoint alone."""

    async def _save(self, name: str) -> None:
        if name != DELAYS:
            await super()._save(name)


def test_a_slave_that_takes_over_without_the_progress_of_deliveries_is_found() -> None:
    lost = FileDamage(at_ms=0, node="", file="appliedto", way="gone", place=0.0)
    older = OlderStore(waiting=(3, 2), delivered=(1, 2))
    setup = msgspec.structs.replace(
        SETUP, last_damage=lost, reserved_ms=NO_EXPIRY_MS, file_bytes=1 << 20, older=older
    )
    assert MasterSlaveWorld(setup).run() is None
    bug = Mutant("planted", master_slave=MasterSlaveParts(config_files=NoDelays))
    found = MasterSlaveWorld(setup, mutant=bug).run()
    assert found is not None
    assert found.invariant == "what-was-there-is-kept"


def test_an_empty_slave_that_has_no_room_to_begin_has_lost_nothing() -> None:
    """It is killed with its log's first position neither written nor refused for good."""
    assert run_seed(8006, 8_000, "ASYNC_MASTER").violation is None


def test_what_a_full_disk_removed_before_its_time_need_not_be_delivered() -> None:
    assert run_seed(9024, 8_000, "SYNC_MASTER").violation is None


def test_progress_that_a_master_sets_back_is_the_slave_s_to_keep() -> None:
    """Its queue begins anew after all has expired, while the slave still knows where it ended."""
    assert run_seed(5001, 8_000, "SYNC_MASTER").violation is None


def test_what_slow_disks_began_beside_each_other_ends_with_them() -> None:
    """Three of them multiplied: a write took 215 s, and the master had not caught up (seed 914)."""
    assert run_seed(914, 30_000, "ASYNC_MASTER", has_slaves=False).violation is None
