"""Each planted bug of masters and slaves: what it gets wrong, and that without it nothing is."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
import trio
from broker_group import FILE_BYTES, send
from master_slave_brokers import HALink, MasterSlaveBroker
from planted import HEALTHY, Mutant, with_and_without

from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.master_slave.config_files import DELAYS, OFFSETS
from shaketable.system.master_slave.ha import HEADER, REPORT, HAError
from shaketable.system.node.machine import Machine, SystemClock
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.sim.disk import SimDisk

OK = ResponseCode.SUCCESS
LATE_SLAVE = ResponseCode.FLUSH_SLAVE_TIMEOUT
BUSY = ResponseCode.SYSTEM_BUSY


def pair(mutant: Mutant, **more: bool) -> tuple[MasterSlaveBroker, MasterSlaveBroker, HALink]:
    master = MasterSlaveBroker("SYNC_MASTER", mutant=mutant, **more)
    slave = MasterSlaveBroker("SLAVE", mutant=mutant)
    link = HALink(master, slave)
    link.settle()
    return master, slave, link


@with_and_without("slave-reports-what-it-received")
def test_a_copy_counts_when_it_is_written(mutant: Mutant) -> None:
    master, slave, link = pair(mutant)
    slave.writes_are_held = True
    assert master.ask(send("t", 0, b"a")) == []
    link.settle()
    assert [reply.code for reply in master.take_replies()] == ([] if mutant is HEALTHY else [OK])


@with_and_without("flush-stands-for-slave")
def test_a_synchronous_master_waits_for_its_slave(mutant: Mutant) -> None:
    master, _, _ = pair(mutant, is_sync_flush=True)
    replies = master.ask(send("t", 0, b"a"))
    assert [reply.code for reply in replies] == ([] if mutant is HEALTHY else [OK])


@with_and_without("late-slave-is-ok")
def test_a_late_slave_is_told_of(mutant: Mutant) -> None:
    master, _, _ = pair(mutant)
    assert master.ask(send("t", 0, b"a")) == []
    master.pass_time(3000)
    (reply,) = master.take_replies()
    assert reply.code == (LATE_SLAVE if mutant is HEALTHY else OK)


@with_and_without("late-write-refused")
def test_a_send_whose_write_is_late_may_be_stored(mutant: Mutant) -> None:
    master, _, _ = pair(mutant)
    master.writes_are_held = True
    assert master.ask(send("t", 0, b"a")) == []
    master.pass_time(5000)
    (reply,) = master.take_replies()
    assert reply.code == (ResponseCode.SYSTEM_ERROR if mutant is HEALTHY else BUSY)


@with_and_without("any-report-counts")
def test_a_position_that_was_never_sent_is_no_copy(mutant: Mutant) -> None:
    master, _, _ = pair(mutant)
    stranger = mutant.master_slave.slave_connection(master.core, 99, FILE_BYTES, master.now_ms)
    with suppress(HAError):
        stranger.received(REPORT.pack(1 << 40), master.now_ms)
    assert (master.core.slaves_position == 1 << 40) is (mutant is not HEALTHY)


@with_and_without("slave-reads-on-anywhere")
def test_a_slave_takes_what_follows_its_log_alone(mutant: Mutant) -> None:
    master, slave, link = pair(mutant)
    master.ask(send("t", 0, b"a"))
    link.settle()
    end = slave.core.log.end_position
    frame = HEADER.pack(end + 500, 3) + b"abc"
    if mutant is HEALTHY:
        with pytest.raises(HAError, match="goes on at"):
            link.to_master.received(frame, 0.0)
    else:
        link.to_master.received(frame, 0.0)


# ---- what stands in config/ -----------------------------------------------------------------


def tables() -> BrokerTables:
    return BrokerTables(BrokerConfig(), BrokerState({}))


async def in_this_thread(work):  # type: ignore[no-untyped-def]
    await trio.lowlevel.checkpoint()
    return work()


def machine(disk: SimDisk) -> Machine:
    return Machine(disk, SystemClock(), lambda _: Random(0), in_this_thread)


def saved(mutant: Mutant, disk: SimDisk) -> None:
    """Write the files of a broker at which a group has committed offset 7."""
    known = tables()
    files = mutant.master_slave.config_files("/config", machine(disk), known)
    files.load()
    known.offsets.advance("g", "t", 0, 7)
    for key in known.versions:
        known.versions[key] += 1
    trio.run(files.save)


def loaded(mutant: Mutant, disk: SimDisk) -> BrokerTables:
    known = tables()
    mutant.master_slave.config_files("/config", machine(disk), known).load()
    return known


@with_and_without("offsets-not-loaded")
def test_a_restart_keeps_committed_offsets(mutant: Mutant) -> None:
    disk = SimDisk()
    saved(mutant, disk)
    assert loaded(mutant, disk).offsets.get("g", "t", 0) == (7 if mutant is HEALTHY else None)


@with_and_without("config-file-in-place")
def test_a_loss_of_power_leaves_whole_files(mutant: Mutant) -> None:
    disk = SimDisk()
    saved(mutant, disk)
    after = disk.restart(loses_unsynced=True, rng=Random(1))
    kept = after.exists("/config/consumerOffset.json")
    assert kept is (mutant is HEALTHY)


@with_and_without("delays-not-synchronized")
def test_a_slave_takes_over_how_far_delays_are(mutant: Mutant) -> None:
    asked = [name for _, name in mutant.master_slave.synchronize.requests]
    assert OFFSETS in asked
    assert (DELAYS in asked) is (mutant is HEALTHY)
