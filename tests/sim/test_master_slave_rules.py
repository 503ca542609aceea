"""What masters and slaves go through, and the planted bugs that show there."""

from __future__ import annotations

import json

import msgspec
import pytest

from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.invariants.violated import Violated
from shaketable.system.master_slave.config_files import GROUPS, TOPICS, load_tables
from shaketable.system.master_slave.core import MasterSlaveCore
from shaketable.system.master_slave.ha import HAError, MasterConnection, SlaveConnection
from shaketable.system.mutants import Mutant
from shaketable.system.node.master_slave.parts import MasterSlaveParts
from shaketable.system.sim.master_slave_world import world
from shaketable.system.sim.master_slave_world.setup import (
    MASTER,
    NO_EXPIRY_MS,
    VERY_SLOW_FACTOR,
    BitFlip,
    Setup,
    draw_setup,
)
from shaketable.system.sim.master_slave_world.world import MasterSlaveWorld, check_foreign_configs
from shaketable.system.sim.schedules.faults import Crash, FullDisk, SlowDisk
from shaketable.system.sim.schedules.random_streams import RandomStreams

SETUP = Setup(
    seed=7,
    role="SYNC_MASTER",
    slaves=1,
    is_sync_flush=False,
    file_bytes=8_192,
    transfer_bytes_max=2_000,
    tail_bytes_max=1_000,
    reserved_ms=NO_EXPIRY_MS,
    sync_flush_timeout_ms=1_000,
    slave_timeout_ms=1_000,
    body_bytes_max=500,
    sends_per_s=15,
    healed_ms=6_000,
    faults=(),
    wiped=(),
)


def violated(parts: MasterSlaveParts, **changes) -> str:
    """Return what breaks with these parts; nothing does with the right ones."""
    setup = msgspec.structs.replace(SETUP, **changes)
    assert MasterSlaveWorld(setup).run() is None
    found = MasterSlaveWorld(setup, mutant=Mutant("planted", master_slave=parts)).run()
    return "" if found is None else found.invariant


class Trusting(MasterConnection):
    """Copies what is no message, as long as its master sends it."""

    def _complete_bytes(self) -> int:
        try:
            return super()._complete_bytes()
        except HAError:
            return len(self._partial)


@pytest.mark.parametrize("place", [1, 5])
def test_what_is_damaged_on_the_way_is_not_copied(place: int) -> None:
    flips = (BitFlip(at_ms=3_000, place=place),)
    parts = MasterSlaveParts(master_connection=Trusting)
    assert violated(parts) == ""
    assert violated(parts, bit_flips=flips) in ("slave-copies-master", "node-runs-on")


class Drowsy(SlaveConnection):
    """Looks after its slave only when that counts as silent."""

    @property
    def due_ms(self) -> float:
        return self.silent_ms


def test_a_slave_that_only_listens_is_sent_heartbeats() -> None:
    parts = MasterSlaveParts(slave_connection=Drowsy)
    assert violated(parts, listener_ms=11_000) == "heartbeats-keep-time"


class Generous(MasterSlaveCore):
    """Takes a slave for one byte further than it says."""

    @property
    def slaves_position(self) -> int:
        return super().slaves_position + 1


def test_a_slave_without_the_last_byte_has_no_copy() -> None:
    away = Crash(start_ms=1_500, duration_ms=4_000, node="n1", loses_unsynced=False)
    parts = MasterSlaveParts(core=Generous)
    assert violated(parts, faults=(away,), lagging_ms=2_000) == "acknowledged-is-copied"


class Unheeding(MasterSlaveCore):
    """Goes on when its disk is full."""

    def disk_full(self, is_full: bool, now_ms: float) -> None:
        pass


def test_a_master_with_a_full_disk_takes_no_messages() -> None:
    full = FullDisk(start_ms=2_500, duration_ms=2_000, node=MASTER, spare_bytes=0)
    parts = MasterSlaveParts(core=Unheeding)
    assert violated(parts, faults=(full,), file_bytes=4_096) == "full-disk-takes-nothing"


def test_some_disks_are_slower_than_a_flush_may_take() -> None:
    setups = [draw_setup(seed, "ASYNC_MASTER", 10_000) for seed in range(20)]
    slow = [
        setup
        for setup in setups
        for fault in setup.faults
        if isinstance(fault, SlowDisk) and fault.factor == VERY_SLOW_FACTOR
    ]
    assert 3 < len(slow) < 17
    assert all(setup.is_sync_flush for setup in slow)


def tables() -> BrokerTables:
    return BrokerTables(BrokerConfig(), BrokerState())


def careless(file: str, data: bytes, into: BrokerTables) -> None:
    """Load groups without a look, and all else as it should be."""
    if file == GROUPS:
        into.groups = json.loads(data)["subscriptionGroupTable"]
    else:
        load_tables(file, data, into)


def test_foreign_configs_are_refused_or_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_foreign_configs(RandomStreams(1).stream("x"), tables(), "n0") > 0
    monkeypatch.setattr(world, "load_tables", careless)
    monkeypatch.setattr(world, "_WAYS", (world._odd_groups,))
    with pytest.raises(Violated, match="foreign-configs-are-refused"):
        check_foreign_configs(RandomStreams(1).stream("x"), tables(), "n0")


def test_a_counter_of_another_type_counts_nothing() -> None:
    loaded = tables()
    load_tables(TOPICS, b'{"dataVersion": {"counter": true}, "topicConfigTable": {}}', loaded)
    assert all(type(count) is int for count in loaded.versions.values())
