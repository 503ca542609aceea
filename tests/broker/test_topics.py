"""Topics: made by sends and by operators, replicated, and ruling over sends and pulls."""

from __future__ import annotations

import msgspec
import pytest
from broker_group import HOST, BrokerGroup, Member, about, pull, send
from consumer_requests import pull_of
from group_requests import commit, create_topic, delete_topic

from shaketable.system.broker.broker_state import DamagedBrokerState
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.topic_tables.topics import SCHEDULE_TOPIC, TopicConfig, TopicTable
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.fastjson import loads
from shaketable.system.remoting.requests import SendMessageV2


def config(**limits: object) -> BrokerConfig:
    return BrokerConfig(data_file_bytes=4096, store_host=HOST, **limits)  # type: ignore[arg-type]


def topic_of(member: Member, name: str) -> TopicConfig | None:
    _, topics = member.broker.topic_table
    return {topic.topic_name: topic for topic in topics}.get(name)


def send_as(topic: str, queue: int, **fields: object) -> Command:
    ext = SendMessageV2("g", topic, queue, **fields).to_ext()  # type: ignore[arg-type]
    return Command(RequestCode.SEND_MESSAGE_V2, 1, ext=ext, body=b"x")


def code_of(member: Member, asked: Command) -> int:
    (reply,) = member.answer(asked)
    if reply.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND):
        assert reply.remark and "\n" not in reply.remark  # noqa: PT018
    return reply.code


def test_a_send_makes_its_topic_after_the_default_one_on_every_member() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    before, _ = leader.broker.topic_table
    assert code_of(leader, send_as("t", 3, default_topic_queue_nums=4)) == 0
    group.pass_time(500)
    for member in group.members.values():
        assert topic_of(member, "t") == TopicConfig("t", 4, 4, perm=6)
        assert member.broker.topic_table[0] == before + 1
    assert code_of(leader, send_as("t", 4)) == ResponseCode.MESSAGE_ILLEGAL
    assert code_of(leader, send_as("u", 15, default_topic_queue_nums=99)) == 0
    assert topic_of(leader, "u") == TopicConfig("u", 16, 16, perm=6)


def test_sends_of_one_turn_make_a_topic_once() -> None:
    leader = BrokerGroup(1).lead()
    end = leader.log.end.index
    replies = leader.answer(*(send("t", 0, b"x", opaque) for opaque in range(5)))
    assert [reply.code for reply in replies] == [0] * 5
    assert leader.log.end.index == end + 6


def test_a_topic_on_its_way_outlives_the_refusal_of_what_came_behind_it() -> None:
    """Else a send would make it anew, after the default one, over what the operator said."""
    group = BrokerGroup(1)
    leader = group.lead()
    leader.is_slow_disk = True
    leader.ask(create_topic("t", read_queue_nums=9, write_queue_nums=1))
    leader.ask(create_topic("u", perm=4))
    leader.pump()
    leader.broker.disk_full(True, group.now_ms)
    leader.ask(create_topic("t", write_queue_nums=5), send("t", 0, b"x"), send("v", 0, b"x"))
    leader.pump()
    refused = leader.replies.pop(1)
    assert [reply.code for reply in refused] == [ResponseCode.SYSTEM_BUSY] * 3
    leader.broker.disk_full(False, group.now_ms)
    leader.ask(send("t", 0, b"x", 11), send("t", 1, b"x", 12), send("u", 0, b"x", 13))
    leader.pump()
    leader.is_slow_disk = False
    leader.sync()
    codes = {reply.opaque: reply.code for reply in leader.replies.pop(1)}
    assert codes[11] == 0
    assert (codes[12], codes[13]) == (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION)
    made = topic_of(leader, "t")
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums) == (9, 1)
    assert topic_of(leader, "v") is None


def test_without_automatic_topics_a_send_is_refused_until_one_is_made() -> None:
    leader = BrokerGroup(1, config=config(auto_create_topics=False)).lead()
    end = leader.log.end.index
    assert code_of(leader, send("t", 0, b"x")) == ResponseCode.TOPIC_NOT_EXIST
    assert leader.log.end.index == end
    assert code_of(leader, create_topic("t", read_queue_nums=2, write_queue_nums=2)) == 0
    assert code_of(leader, send("t", 1, b"x")) == 0
    assert code_of(leader, send("t", 2, b"x")) == ResponseCode.MESSAGE_ILLEGAL


def test_a_topic_of_a_default_that_nothing_inherits_is_refused() -> None:
    leader = BrokerGroup(1).lead()
    assert code_of(leader, create_topic("mine")) == 0
    assert code_of(leader, send_as("t", 0, default_topic="mine")) == ResponseCode.TOPIC_NOT_EXIST
    assert code_of(leader, create_topic("ours", perm=7, write_queue_nums=3)) == 0
    assert code_of(leader, send_as("t", 0, default_topic="ours")) == 0
    assert topic_of(leader, "t") == TopicConfig("t", 3, 3, perm=6)


def test_perm_rules_over_sends_and_pulls() -> None:
    leader = BrokerGroup(1).lead()
    assert code_of(leader, send("t", 0, b"x")) == 0
    assert code_of(leader, create_topic("t", perm=4)) == 0
    assert code_of(leader, send("t", 0, b"x")) == ResponseCode.NO_PERMISSION
    assert code_of(leader, pull("t", 0, 0)) == 0
    assert code_of(leader, create_topic("t", perm=2)) == 0
    assert code_of(leader, send("t", 0, b"x")) == 0
    assert code_of(leader, pull("t", 0, 0)) == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("slave_read_enable", [False, True])
@pytest.mark.parametrize("hold_ms", [0, 2000])
def test_a_leader_says_nothing_of_a_topic_before_it_has_applied_its_log(
    hold_ms: int, slave_read_enable: bool
) -> None:
    settings = config(apply_bytes_max=1000, slave_read_enable=slave_read_enable)
    group = BrokerGroup(1, config=settings)
    leader = group.lead()
    for _ in range(40):
        leader.answer(send("u", 0, bytes(100)))
    assert code_of(leader, create_topic("t", perm=2)) == 0
    assert leader.answer(send("t", 0, b"x"))[0].code == 0
    leader = group.restart("n0", loses_unsynced=False)
    group.now_ms += 1000
    leader.broker.tick(group.now_ms)
    while not leader.core.is_ready:
        leader.pump(to_quiet=False)
    leader.ask(pull_of("t", 0, 0, hold_ms=hold_ms), pull_of("w", 0, 0, hold_ms=hold_ms, opaque=8))
    assert not leader.broker.is_ready
    leader.pump()
    assert leader.broker.is_ready
    codes = {reply.opaque: reply.code for reply in leader.replies.pop(1)}
    retry = ResponseCode.PULL_RETRY_IMMEDIATELY
    held = {7: ResponseCode.NO_PERMISSION, 8: ResponseCode.TOPIC_NOT_EXIST}
    assert codes == (held if hold_ms else {7: retry, 8: retry})


def test_a_pull_that_a_follower_holds_is_checked_once_it_leads() -> None:
    group = BrokerGroup(3, config=config(refused_pull_hold_ms=60_000.0))
    leader = group.lead()
    assert code_of(leader, create_topic("t", perm=2)) == 0
    assert code_of(leader, create_topic("u")) == 0
    group.pass_time(500)
    follower = group.members["n1"]
    held = [pull_of(name, 0, 0, hold_ms=60_000, opaque=n) for n, name in enumerate("tu")]
    assert follower.answer(*held) == []
    assert leader.answer(about(RequestCode.TRANSFER_LEADERSHIP, "n1"))[0].code == 0
    group.lead("n1")
    codes = {reply.opaque: reply.code for reply in follower.replies.pop(1)}
    assert codes == {0: ResponseCode.NO_PERMISSION, 1: ResponseCode.PULL_NOT_FOUND}


def test_fewer_queues_may_be_written_than_read() -> None:
    leader = BrokerGroup(1).lead()
    assert code_of(leader, create_topic("t", read_queue_nums=8, write_queue_nums=2)) == 0
    assert code_of(leader, send("t", 2, b"x")) == ResponseCode.MESSAGE_ILLEGAL
    assert code_of(leader, pull("t", 7, 0)) == ResponseCode.PULL_NOT_FOUND
    assert code_of(leader, pull("t", 8, 0)) == ResponseCode.SYSTEM_ERROR
    assert code_of(leader, pull("never", 0, 0)) == ResponseCode.TOPIC_NOT_EXIST


def test_a_deleted_topic_is_gone_and_goes_on_behind_its_messages() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    for _ in range(3):
        assert code_of(leader, send("t", 0, b"x")) == 0
    assert code_of(leader, delete_topic("t")) == 0
    assert code_of(leader, pull("t", 0, 0)) == ResponseCode.TOPIC_NOT_EXIST
    group.pass_time(500)
    assert [topic_of(member, "t") for member in group.members.values()] == [None] * 3
    assert code_of(leader, delete_topic("t")) == 0, "as RocketMQ does"
    (reply,) = leader.answer(send("t", 0, b"new"))
    assert (reply.code, reply.ext["queueOffset"]) == (0, "3")


def test_topics_survive_a_change_of_leader_and_restarts() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    made = create_topic("t", read_queue_nums=3, perm=4, order=True, attributes="+a=1,+b=2")
    assert code_of(leader, made) == 0
    assert code_of(leader, send("gone", 0, b"x")) == 0
    assert code_of(leader, delete_topic("gone")) == 0
    expected = TopicConfig("t", 3, 16, perm=4, order=True, attributes="a=1,b=2")
    group.pass_time(500)
    group.members["n1"].save_checkpoint()
    for name in ("n0", "n1", "n2"):
        group.restart(name)
    group.cut = {"n0"}
    heir = group.lead("n1")
    assert topic_of(heir, "t") == expected
    assert code_of(heir, pull("gone", 0, 0)) == ResponseCode.TOPIC_NOT_EXIST
    assert code_of(heir, create_topic("t", attributes="-a,+b=3")) == 0
    changed = topic_of(heir, "t")
    assert changed is not None
    assert changed.attributes == "b=3"


def test_a_topic_that_the_core_refused_is_as_never_made() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    leader.broker.disk_full(True, group.now_ms)
    assert code_of(leader, send("t", 0, b"x")) == ResponseCode.SYSTEM_BUSY
    assert code_of(leader, create_topic("u")) == ResponseCode.SYSTEM_BUSY
    leader.broker.disk_full(False, group.now_ms)
    assert code_of(leader, pull("t", 0, 0)) == ResponseCode.TOPIC_NOT_EXIST
    assert code_of(leader, send("t", 0, b"x")) == 0
    assert topic_of(leader, "t") is not None
    assert topic_of(leader, "u") is None


def test_a_topic_that_was_lost_with_its_leader_is_made_by_the_next_one() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    group.cut = {"n0"}
    leader.ask(send("t", 0, b"lost"))
    leader.pump()
    heir = group.lead("n1")
    group.cut = set()
    group.pass_time(3000)
    assert topic_of(heir, "t") is None
    assert code_of(heir, send("t", 0, b"x")) == 0
    group.pass_time(500)
    for member in group.members.values():
        assert member.broker.queues.max_offset((b"t", 0)) == 1
        assert topic_of(member, "t") is not None


def test_only_the_leader_makes_and_deletes() -> None:
    group = BrokerGroup(3)
    group.lead()
    for asked in (create_topic("t"), delete_topic("t")):
        (reply,) = group.members["n1"].answer(asked)
        assert (reply.code, reply.ext["leaderId"]) == (ResponseCode.SERVICE_NOT_AVAILABLE, "n0")


@pytest.mark.parametrize(
    "asked",
    [
        create_topic(""),
        create_topic("t" * 128),
        create_topic("no good"),
        create_topic("t@g"),
        create_topic("TBW102"),
        create_topic("RMQ_SYS_DLEDGER_EVENT"),
        create_topic("t", read_queue_nums=0),
        create_topic("t", write_queue_nums=1025),
        create_topic("t", perm=8),
        create_topic("t", perm=-1),
        create_topic("t", topic_filter_type="NONE"),
        create_topic("t", attributes="a=1"),
        create_topic("t", attributes="+a"),
        create_topic("t", attributes=f"+a={'v' * 4000}"),
        delete_topic(SCHEDULE_TOPIC),
        delete_topic("\x00"),
        Command(RequestCode.UPDATE_AND_CREATE_TOPIC, 1),
        Command(RequestCode.DELETE_TOPIC_IN_BROKER, 1),
        send("no good", 0, b"x"),
    ],
)
def test_what_is_no_good_is_refused_and_nothing_is_written(asked: Command) -> None:
    leader = BrokerGroup(1).lead()
    end = leader.log.end.index
    assert code_of(leader, asked) == ResponseCode.MESSAGE_ILLEGAL
    assert leader.log.end.index == end


def test_attributes_do_not_grow_without_end() -> None:
    leader = BrokerGroup(1).lead()
    assert code_of(leader, create_topic("t", attributes=f"+a={'v' * 3000}")) == 0
    (reply,) = leader.answer(create_topic("t", attributes=f"+b={'v' * 1200}"))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert reply.remark == "attributes of 4205 characters, at most 4096"
    assert code_of(leader, create_topic("t", attributes=f"-a,+b={'v' * 1200}")) == 0
    changed = topic_of(leader, "t")
    assert changed is not None
    assert changed.attributes == f"b={'v' * 1200}"


def test_nobody_sends_to_the_delay_topic() -> None:
    leader = BrokerGroup(1).lead()
    assert code_of(leader, send(SCHEDULE_TOPIC, 0, b"x")) == ResponseCode.NO_PERMISSION


def test_a_retry_topic_is_made_with_one_queue() -> None:
    leader = BrokerGroup(1, config=config(auto_create_topics=False)).lead()
    assert code_of(leader, send("%RETRY%g", 0, b"x")) == 0
    assert topic_of(leader, "%RETRY%g") == TopicConfig("%RETRY%g", 1, 1, perm=6)


def test_so_many_topics_are_kept_and_no_more() -> None:
    leader = BrokerGroup(1, config=config(topics_max=2)).lead()
    codes = [code_of(leader, send(f"t{number}", 0, b"x")) for number in range(3)]
    assert codes == [0, 0, ResponseCode.NO_PERMISSION]
    assert code_of(leader, create_topic("t0", perm=4)) == 0, "changing one is no new one"


def test_pending_changes_of_existing_topics_are_no_new_topics() -> None:
    leader = BrokerGroup(1, config=config(topics_max=3)).lead()
    assert code_of(leader, create_topic("t")) == code_of(leader, create_topic("u")) == 0
    leader.is_slow_disk = True
    leader.ask(create_topic("t", perm=4), create_topic("u", perm=4))
    leader.ask(create_topic("v"), create_topic("w"))
    leader.pump()
    leader.is_slow_disk = False
    leader.sync()
    codes = [reply.code for reply in leader.replies.pop(1)]
    assert sorted(codes) == [0, 0, 0, ResponseCode.NO_PERMISSION], "the last one is the fourth"
    assert topic_of(leader, "v") is not None
    assert topic_of(leader, "w") is None


def test_all_topics_are_told_as_rocketmq_tells_them() -> None:
    leader = BrokerGroup(1).lead()
    leader.answer(create_topic("t", attributes="+a=1"), commit("g", "t", 0, 5))
    (reply,) = leader.answer(Command(RequestCode.GET_ALL_TOPIC_CONFIG, 1))
    said = loads(reply.body)
    assert said["dataVersion"]["counter"] == 1
    assert said["topicConfigTable"]["TBW102"]["perm"] == 7
    assert said["topicConfigTable"]["t"] == {
        "topicName": "t",
        "readQueueNums": 16,
        "writeQueueNums": 16,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {"a": "1"},
    }


def test_damaged_topics_are_told() -> None:
    table = TopicTable(BrokerConfig())
    with pytest.raises(DamagedBrokerState):
        table.apply(b"{}")
    with pytest.raises(DamagedBrokerState):
        table.restore({"t": {"topicName": "t", "perm": "six"}})


def test_a_topics_state_comes_back() -> None:
    table = TopicTable(BrokerConfig())
    for topic in (TopicConfig("t", perm=4), TopicConfig("u", order=True, attributes="a=1")):
        table.apply(msgspec.json.encode({"topic": topic.topic_name, "config": topic}))
    table.apply(b'{"topic": "v"}')
    again = TopicTable(BrokerConfig())
    again.restore(table.state())
    assert list(again) == list(table)
    assert again.is_known("v")
    assert again.write_queues == table.write_queues
