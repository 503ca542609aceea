"""At the end of a run: config/*.json that other brokers, other versions or people have written.

A file is refused as a whole, or what is loaded is what a broker may have: then no later answer,
copy or file can carry on what was wrong. Source: RocketMQ's ConfigManager, whose decode takes what
fastjson takes; TopicConfigManager and SubscriptionGroupManager.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.groups.group_offsets import KEYS_MAX
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.broker.topic_tables.topics import TOPICS_MAX
from shaketable.system.master_slave.config_files import (
    DELAYS,
    GROUPS,
    OFFSETS,
    TOPICS,
    encode_tables,
    load_tables,
)
from shaketable.system.remoting.command import CommandError
from shaketable.system.remoting.fastjson import loads
from shaketable.system.sim.rules.violation import Violated
from shaketable.system.sim.schedules.random_streams import RandomStream

CHECKS = 6
"""How many foreign files are tried in a run."""
_TABLE = {
    TOPICS: "topicConfigTable",
    GROUPS: "subscriptionGroupTable",
    OFFSETS: "offsetTable",
    DELAYS: "offsetTable",
}
_I64_MAX = (1 << 63) - 1
_LEGAL_NAME = re.compile(r"[A-Za-z0-9_%|-]{1,127}")
_TOPIC = {"topicName": "t", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
_NAMES = ("", "a b", "../t", "x" * 300, "größer", "t\x00", "t/0")
_COUNTERS: tuple[object, ...] = (-1, 1 << 63, 1 << 80, "7", 1.5, None, [], True)
_CONFIGS: tuple[object, ...] = (5, "on", None, [], True)


def check_foreign_configs(rng: RandomStream, tables: BrokerTables, name: str) -> int:
    """Load foreign files into tables of their own; return how many. Raises Violated.

    What the broker `name` itself would write, given its `tables`, is loaded as it is.
    """
    for file in _TABLE:
        _check_own(file, tables, name)
    for _ in range(CHECKS):
        file, data, what = rng.choice(_WAYS)(rng)
        loaded = _new_tables()
        try:
            load_tables(file, data, loaded)
        except CommandError as error:
            if "\n" in str(error):
                text = f"{what}: {error!r} is no clear line"
                raise Violated("foreign-configs-are-refused", text, name) from error
        else:
            _check_loaded(loaded, what, name)
    return CHECKS


def _new_tables() -> BrokerTables:
    return BrokerTables(BrokerConfig(), BrokerState())


def _check_own(file: str, tables: BrokerTables, name: str) -> None:
    written = encode_tables(file, tables, 0)
    loaded = _new_tables()
    load_tables(file, written, loaded)
    # What its own topics are also depends on its configuration.
    again = encode_tables(file, loaded, 0)
    if file in (OFFSETS, DELAYS) and loads(again)[_TABLE[file]] != loads(written)[_TABLE[file]]:
        raise Violated("foreign-configs-are-refused", f"its own {file}.json changes", name)


def _check_loaded(tables: BrokerTables, what: str, name: str) -> None:
    """Check that tables are what a broker may have."""
    topics = [one.topic_name for one in tables.topics]
    bad = [topic for topic in topics if not _LEGAL_NAME.fullmatch(topic)]
    bad += [group for group, config in tables.groups.items() if not isinstance(config, Mapping)]
    keys = len(tables.offsets.state())
    problems = {
        f"{bad[:3]!r} are kept": bool(bad),
        f"{len(topics)} topics are kept": len(topics) > 2 * TOPICS_MAX,
        f"{len(tables.groups)} groups are kept": len(tables.groups) > KEYS_MAX,
        f"offsets of {keys} topics and groups are kept": keys > KEYS_MAX,
        f"changes are counted as {tables.versions}": any(
            type(count) is not int or not 0 <= count <= _I64_MAX
            for count in tables.versions.values()
        ),
    }
    for problem, is_one in problems.items():
        if is_one:
            raise Violated("foreign-configs-are-refused", f"{what}: {problem}", name)


# ---- ways: a file's name, what is in it, and what is wrong with it --------------------------

Foreign = tuple[str, bytes, str]


def _file(file: str, table: object, counter: object = 1) -> bytes:
    version = {"counter": counter, "stateVersion": 0, "timestamp": 0}
    return json.dumps({"dataVersion": version, _TABLE[file]: table}).encode()


def _illegal_topics(rng: RandomStream) -> Foreign:
    names = [rng.choice(_NAMES), "legal"]
    table = {name: {**_TOPIC, "topicName": name} for name in names}
    return TOPICS, _file(TOPICS, table), f"a topic {names[0]!r}"


def _odd_counters(rng: RandomStream) -> Foreign:
    file, counter = rng.choice((TOPICS, OFFSETS)), rng.choice(_COUNTERS)
    return file, _file(file, {}, counter), f"counter {counter!r} in {file}.json"


def _odd_groups(rng: RandomStream) -> Foreign:
    config = rng.choice(_CONFIGS)
    return GROUPS, _file(GROUPS, {"g": config, "h": {}}), f"a group's configuration {config!r}"


def _odd_table(rng: RandomStream) -> Foreign:
    file, table = rng.choice(tuple(_TABLE)), rng.choice(_CONFIGS)
    return file, _file(file, table), f"a table {table!r} in {file}.json"


def _too_many(rng: RandomStream) -> Foreign:
    file = rng.choice((GROUPS, OFFSETS))
    table: dict[str, object] = {f"t{number}@g": {} for number in range(KEYS_MAX + 1)}
    if file == OFFSETS:
        table = {key: {"0": 1} for key in table}
    return file, _file(file, table), f"{KEYS_MAX + 1} entries in {file}.json"


def _cut_off(rng: RandomStream) -> Foreign:
    file = rng.choice(tuple(_TABLE))
    data = _file(file, {})
    return file, data[: rng.randrange(len(data))], f"a part of {file}.json"


_WAYS: tuple[Callable[[RandomStream], Foreign], ...] = (
    _illegal_topics,
    _odd_counters,
    _odd_groups,
    _odd_table,
    _too_many,
    _cut_off,
)
