"""What a run's members find on their disks: a log and a config/ from before the group.

All of it is there afterwards: every message at its offset, every topic, and every consumer group's
offsets. Source: docs/upgrading.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.event_log import body_bytes_max
from shaketable.system.broker.topic_tables.taken_over import encode_bodies
from shaketable.system.broker.topic_tables.topics import TopicConfig
from shaketable.system.invariants.violated import Violated
from shaketable.system.master_slave.config_files import OFFSETS, TOPICS
from shaketable.system.remoting.fastjson import dumps
from shaketable.system.sim.initial_disks.apache_log import ApacheLogs
from shaketable.system.sim.schedules.schedule import broker_config
from shaketable.system.store.commit_log import CommitLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shaketable.system.broker.broker import Broker
    from shaketable.system.sim.disk import SimDisk
    from shaketable.system.sim.initial_disks.plain_messages import PlainMessages, Queues
    from shaketable.system.sim.schedules.random_streams import RandomStreams
    from shaketable.system.sim.schedules.schedule import Settings


class OlderStores:
    """The older stores of the bootstrap members of one run.

    `committed_index` is the last entry that a majority had when the old group was stopped, -1 where
    there was none.
    """

    def __init__(
        self,
        rngs: RandomStreams,
        settings: Settings,
        members: Sequence[str],
        plain_log: PlainMessages,
        topic: bytes,
    ) -> None:
        self.config = OlderConfig(rngs, exists_before=settings.older_config)
        self._apache = ApacheLogs(
            rngs, settings.apache_log, members, settings.data_file_bytes, topic
        )
        self.committed_index = self._apache.committed_index
        self._held = plain_log.queues | self._apache.queues
        self._settings = settings
        self._members = frozenset(members)
        self._topic = topic

    def write_older_files(self, disk: SimDisk, root: str, member: str) -> None:
        """Do what an operator does before a member's first start. Raises StoreError."""
        if member not in self._members:
            return
        self.config.write(disk, f"{root}/config")
        if self._settings.apache_log:
            sizes = self._settings.data_file_bytes, self._settings.index_file_bytes
            log = CommitLog.open(disk, root, member, *sizes)
            try:
                self._apache.import_into(log, disk, member)
            finally:
                log.close()

    def to_migrate(self, member: str) -> tuple[bytes, ...]:
        """Return the entries that a member with older files adds to its group's log."""
        if member not in self._members:
            return ()
        return encode_bodies(self.config.state, body_bytes_max(broker_config(self._settings)))

    def newer(self, queues: Queues) -> list[bytes]:
        """Return the messages of the run's topic in `queues` that follow the older ones."""
        return [
            message
            for queue, messages in queues.items()
            if queue[0] == self._topic
            for message in messages[len(self._held.get(queue, ())) :]
        ]

    def check_serving(self, broker: Broker, name: str) -> None:
        """Check that a member that had older files serves only once its tables hold them."""
        if name in self._members and broker.is_ready:
            self.config.check(broker, name)

    def check_kept(self, queues: Queues) -> None:
        """Raise Violated where a message that was committed before the run is missing."""
        for (topic, queue_id), held in self._held.items():
            if queues.get((topic, queue_id), [])[: len(held)] != held:
                of = f"{topic.decode()}/{queue_id}"
                raise Violated(
                    "older-log-stays", f"not all {len(held)} messages of {of} are there any more"
                )


# Topics and group offsets that a broker kept in config/ before it was a member of a group.
#
# Every bootstrap member finds the same files. Nothing changes them in a run, so they hold on every
# member from the first leader on that serves. Source: RocketMQ's topics.json and
# consumerOffset.json; DLEDGER.md B.2, D.5.

_GROUPS = ("billing", "audit")
_TOPICS_MAX = 5
_QUEUES_MAX = 8
_OFFSET_MAX = 1 << 40
_TORN = 0.3


class OlderConfig:
    """The contents of one run's config/ files; empty where there are none.

    `state` is what the group's tables must hold of them.
    """

    def __init__(self, rngs: RandomStreams, *, exists_before: bool) -> None:
        self._rng = rngs.stream("older_config")
        self.state = BrokerState()
        if exists_before:
            self.state = BrokerState({}, *self._random_tables())

    def write(self, disk: SimDisk, folder: str) -> None:
        """Write the files into a member's config/; one may be torn, beside its `.bak`."""
        if not self.state.topics:
            return
        disk.make_dirs(folder)
        for name, data in self._files().items():
            is_torn = self._rng.chance(_TORN)
            if is_torn:
                _put(disk, f"{folder}/{name}.json.bak", data)
            _put(disk, f"{folder}/{name}.json", data[: len(data) // 2] if is_torn else data)
        disk.sync_dir(folder)

    def check(self, broker: Broker, name: str) -> None:
        """Raise Violated where the member's tables lack any of it."""
        tables = broker.tables
        for topic, fields in self.state.topics.items():
            expected = msgspec.convert(dict(fields), TopicConfig)
            if (found := tables.topics.get(topic)) != expected:
                raise Violated("older-config-stays", f"topic {topic} is {found}", name)
        for key, offsets in self.state.group_offsets.items():
            topic, _, group = key.partition("@")
            for queue_id, offset in offsets.items():
                if (at := tables.offsets.get(group, topic, queue_id)) != offset:
                    finding = f"group {group} was at {offset} in {topic}/{queue_id}, now at {at}"
                    raise Violated("older-config-stays", finding, name)

    def _random_tables(
        self,
    ) -> tuple[dict[str, dict[str, str | int | bool]], dict[str, dict[int, int]]]:
        rng = self._rng
        topics: dict[str, dict[str, str | int | bool]] = {}
        offsets: dict[str, dict[int, int]] = {}
        for number in range(rng.randint(1, _TOPICS_MAX)):
            topic = f"older-{number}"
            queues = rng.randint(1, _QUEUES_MAX)
            perm = rng.choice((2, 4, 6))
            topics[topic] = msgspec.to_builtins(TopicConfig(topic, queues, queues, perm))
            for group in _GROUPS[: rng.randint(0, len(_GROUPS))]:
                offsets[f"{topic}@{group}"] = {
                    queue_id: rng.randint(0, _OFFSET_MAX) for queue_id in range(queues)
                }
        for group in _GROUPS:
            offsets[f"%RETRY%{group}@{group}"] = {0: rng.randint(0, 9)}
        return topics, offsets

    def _files(self) -> dict[str, bytes]:
        version = {"counter": 7, "stateVersion": 0, "timestamp": 1_600_000_000_000}
        topics = {
            name: msgspec.convert(dict(fields), TopicConfig).to_wire()
            for name, fields in self.state.topics.items()
        }
        tables = {
            TOPICS: {"dataVersion": version, "topicConfigTable": topics},
            OFFSETS: {"dataVersion": version, "offsetTable": self.state.group_offsets},
        }
        return {name: dumps(body, unquoted_integer_keys=True) for name, body in tables.items()}


def _put(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.create(path, len(data))
    file.pwrite([data], 0)
    file.sync()
    file.close()
