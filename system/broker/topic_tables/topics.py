"""The table of topics, built from committed entries, the same on every member.

Source: RocketMQ's TopicConfig, TopicConfigManager and TopicValidator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from shaketable.system.broker.broker_state import DamagedBrokerState
from shaketable.system.broker.limits import BrokerConfig

READ, WRITE, INHERIT = 4, 2, 1
"""Bits of a topic's `perm` (RocketMQ's PermName)."""
DEFAULT_TOPIC = "TBW102"
"""Topics that a send creates inherit from this one."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
RESERVED_PREFIX = "RMQ_SYS_"
RETRY_PREFIX = "%RETRY%"
_SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
_BUILTIN = frozenset((DEFAULT_TOPIC, SCHEDULE_TOPIC, _SELF_TEST_TOPIC))
RETRY_QUEUES = 1
QUEUES_MAX = 1024
TOPICS_MAX = 10_000
NAME_BYTES_MAX = 127
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


class TopicConfig(msgspec.Struct, frozen=True, rename="camel"):
    """RocketMQ's TopicConfig. `attributes` has the form "name=value,...", sorted."""

    topic_name: str
    read_queue_nums: int = 4
    write_queue_nums: int = 4
    perm: int = READ | WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: str = ""

    def to_wire(self) -> dict[str, object]:
        """Return its form in JSON bodies."""
        wire = dict(msgspec.to_builtins(self))
        pairs = (part.partition("=") for part in self.attributes.split(",") if part)
        wire["attributes"] = {name: value for name, _, value in pairs}
        return wire


class TopicEvent(msgspec.Struct, frozen=True):
    """The body of an entry that sets a topic's configuration; without `config`, it deletes it."""

    topic: str
    config: TopicConfig | None = None


State = Mapping[str, Mapping[str, str | int | bool]]
"""A topic's configuration by its name; empty where it was deleted."""


class TopicTable:
    """Topics from committed entries, and the built-in ones.

    A deleted topic stays in the table as deleted, since its messages are still in the log.
    `write_queues` is the number of write queues of each writable topic, a lookup for sends.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._builtin = {topic.topic_name: topic for topic in _builtin_topics(config)}
        self._configs: dict[str, TopicConfig | None] = {}
        self.write_queues: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return the number of topics, deleted ones included."""
        return len(self._configs)

    def __iter__(self) -> Iterator[TopicConfig]:
        """Yield every topic's configuration, built-in ones first."""
        yield from (topic for name, topic in self._builtin.items() if name not in self._configs)
        yield from (topic for topic in self._configs.values() if topic is not None)

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic's configuration, None if there is no such topic."""
        return self._configs[name] if name in self._configs else self._builtin.get(name)

    def is_known(self, name: str) -> bool:
        """Whether the topic exists, or did before it was deleted."""
        return name in self._configs or name in self._builtin

    def apply(self, body: bytes) -> str | None:
        """Apply a committed entry; return the topic's name if it deletes the topic.

        Raises DamagedBrokerState.
        """
        try:
            event = msgspec.json.decode(body, type=TopicEvent)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise DamagedBrokerState(f"an entry about a topic cannot be read: {error}") from None
        self.put(event.topic, event.config)
        return event.topic if event.config is None else None

    def put(self, name: str, config: TopicConfig | None) -> None:
        """Set a topic's configuration; None deletes it."""
        self._configs[name] = config
        self.allow(name, config)

    def allow(self, name: str, config: TopicConfig | None) -> None:
        """Update `write_queues` for a topic's committed or appended configuration."""
        if config is not None and config.perm & WRITE and name != SCHEDULE_TOPIC:
            self.write_queues[name.encode()] = config.write_queue_nums
        else:
            self.write_queues.pop(name.encode(), None)

    def reset_write_queues(self) -> None:
        """Reset `write_queues` to the committed topics."""
        self.write_queues.clear()
        for name, config in self._configs.items():
            self.allow(name, config)

    def state(self) -> dict[str, dict[str, str | int | bool]]:
        """Return the table for a checkpoint or a snapshot."""
        return {
            name: {} if config is None else msgspec.to_builtins(config)
            for name, config in self._configs.items()
        }

    def restore(self, state: State) -> None:
        """Load such a state. Raises DamagedBrokerState."""
        try:
            self._configs = {
                name: msgspec.convert(dict(config), TopicConfig) if config else None
                for name, config in state.items()
            }
        except msgspec.ValidationError as error:
            raise DamagedBrokerState(f"the broker's state holds a bad topic: {error}") from None
        self.reset_write_queues()


def name_problem(name: str, bytes_max: int = NAME_BYTES_MAX) -> str | None:
    """Return why `name` is not a legal topic or group name, None if it is."""
    if not name or len(name) > bytes_max:
        return f"a name has 1..{bytes_max} characters, not {len(name)}"
    if not _NAME.fullmatch(name):
        return f"{name!r} is no name: letters, digits, '%', '|', '_' and '-' make one"
    return None


def is_builtin(name: str) -> bool:
    """Whether the topic belongs to the broker: clients may not create, change or delete it."""
    return name in _BUILTIN or name.startswith(RESERVED_PREFIX)


def _builtin_topics(config: BrokerConfig) -> Iterator[TopicConfig]:
    queues = config.queues_per_topic
    inherited = INHERIT if config.auto_create_topics else 0
    yield TopicConfig(DEFAULT_TOPIC, queues, queues, READ | WRITE | inherited)
    yield TopicConfig(_SELF_TEST_TOPIC, 1, 1)
    levels = len(config.delay_levels_ms)
    yield TopicConfig(SCHEDULE_TOPIC, levels, levels)
