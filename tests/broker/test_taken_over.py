"""What a broker kept in files before its group is in the group's log once, the same everywhere."""

from __future__ import annotations

import msgspec
from broker_group import BrokerGroup, Member, pull

from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.delay_levels import DELIVERY_GROUP, SCHEDULE_TOPIC
from shaketable.system.broker.groups.group_offsets import offset_key
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.broker.topic_tables.taken_over import encode_bodies, is_done
from shaketable.system.broker.topic_tables.topics import TopicConfig, TopicEvent
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import QueryConsumerOffset
from shaketable.system.store.group_events import (
    EVENT_TOPIC,
    MIGRATION_QUEUE,
    OFFSET_QUEUE,
    TOPIC_QUEUE,
)

BYTES_MAX = 400
DELIVERY_KEY = offset_key(DELIVERY_GROUP, SCHEDULE_TOPIC.decode())
CONFIG = BrokerConfig(data_file_bytes=1 << 20, store_host=bytes(8))


def state_of(topics: dict[str, int], offsets: dict[str, dict[int, int]]) -> BrokerState:
    """Topics by their number of queues, and offsets."""
    configs = {name: TopicConfig(name, queues, queues) for name, queues in topics.items()}
    return BrokerState(
        topics={n: msgspec.to_builtins(c) for n, c in configs.items()}, group_offsets=offsets
    )


OLD = state_of({"orders": 3, "bills": 8}, {"orders@g": {0: 10, 1: 20}, DELIVERY_KEY: {0: 5}})
STALE = state_of({"orders": 2, "gone": 4}, {"orders@g": {0: 7, 2: 30}, "gone@g": {0: 1}})


def tables_with(*bodies: bytes) -> BrokerTables:
    tables = BrokerTables(CONFIG, BrokerState())
    for body in bodies:
        tables.apply(MIGRATION_QUEUE, body)
    return tables


def seen(tables: BrokerTables) -> tuple[dict[str, int], dict[str, dict[int, int]]]:
    """Topics and offsets, the mark left out."""
    topics = {
        name: config.get("writeQueueNums", 0) for name, config in tables.topics.state().items()
    }
    offsets = tables.offsets.state()
    offsets.pop(offset_key(DELIVERY_GROUP, EVENT_TOPIC.decode()), None)
    return topics, offsets


def test_bodies_are_small_and_bring_everything() -> None:
    state = state_of(
        {f"topic-{n}": n + 1 for n in range(20)},
        {f"topic-{n}@g": {0: n, 7: 2 * n} for n in range(20)},
    )
    bodies = encode_bodies(state, BYTES_MAX)
    assert len(bodies) > 5
    assert max(map(len, bodies)) <= BYTES_MAX
    tables = tables_with(*bodies)
    assert seen(tables) == ({f"topic-{n}": n + 1 for n in range(20)}, state.group_offsets)
    assert is_done(tables.offsets)
    assert not is_done(tables_with(*bodies[:-1]).offsets)
    assert encode_bodies(BrokerState(), BYTES_MAX) == ()


def test_nothing_that_is_there_is_changed() -> None:
    tables = BrokerTables(CONFIG, BrokerState())
    tables.apply(
        TOPIC_QUEUE, msgspec.json.encode(TopicEvent("orders", TopicConfig("orders", 9, 9)))
    )
    tables.apply(TOPIC_QUEUE, msgspec.json.encode(TopicEvent("gone")))
    tables.apply(OFFSET_QUEUE, msgspec.json.encode([("orders@g", [(0, 99)])]))
    for body in encode_bodies(STALE, BYTES_MAX):
        tables.apply(MIGRATION_QUEUE, body)
    assert seen(tables) == ({"orders": 9, "gone": 0}, {"orders@g": {0: 99, 2: 30}})


def test_a_part_of_another_leader_fills_in_what_one_that_died_left_out() -> None:
    first, other = encode_bodies(OLD, 160), encode_bodies(STALE, BYTES_MAX)
    assert len(first) > 1
    tables = tables_with(first[0], *other, *first[1:])
    assert is_done(tables.offsets)
    topics, offsets = seen(tables)
    assert topics["orders"] == 3
    assert topics["gone"] == 4
    assert offsets["orders@g"][0] == 7
    assert DELIVERY_KEY not in offsets, "what came behind the end says nothing"


def lead(group: BrokerGroup, name: str) -> None:
    """Let a member lead, and the others learn what is committed."""
    group.lead(name)
    group.pass_time(500)


def count(member: Member) -> int:
    return member.broker.queues.max_offset((EVENT_TOPIC, MIGRATION_QUEUE))


def test_the_first_leaders_files_hold_on_every_member() -> None:
    bodies = encode_bodies(OLD, BYTES_MAX)
    group = BrokerGroup(3, to_migrate={"n0": bodies, "n1": encode_bodies(STALE, BYTES_MAX)})
    lead(group, "n0")
    wanted = ({"orders": 3, "bills": 8}, OLD.group_offsets)
    for member in group.members.values():
        assert seen(member.broker.tables) == wanted
        assert count(member) == len(bodies)
    group.cut.add("n0")
    lead(group, "n1")
    assert seen(group.members["n2"].broker.tables) == wanted
    assert count(group.members["n2"]) == len(bodies), "written once"
    group.cut.clear()
    group.restart("n0")
    group.pass_time(500)
    assert seen(group.members["n0"].broker.tables) == wanted


def test_nobody_is_served_before() -> None:
    group = BrokerGroup(1, to_migrate={"n0": encode_bodies(OLD, BYTES_MAX)})
    member = group.members["n0"]
    asked = Command(
        RequestCode.QUERY_CONSUMER_OFFSET, ext=QueryConsumerOffset("g", "orders", 0).to_ext()
    )
    answers: list[Command] = []
    while not answers or answers[-1].code != ResponseCode.SUCCESS:
        assert len(answers) < 10_000
        answers += member.answer(asked)
        group.pass_time(10)
    assert {answer.code for answer in answers[:-1]} <= {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert answers[-1].ext["offset"] == "10"
    assert len(answers) > 1


def test_no_pull_is_served_before() -> None:
    """Whether a topic may be read is not known before."""
    group = BrokerGroup(1, to_migrate={"n0": encode_bodies(OLD, BYTES_MAX)})
    member = group.members["n0"]
    answers: list[Command] = []
    while not answers or answers[-1].code != ResponseCode.PULL_NOT_FOUND:
        assert len(answers) < 10_000
        is_ready = member.broker.is_ready
        member.ask(pull("orders", 0, 0))
        is_ready |= member.broker.is_ready
        member.pump(to_quiet=False)
        answers += member.replies.pop(1, [])
        group.now_ms += 10
        member.broker.tick(group.now_ms)
    assert is_ready
    assert {answer.code for answer in answers[:-1]} == {ResponseCode.PULL_RETRY_IMMEDIATELY}
