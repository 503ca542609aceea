"""A master and its slaves: what senders are told, what slaves have, and what they refuse."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from broker_group import FILE_BYTES, max_offset, pull, send
from consumer_requests import send_with
from group_requests import commit, create_topic, delete_topic, query
from hypothesis import given, settings
from hypothesis import strategies as st
from master_slave_brokers import HALink, MasterSlaveBroker

from shaketable.system.master_slave.config_files import (
    DELAYS,
    GROUPS,
    OFFSETS,
    TOPICS,
    encode_tables,
    load_tables,
)
from shaketable.system.master_slave.ha import (
    HEADER,
    REPORT,
    HAError,
    MasterConnection,
    SlaveConnection,
)
from shaketable.system.node.master_slave.assembly import PlainDataFiles
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.store.message import walk_messages

OK = ResponseCode.SUCCESS
NO_SLAVE = ResponseCode.SLAVE_NOT_AVAILABLE
LATE_SLAVE = ResponseCode.FLUSH_SLAVE_TIMEOUT
LATE_DISK = ResponseCode.FLUSH_DISK_TIMEOUT


def codes(replies: list[Command]) -> list[int]:
    return [reply.code for reply in replies]


def bodies(broker: MasterSlaveBroker, offset: int = 0) -> list[bytes]:
    (reply,) = broker.ask(pull("t", 0, offset))
    return [message.body for message in walk_messages(bytes(reply.body))]


def pair(
    role: str = "SYNC_MASTER", **more: object
) -> tuple[MasterSlaveBroker, MasterSlaveBroker, HALink]:
    master, slave = MasterSlaveBroker(role, **more), MasterSlaveBroker("SLAVE")  # type: ignore[arg-type]
    return master, slave, HALink(master, slave)


# ---- what senders are told ----------------------------------------------------------------


def test_a_sync_master_says_that_no_slave_is_there_and_where_the_message_is() -> None:
    master = MasterSlaveBroker("SYNC_MASTER")
    (reply,) = master.ask(send("t", 0, b"alone"))
    assert reply.code == NO_SLAVE
    assert (reply.ext["queueOffset"], len(reply.ext["msgId"])) == ("0", 32)
    assert bodies(master) == [b"alone"]


def test_a_sync_master_waits_for_what_the_slave_reports() -> None:
    master, slave, link = pair()
    link.settle()
    assert master.ask(send("t", 0, b"a")) == []
    slave.writes_are_held = True
    link.settle()
    assert master.take_replies() == [], "the slave has it in memory alone"
    slave.writes_are_held = False
    slave.pump()
    link.settle()
    assert codes(master.take_replies()) == [OK]
    assert slave.held() == master.held()


def test_a_slave_that_flushes_reports_what_is_flushed() -> None:
    master = MasterSlaveBroker("SYNC_MASTER")
    slave = MasterSlaveBroker("SLAVE", is_sync_flush=True)
    link = HALink(master, slave)
    link.settle()
    slave.flushes_are_held = True
    assert master.ask(send("t", 0, b"a")) == []
    link.settle()
    assert master.take_replies() == []
    slave.flushes_are_held = False
    slave.pump()
    link.settle()
    assert codes(master.take_replies()) == [OK]


def test_a_slave_that_stays_silent_costs_three_seconds_and_then_nothing() -> None:
    master, _, link = pair()
    link.settle()
    assert master.ask(send("t", 0, b"a")) == []
    master.pass_time(2999)
    assert master.take_replies() == []
    link.to_slave.closed()
    assert codes(master.ask(send("t", 0, b"b"))) == [NO_SLAVE], "it need not wait behind the first"
    master.pass_time(1)
    assert codes(master.take_replies()) == [LATE_SLAVE]
    assert bodies(master) == [b"a", b"b"]


def test_a_slave_too_far_behind_is_not_waited_for() -> None:
    master, _, link = pair(behind_bytes_max=300)
    link.settle()
    assert master.ask(send("t", 0, b"a")) == []
    assert codes(master.ask(send("t", 0, bytes(300)))) == [NO_SLAVE]


def test_sync_flush_waits_for_the_disk_and_async_flush_does_not() -> None:
    for is_sync, expected in ((True, []), (False, [OK])):
        master = MasterSlaveBroker(is_sync_flush=is_sync)
        master.flushes_are_held = True
        assert codes(master.ask(send("t", 0, b"a"))) == expected
        master.pass_time(5000)
        assert codes(master.take_replies()) == [LATE_DISK] * is_sync
        assert bodies(master) == [b"a"]


def test_who_does_not_wait_is_answered_when_the_master_has_it() -> None:
    master = MasterSlaveBroker("SYNC_MASTER", is_sync_flush=True)
    master.flushes_are_held = True
    assert codes(master.ask(send_with("t", 0, b"a", {"WAIT": "false"}))) == [OK]
    assert master.ask(send_with("t", 0, b"b", {"WAIT": "true", "NOWAIT": "false"})) == []
    assert bodies(master) == [b"a", b"b"]


def test_what_is_not_even_written_in_time_is_unknown() -> None:
    master = MasterSlaveBroker()
    master.writes_are_held = True
    assert master.ask(send("t", 0, b"a")) == []
    assert bodies(master) == []
    master.pass_time(5000)
    (reply,) = master.take_replies()
    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "[502] the message was not written in time",
    )


def test_a_batch_a_topic_and_a_group_change_are_answered_by_a_master() -> None:
    master = MasterSlaveBroker("SYNC_MASTER")
    assert codes(master.ask(create_topic("t", read_queue_nums=2, write_queue_nums=2))) == [OK]
    (refused,) = master.ask(send("t", 2, b"x"))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    (refused,) = master.ask(
        Command(RequestCode.ADD_MEMBER, 1, ext={"member": "n1", "address": "h:1"})
    )
    assert refused.code == ResponseCode.NO_PERMISSION


# ---- what slaves have and refuse ----------------------------------------------------------


def test_a_slave_serves_what_it_has_and_takes_no_sends() -> None:
    master, slave, link = pair("ASYNC_MASTER")
    for number in range(30):
        assert codes(master.ask(send("t", 0, b"%d" % number))) == [OK]
    link.settle()
    assert slave.held() == master.held()
    assert bodies(slave, 20) == bodies(master, 20)
    (refused,) = slave.ask(send("t", 0, b"x"))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    slave.core.follow("10.0.0.1:10911")
    (refused,) = slave.ask(send("t", 0, b"x"))
    says = "[404] a slave takes nothing from clients, its master does; leaderId=10.0.0.1:10911"
    assert refused.remark == says
    (refused,) = slave.ask(create_topic("u"))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    (reply,) = slave.ask(max_offset("t", 0))
    assert reply.ext["offset"] == "30"
    slave.pass_time(3_600_000)
    assert not slave.core.is_ready, "a slave stays one"


def test_an_empty_slave_begins_with_the_masters_last_file() -> None:
    master, slave, link = pair("ASYNC_MASTER")
    for number in range(20):
        master.ask(send("t", 0, b"%02d" % number * 200))
    begin = master.core.log.end_position // FILE_BYTES * FILE_BYTES
    assert begin > FILE_BYTES
    link.settle()
    assert slave.core.log.start.position == begin
    assert slave.held() == master.held()[begin:]
    first = slave.broker.queues.min_offset((b"t", 0))
    assert first > 0
    assert bodies(slave, first) == bodies(master, first)
    again = slave.restarted(loses_unsynced=False)
    assert again.broker.queues.ranges() == slave.broker.queues.ranges()
    HALink(master, again).settle()
    assert again.held() == master.held()[begin:]


def test_a_slave_goes_on_where_it_stopped() -> None:
    master, slave, link = pair("ASYNC_MASTER")
    master.ask(*[send("t", 0, bytes(200)) for _ in range(10)])
    link.settle()
    link.to_slave.closed()
    master.ask(*[send("t", 0, bytes(200)) for _ in range(40)])
    slave = slave.restarted(loses_unsynced=True, seed=3)
    assert slave.core.log.end_position < master.core.log.end_position
    HALink(master, slave).settle()
    assert slave.held() == master.held()


def test_logs_that_differ_are_told_and_left_alone() -> None:
    master, slave, link = pair("ASYNC_MASTER")
    master.ask(send("t", 0, b"a"))
    link.settle()
    lost = MasterSlaveBroker()  # the master came back with an empty disk
    with pytest.raises(HAError, match="the slave has the log up to"):
        HALink(lost, slave).settle()
    lost.ask(*[send("t", 0, b"bbb%d" % number) for number in range(9)])
    before = slave.held()
    with pytest.raises(HAError, match="never sent that"):
        HALink(lost, slave).settle()
    lost = lost.restarted(loses_unsynced=False)  # it has forgotten what it sent
    with pytest.raises(HAError, match=r"no message of this log|goes on at"):
        HALink(lost, slave).settle()
    assert slave.held() == before


def test_what_a_slave_has_of_another_life_of_its_master_is_no_copy() -> None:
    """The master lost what it had not flushed, and its new messages are as long as the lost."""
    master, slave, link = pair()
    link.settle()
    assert master.ask(send("t", 0, b"old")) == []
    link.settle()
    assert codes(master.take_replies()) == [OK]
    lost = MasterSlaveBroker("SYNC_MASTER")
    held = HALink(lost, MasterSlaveBroker("SLAVE"))
    held.settle()
    assert lost.ask(send("t", 0, b"new")) == []
    before = slave.held()
    with pytest.raises(HAError, match="never sent that"):
        HALink(lost, slave).settle()
    assert lost.take_replies() == [], "no slave has it"
    assert slave.held() == before
    held.settle()
    assert codes(lost.take_replies()) == [OK]
    assert lost.core.slaves_position == lost.core.written_position


@pytest.mark.parametrize("reports", [(0, 1), (1,), (0, 0, 1)])
def test_a_slave_that_reports_what_it_was_not_sent_is_dropped(reports: tuple[int, ...]) -> None:
    """With `reports` of the written position (1) or of nothing (0), in one piece."""
    master = MasterSlaveBroker("SYNC_MASTER")
    connection = SlaveConnection(master.core, 1, FILE_BYTES, 0.0)
    assert master.ask(send("t", 0, b"a")) == []
    written = master.core.written_position
    with pytest.raises(HAError, match="never sent that"):
        connection.received(b"".join(REPORT.pack(one * written) for one in reports), 0.0)
    assert master.core.slaves_position == 0
    master.pump()
    assert master.take_replies() == []


def test_who_says_nothing_for_long_is_dropped_and_heartbeats_hold_the_rest() -> None:
    master, slave, link = pair("ASYNC_MASTER")
    link.settle()
    for _ in range(10):
        for one in (master, slave):
            one.pass_time(5000)
        link.settle()
    master.pass_time(20_000)
    with pytest.raises(HAError, match="the slave has sent nothing"):
        link.to_slave.next_frame(master.now_ms)
    slave.pass_time(20_000)
    with pytest.raises(HAError, match="the master has sent nothing"):
        link.to_master.next_report(slave.now_ms)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 900), max_size=25),
    st.integers(0, 99),
    st.sampled_from((32 << 10, 500, 50)),
)
def test_a_slaves_log_is_its_masters_however_the_bytes_come(sizes, seed, at_once) -> None:
    master, slave = MasterSlaveBroker(transfer_bytes_max=at_once), MasterSlaveBroker("SLAVE")
    link = HALink(master, slave, Random(seed))
    for number, size in enumerate(sizes):
        master.ask(send("t", number % 3, bytes([number]) * size))
        if number % 4 == seed % 4:
            link.settle()
    link.settle()
    begin = slave.core.log.start.position
    assert slave.held() == master.held()[begin:]
    for queue, (first, end) in slave.broker.queues.ranges().items():
        assert end == master.broker.queues.max_offset(queue)
        assert first == 0 or begin > 0


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(-3, 200), st.integers(-2, 40))
def test_bad_bytes_end_a_connection_and_nothing_else(pieces, position, size) -> None:
    master, slave = MasterSlaveBroker(), MasterSlaveBroker("SLAVE")
    master.ask(send("t", 0, b"a"))
    for piece in (REPORT.pack(position), *pieces):
        connection = SlaveConnection(master.core, 1, FILE_BYTES, 0.0)
        with suppress(HAError):
            connection.received(piece, 0.0)
            connection.next_frame(6000.0)
        connection.closed()
    for piece in (HEADER.pack(position, size) + bytes(max(0, size)), *pieces):
        with suppress(HAError):
            MasterConnection(slave.core, FILE_BYTES, 0.0).received(piece, 0.0)
    assert slave.held() == b""
    assert bodies(master) == [b"a"]


# ---- topics, offsets, delays --------------------------------------------------------------


def test_offsets_hold_at_once_and_a_slave_has_its_own_until_the_masters_come() -> None:
    master, slave, link = pair("ASYNC_MASTER")
    master.ask(send("t", 0, b"a"), commit("g", "t", 0, 1))
    link.settle()
    assert [reply.ext["offset"] for reply in master.ask(query("g", "t", 0))] == ["1"]
    assert codes(slave.ask(commit("g", "t", 0, 7))) == [OK]
    assert [reply.ext["offset"] for reply in slave.ask(query("g", "t", 0))] == ["7"]
    asked = [
        (RequestCode.GET_ALL_TOPIC_CONFIG, TOPICS),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, OFFSETS),
        (RequestCode.GET_ALL_DELAY_OFFSET, DELAYS),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GROUPS),
    ]
    for code, name in asked:
        (reply,) = master.ask(Command(code, 1))
        load_tables(name, bytes(reply.body), slave.broker.tables)
    assert [reply.ext["offset"] for reply in slave.ask(query("g", "t", 0))] == ["1"]
    assert slave.broker.tables.topics.get("t") == master.broker.tables.topics.get("t")
    assert set(slave.broker.tables.groups) == {"g"}
    version = slave.broker.topics_version
    load_tables(TOPICS, bytes(master.ask(Command(asked[0][0], 1))[0].body), slave.broker.tables)
    assert slave.broker.topics_version == version, "nothing new, nothing to register"


def test_an_offset_committed_just_before_its_topic_is_deleted_goes_with_it() -> None:
    master = MasterSlaveBroker()
    master.ask(send("t", 0, b"a"))
    assert codes(master.ask(commit("g", "t", 0, 1), delete_topic("t"))) == [OK, OK]
    assert master.broker.tables.offsets.state() == {}


def test_config_files_bring_back_what_they_held() -> None:
    master = MasterSlaveBroker()
    master.ask(create_topic("t", order=True, attributes="+a=b"), commit("g", "t", 0, 5))
    texts = {
        name: encode_tables(name, master.broker.tables, 1)
        for name in (TOPICS, OFFSETS, DELAYS, GROUPS)
    }
    assert b'"t@g":{0:5}' in texts[OFFSETS]
    assert b'"groupName":"g"' in texts[GROUPS]
    again = MasterSlaveBroker()
    for name, text in texts.items():
        load_tables(name, text, again.broker.tables)
    assert encode_tables(GROUPS, again.broker.tables, 1) == texts[GROUPS]
    assert again.broker.tables.state({}) == master.broker.tables.state({})


@given(
    st.binary(max_size=60)
    | st.sampled_from(
        [
            b'{"offsetTable":{"a":{0:"x"}}}',
            b'{"offsetTable":{"a":{0:9223372036854775808}}}',
            b'{"offsetTable":{"a":{0:"999999999999999999999999"}}}',
            b'{"offsetTable":{"a":{9223372036854775808:1}}}',
            b"[]",
        ]
    )
)
def test_config_files_that_are_none_are_refused(data) -> None:
    broker = MasterSlaveBroker()
    before = broker.broker.tables.state({})
    for name in (TOPICS, OFFSETS, DELAYS, GROUPS):
        with pytest.raises(CommandError):
            load_tables(name, data, broker.broker.tables)
    assert broker.broker.tables.state({}) == before


def test_delayed_messages_come_once_and_only_from_a_master() -> None:
    master, slave, link = pair("ASYNC_MASTER")
    master.ask(send_with("t", 0, b"late", {"DELAY": "1"}))
    link.settle()
    assert bodies(master) == []
    for broker in (slave, master):
        broker.pass_time(1001)
        broker.pass_time(100)
    link.settle()
    assert bodies(master) == bodies(slave) == [b"late"]
    again = master.restarted(loses_unsynced=False)
    again.wall_ms += 60_000
    again.pass_time(1000)
    assert bodies(again) == [b"late"], "the log says that it was delivered"


def test_delays_that_the_file_says_done_and_the_log_lost_hold_up_no_new_ones() -> None:
    """The file is durable at once, with ASYNC_FLUSH the log is not (DeliverDelayedMessageTimerTask,
    which goes back to the queue's end)."""
    before = MasterSlaveBroker()
    for number in range(3):
        before.ask(send_with("t", 0, b"lost%d" % number, {"DELAY": "1"}))
    before.pass_time(1001)
    says = encode_tables(DELAYS, before.broker.tables, 1)
    master = MasterSlaveBroker()
    load_tables(DELAYS, says, master.broker.tables)
    master.pass_time(100)  # a node has them before its first look
    for number in range(5):
        master.ask(send_with("t", 0, b"new%d" % number, {"DELAY": "1"}))
    master.pass_time(1001)
    assert bodies(master) == [b"new%d" % number for number in range(5)]
    master.pass_time(100_000)
    assert len(bodies(master)) == 5


def test_old_files_go_and_queues_begin_behind_them() -> None:
    master = MasterSlaveBroker()
    for number in range(60):
        master.ask(send("t", number % 2, bytes(200)))
        master.pass_time(1000)
    files = PlainDataFiles(master.log, FILE_BYTES)
    found = files.full_files(master.core.ledger.checkpoint_index)
    assert [file.end.position % FILE_BYTES for file in found] == [0] * len(found)
    assert len(found) > 2
    wall_ms = found[1].last_store_ms + master.limits.expiry.reserved_ms
    master.broker.disk_usage(0.1, found, master.now_ms, wall_ms)
    master.pump()
    begin = master.log.start.position
    assert begin == found[1].end.position == 2 * FILE_BYTES
    first = master.broker.queues.min_offset((b"t", 0))
    assert first > 0
    assert len(bodies(master, first)) == 30 - first
    again = master.restarted(loses_unsynced=False)
    assert again.broker.queues.ranges() == master.broker.queues.ranges()
    assert files.full_files(again.core.ledger.checkpoint_index) == found[2:]


def test_a_restart_keeps_queues_and_what_was_flushed() -> None:
    master = MasterSlaveBroker(is_sync_flush=True)
    acknowledged = 0
    for number in range(40):
        acknowledged += codes(master.ask(send("t", number % 2, bytes(number * 9)))).count(OK)
        if number == 20:
            checkpoint = master.broker.take_checkpoint()
            master.files.save(checkpoint)
            master.broker.checkpointed(checkpoint)
    assert acknowledged == 40
    for seed in range(5):
        again = master.restarted(loses_unsynced=True, seed=seed)
        assert again.broker.queues.ranges() == master.broker.queues.ranges()
        (reply,) = again.ask(max_offset("t", 1))
        assert reply.ext["offset"] == "20"
        master = again
