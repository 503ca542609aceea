"""The tables of topics and group offsets, built from committed entries by `Reput`.

Entries hold new values, not changes, so applying one twice is harmless (idempotent). A snapshot
may therefore hold tables that are newer than its index: applying the entries in between again
gives the same tables.
Source: RocketMQ's topics.json and consumerOffset.json; DESIGN.md decision 3.
"""

from __future__ import annotations

from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.consume_queue import Ranges
from shaketable.system.broker.delays.delay_levels import DELIVERY_GROUP, LEVELS_MAX, SCHEDULE_TOPIC
from shaketable.system.broker.groups.group_offsets import OffsetTable
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.topic_tables import taken_over
from shaketable.system.broker.topic_tables.topics import TopicTable
from shaketable.system.store.group_events import MIGRATION_QUEUE, OFFSET_QUEUE, TOPIC_QUEUE


class BrokerTables:
    """The tables of one member. `restore` replaces their contents, not the objects."""

    def __init__(self, config: BrokerConfig, state: BrokerState) -> None:
        self.topics = TopicTable(config)
        self.offsets = OffsetTable()
        self.versions = {TOPIC_QUEUE: 0, OFFSET_QUEUE: 0}
        """How often each table changed, for a broker whose log does not count it."""
        self.groups: dict[str, dict[str, object]] = {}
        """Consumer groups' configurations from a master or a file (SubscriptionGroupConfig)."""
        self.restore(state)

    def restore(self, state: BrokerState) -> None:
        """Load a checkpoint's or a snapshot's state. Raises DamagedBrokerState."""
        self.topics.restore(state.topics)
        self.offsets.restore(state.group_offsets)

    def state(self, ranges: Ranges) -> BrokerState:
        """Return the tables, with the queues' ranges, as one state."""
        return BrokerState(dict(ranges), self.topics.state(), self.offsets.state())

    def delivered(self, queue_id: int, offset: int) -> None:
        """Note that a schedule queue's messages up to `offset` were delivered."""
        if queue_id < LEVELS_MAX:
            topic = SCHEDULE_TOPIC.decode()
            self.offsets.advance(DELIVERY_GROUP, topic, queue_id, offset + 1)

    def apply(self, queue_id: int, body: bytes) -> None:
        """Apply a committed entry of the reserved topic. Raises DamagedBrokerState."""
        if queue_id == TOPIC_QUEUE:
            deleted = self.topics.apply(body)
            if deleted is not None:
                self.offsets.forget_topic(deleted)
        elif queue_id == OFFSET_QUEUE:
            self.offsets.apply(body)
        elif queue_id == MIGRATION_QUEUE:
            taken_over.apply(body, self.topics, self.offsets)
