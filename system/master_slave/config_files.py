"""Topics, offsets, delays and groups of a master-slave broker, as RocketMQ's config/*.json.

The same JSON is sent to slaves (request codes 21, 43, 45, 201). The files are written periodically,
so after a crash offsets may be older than those committed: a known weakness of RocketMQ.
Source: TopicConfigManager, ConsumerOffsetManager, ScheduleMessageService and
SubscriptionGroupManager (ConfigManager.encode, decode); DLEDGER.md B.2.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from shaketable.system.broker.admin import group_config
from shaketable.system.broker.delay_levels import DELIVERY_GROUP, LEVELS_MAX, SCHEDULE_TOPIC
from shaketable.system.broker.groups.group_offsets import KEYS_MAX, OFFSETS_MAX, offset_key
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.broker.topic_tables.topics import (
    TOPICS_MAX,
    TopicConfig,
    is_builtin,
    name_problem,
)
from shaketable.system.remoting.command import CommandError
from shaketable.system.remoting.fastjson import dumps, loads
from shaketable.system.store.group_events import OFFSET_QUEUE, TOPIC_QUEUE

TOPICS = "topics"
OFFSETS = "consumerOffset"
DELAYS = "delayOffset"
GROUPS = "subscriptionGroup"
"""File names without extension."""
FILE_BYTES_MAX = 64 << 20
_DELIVERY_KEY = offset_key(DELIVERY_GROUP, SCHEDULE_TOPIC.decode())
_I64_MAX = (1 << 63) - 1
_I64 = Annotated[int, msgspec.Meta(ge=-_I64_MAX - 1, le=_I64_MAX)]
"""Larger numbers fit neither the broker's state nor a response."""


def encode_tables(name: str, tables: BrokerTables, wall_ms: int) -> bytes:
    """Return the contents of one of the files."""
    queue_id = TOPIC_QUEUE if name == TOPICS else OFFSET_QUEUE
    counter = tables.versions[queue_id]
    version = {"counter": counter, "stateVersion": 0, "timestamp": wall_ms}
    table: object
    if name == TOPICS:
        key, table = "topicConfigTable", {one.topic_name: one.to_wire() for one in tables.topics}
    elif name == GROUPS:
        names = sorted(tables.offsets.groups() - {DELIVERY_GROUP})
        found: dict[str, object] = {group: group_config(group) for group in names}
        key, table = "subscriptionGroupTable", found | tables.groups
    elif name == OFFSETS:
        offsets = tables.offsets.state()
        offsets.pop(_DELIVERY_KEY, None)
        key, table = "offsetTable", offsets
    else:
        key, table = "offsetTable", delivery_offsets(tables)
    return dumps({"dataVersion": version, key: table}, unquoted_integer_keys=True)


def delivery_offsets(tables: BrokerTables) -> dict[int, int]:
    """Return up to which offset delayed messages were delivered, by delay level (from 1)."""
    topic = SCHEDULE_TOPIC.decode()
    found = {}
    for level in range(LEVELS_MAX):
        offset = tables.offsets.get(DELIVERY_GROUP, topic, level)
        if offset is not None:
            found[level + 1] = offset
    return found


def load_tables(name: str, data: bytes | memoryview, tables: BrokerTables) -> None:
    """Replace tables by the contents of such a file or response body. Raises CommandError.

    Existing topics and offsets are dropped, as in RocketMQ. Delivery offsets of delayed messages
    only advance: the log itself shows how far delivery got, so an older file must not rewind it.
    """
    body = loads(data, bytes_max=FILE_BYTES_MAX)
    before = tables.state({})
    if name == TOPICS:
        _load_topics(_table(body, "topicConfigTable"), tables)
    elif name == OFFSETS:
        _load_offsets(_table(body, "offsetTable"), tables)
    elif name == GROUPS:
        _load_groups(_table(body, "subscriptionGroupTable"), tables)
    else:
        topic = SCHEDULE_TOPIC.decode()
        for level, offset in _numbers(_table(body, "offsetTable")).items():
            if 0 < level <= LEVELS_MAX:
                tables.offsets.advance(DELIVERY_GROUP, topic, level - 1, offset)
    queue_id = TOPIC_QUEUE if name == TOPICS else OFFSET_QUEUE
    version = tables.versions[queue_id] + (tables.state({}) != before)
    tables.versions[queue_id] = max(version, _counter(body))


def _load_topics(table: dict[str, Any], tables: BrokerTables) -> None:
    if len(table) > TOPICS_MAX:
        raise CommandError(f"{len(table)} topics: at most {TOPICS_MAX}")
    found: dict[str, dict[str, Any]] = {}
    for name, value in table.items():
        if is_builtin(name) or name_problem(name):
            continue
        try:
            config = msgspec.convert({**value, "attributes": _attributes(value)}, TopicConfig)
        except (msgspec.ValidationError, TypeError, AttributeError) as error:
            raise CommandError(f"topic {name}: {error}") from None
        found[name] = msgspec.to_builtins(config)
    tables.topics.restore(found)


def _load_offsets(table: dict[str, Any], tables: BrokerTables) -> None:
    if len(table) > KEYS_MAX:
        raise CommandError(f"offsets of {len(table)} topics and groups: at most {KEYS_MAX}")
    found = {key: _numbers(value) for key, value in table.items()}
    if sum(map(len, found.values())) > OFFSETS_MAX:
        raise CommandError(f"more than {OFFSETS_MAX} offsets")
    done = tables.offsets.state().get(_DELIVERY_KEY)
    tables.offsets.restore({**found, _DELIVERY_KEY: done} if done else found)


def _load_groups(table: dict[str, Any], tables: BrokerTables) -> None:
    """Store group configurations, only to report them again: the broker itself ignores them."""
    if len(table) > KEYS_MAX:
        raise CommandError(f"{len(table)} groups: at most {KEYS_MAX}")
    if not all(isinstance(config, dict) for config in table.values()):
        raise CommandError("a group's configuration is no map")
    tables.groups = dict(table)


def _attributes(value: dict[str, Any]) -> str:
    pairs = value.get("attributes") or {}
    return ",".join(f"{name}={text}" for name, text in sorted(pairs.items()))


def _table(body: Any, key: str) -> dict[str, Any]:
    table = body.get(key) if isinstance(body, dict) else None
    if not isinstance(table, dict):
        raise CommandError(f"there is no {key}")
    return table


def _counter(body: dict[str, Any]) -> int:
    version = body.get("dataVersion")
    counter = version.get("counter") if isinstance(version, dict) else None
    if isinstance(counter, bool):
        return 0  # JSON's true is no number, and Python's is
    return counter if isinstance(counter, int) and 0 <= counter <= _I64_MAX else 0


def _numbers(table: Any) -> dict[int, int]:
    """Convert a JSON map of numbers to offsets. Raises CommandError."""
    try:
        return msgspec.convert(table, dict[_I64, _I64], strict=False)
    except msgspec.ValidationError as error:
        raise CommandError(f"offsets: {error}") from None
