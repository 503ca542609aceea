"""Masters and slaves that check themselves: each rule with a broker that breaks it.

That healthy ones are left alone, all tests with brokers on a table show (`master_slave_brokers`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
import trio
from broker_group import FILE_BYTES, send
from master_slave_brokers import HALink, MasterSlaveBroker

from shaketable.system.broker.appender import PendingAppend
from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.master_slave.core import MasterSlaveConfig
from shaketable.system.master_slave.ha import HEADER, REPORT, HAError
from shaketable.system.master_slave.mode import GroupCommit
from shaketable.system.mutants import HEALTHY, Mutant, load
from shaketable.system.node.machine import Machine, SystemClock
from shaketable.system.node.master_slave.config_files import ConfigFiles
from shaketable.system.node.master_slave.self_checks import (
    MasterSlaveSelfWatch,
    self_checked_master_slave,
)
from shaketable.system.raft.protocol import InvariantError
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.fastjson import BODY_BYTES_MAX
from shaketable.system.sim.disk import SimDisk
from shaketable.system.store.disk import StoreError


class AcknowledgesUnwritten(GroupCommit):
    """Answers before the disk has anything."""

    def _outcome_without_slave(
        self, append: PendingAppend, code: ResponseCode
    ) -> ResponseCode | None:
        return ResponseCode.SUCCESS


UNWRITTEN = replace(
    HEALTHY, master_slave=replace(HEALTHY.master_slave, group_commit=AcknowledgesUnwritten)
)


def pair(mutant: Mutant, **more: bool) -> tuple[MasterSlaveBroker, MasterSlaveBroker, HALink]:
    master = MasterSlaveBroker("SYNC_MASTER", mutant=mutant, checks_itself=True, **more)
    slave = MasterSlaveBroker("SLAVE", mutant=mutant, checks_itself=True)
    link = HALink(master, slave)
    link.settle()
    return master, slave, link


@pytest.mark.parametrize(("role", "is_sync_flush"), [("SYNC_MASTER", True), ("ASYNC_MASTER", True)])
def test_what_is_acknowledged_is_on_the_disk(role: str, is_sync_flush: bool) -> None:
    broker = MasterSlaveBroker(
        role, mutant=UNWRITTEN, checks_itself=True, is_sync_flush=is_sync_flush
    )
    broker.flushes_are_held = True
    with pytest.raises(InvariantError, match="acknowledged-is-flushed: the message at 0 is ack"):
        broker.ask(send("t", 0, b"a"))


def test_what_a_synchronous_master_acknowledges_a_slave_has() -> None:
    master, _, _ = pair(load("flush-stands-for-slave"), is_sync_flush=True)
    with pytest.raises(InvariantError, match=r"acknowledged-is-copied: .* slaves have 0 bytes"):
        master.ask(send("t", 0, b"a"))
    master, _, _ = pair(load("late-slave-is-ok"))
    assert master.ask(send("t", 0, b"a")) == []
    with pytest.raises(InvariantError, match="acknowledged-is-copied: "):
        master.pass_time(3000)


def test_a_send_whose_write_is_late_is_not_refused() -> None:
    for mutant in (HEALTHY, load("late-write-refused")):
        master, _, _ = pair(mutant)
        master.writes_are_held = True
        assert master.ask(send("t", 0, b"a")) == []
        if mutant is HEALTHY:
            master.pass_time(5000)
            continue
        with pytest.raises(InvariantError, match="refusal-is-definite: a send is answered with"):
            master.pass_time(5000)


def test_a_report_of_what_was_never_sent_does_not_count() -> None:
    mutant = load("any-report-counts")
    master, _, _ = pair(mutant)
    stranger = mutant.master_slave.slave_connection(master.core, 99, FILE_BYTES, master.now_ms)
    with pytest.raises(InvariantError, match="reports-fit-what-was-sent: a slave's report of 500"):
        stranger.received(REPORT.pack(500), master.now_ms)


def test_an_empty_slave_that_reports_at_once_where_the_last_file_begins_is_dropped() -> None:
    master, _, _ = pair(HEALTHY)
    for number in range(40):
        master.ask(send("t", 0, bytes(400), opaque=number))
    last_file = master.core.written_position // FILE_BYTES * FILE_BYTES
    assert last_file
    stranger = HEALTHY.master_slave.slave_connection(master.core, 99, FILE_BYTES, master.now_ms)
    with pytest.raises(HAError, match="never sent that"):
        stranger.received(REPORT.pack(0) + REPORT.pack(last_file), master.now_ms)
    assert master.core.slaves_position == 0


@pytest.mark.parametrize("is_flushed", [False, True], ids=["page-cache", "flushed"])
def test_a_slave_reports_what_its_disk_has(is_flushed: bool) -> None:
    master, slave, link = pair(load("slave-reports-what-it-received"), is_sync_flush=is_flushed)
    slave.writes_are_held = True
    master.ask(send("t", 0, b"a"))
    with pytest.raises(InvariantError, match=r"reported-is-stored: .* its disk has 0"):
        link.settle()


def test_a_slave_takes_what_follows_its_log_alone() -> None:
    master, slave, link = pair(load("slave-reads-on-anywhere"))
    master.ask(send("t", 0, b"a"))
    link.settle()
    frame = HEADER.pack(slave.core.log.end_position + 500, 3) + b"abc"
    with pytest.raises(InvariantError, match="slave-copies-master: it takes bytes"):
        link.to_master.received(frame, 0.0)


async def in_this_thread(work):  # type: ignore[no-untyped-def]
    await trio.lowlevel.checkpoint()
    return work()


LARGE = 10**18


def files_on(disk: SimDisk, mutant: Mutant) -> tuple[ConfigFiles, BrokerTables]:
    machine = Machine(disk, SystemClock(), lambda _: Random(0), in_this_thread)
    own = self_checked_master_slave(mutant, MasterSlaveSelfWatch("b", MasterSlaveConfig()))
    tables = BrokerTables(BrokerConfig(), BrokerState({}))
    return own.master_slave.config_files("/config", machine, tables), tables


@pytest.mark.parametrize("damage", ["", "consumerOffset.json"])
def test_a_broker_starts_with_the_offsets_that_its_files_have(damage: str) -> None:
    disk = SimDisk()

    def files_on(disk, mutant: Mutant):  # type: ignore[no-untyped-def]
        machine = Machine(disk, SystemClock(), lambda _: Random(0), in_this_thread)
        own = self_checked_master_slave(
            mutant, MasterSlaveSelfWatch("b", MasterSlaveBroker().config)
        )
        tables = BrokerTables(BrokerConfig(), BrokerState({}))
        return own.master_slave.config_files("/config", machine, tables), tables

    files, tables = files_on(disk, HEALTHY)
    files.load()
    for offset in (6, 7):
        tables.offsets.advance("g", "t", 0, offset)
        for key in tables.versions:
            tables.versions[key] += 1
        trio.run(files.save)
    if damage:
        disk.unlink(f"/config/{damage}")
        disk.create(f"/config/{damage}", 3).pwrite([b"{{{"], 0)
    files, tables = files_on(disk, HEALTHY)
    files.load()
    assert tables.offsets.get("g", "t", 0) == (6 if damage else 7)
    files, _ = files_on(disk, load("offsets-not-loaded"))
    with pytest.raises(InvariantError, match="saved-is-loaded: consumerOffset: "):
        files.load()


@pytest.mark.parametrize("offset", [b"-5", b"true", b"9" * 30, b'"x"'])
def test_offsets_that_no_broker_writes_accuse_none(offset: bytes) -> None:
    disk = SimDisk()
    disk.make_dirs("/config")
    data = b'{"offsetTable":{"t@g":{0:%s,1:4}}}' % offset
    disk.create("/config/consumerOffset.json", len(data)).pwrite([data], 0)
    files, tables = files_on(disk, HEALTHY)
    with suppress(StoreError):
        files.load()
        assert tables.offsets.get("g", "t", 1) == 4


def test_a_file_without_a_counter_of_changes_accuses_none() -> None:
    disk = SimDisk()
    disk.make_dirs("/config")
    data = b'{"offsetTable":{"t@g":{0:7}}}'
    disk.create("/config/consumerOffset.json", len(data)).pwrite([data], 0)
    files, tables = files_on(disk, HEALTHY)
    tables.offsets.advance("g", "t", 0, 7)  # of the checkpoint: the file changes nothing
    files.load()
    assert tables.offsets.get("g", "t", 0) == 7


def test_a_large_file_of_offsets_is_compared() -> None:
    disk = SimDisk()
    disk.make_dirs("/config")
    offsets = ",".join(f'"{number}":{LARGE + number}' for number in range(19))
    keys = ",".join(f'"t@{number:0500}":{{{offsets}}}' for number in range(10_000))
    data = f'{{"offsetTable":{{{keys}}}}}'.encode()
    assert len(data) > BODY_BYTES_MAX
    disk.create("/config/consumerOffset.json", len(data)).pwrite([data], 0)
    files, tables = files_on(disk, HEALTHY)
    files.load()
    assert tables.offsets.get(f"{9_999:0500}", "t", 18) == LARGE + 18
    files, _ = files_on(disk, load("offsets-not-loaded"))
    with pytest.raises(InvariantError, match="saved-is-loaded"):
        files.load()
