"""Migrates topics and group offsets from before the group into its log, once.

A broker without a group keeps them in files. At the upgrade, the first leader that has such files
writes their contents as entries, and serves no client before these are applied. They add what is
missing and never set an offset back. Once the last of them is applied, later ones are ignored, so
every member has the first leader's contents.
Source: RocketMQ's deploy guide for DLedger (config/ is copied with the log); DLEDGER.md D.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from shaketable.system.broker.broker_state import (
    BrokerState,
    DamagedBrokerState,
    decode_state,
    encode_state,
    snapshot_ranges,
)
from shaketable.system.broker.consume_queue import ConsumeQueues, Queue, UnitReader
from shaketable.system.broker.core import Dispatch
from shaketable.system.broker.delay_levels import DELIVERY_GROUP
from shaketable.system.broker.groups.group_offsets import OffsetEvent, OffsetTable
from shaketable.system.broker.topic_tables.topics import TopicConfig, TopicTable
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import LogEnd, Snapshot
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint
from shaketable.system.store.group_events import EVENT_TOPIC
from shaketable.system.store.message import Message, tags_code

_MARK = (DELIVERY_GROUP, EVENT_TOPIC.decode(), 0)
"""Group, topic and queue of the offset that marks the migration as done: reserved names."""
_OFFSET_BYTES = 40
_BRACKET_BYTES = 64


class _Part(msgspec.Struct):
    """The body of a migration entry."""

    topics: list[TopicConfig] = []
    offsets: OffsetEvent = []
    is_last: bool = False


def encode_bodies(state: BrokerState, bytes_max: int) -> tuple[bytes, ...]:
    """Return the bodies of the entries that migrate a state's topics and group offsets.

    Empty if there is nothing to migrate. A body has at most `bytes_max` bytes.
    """
    if not state.topics and not state.group_offsets:
        return ()
    parts = [_Part()]
    left = room = bytes_max - _BRACKET_BYTES

    def take(size: int) -> _Part:
        nonlocal left
        if size > left and left < room:
            parts.append(_Part())
            left = room
        left -= size
        return parts[-1]

    for fields in state.topics.values():
        config = msgspec.convert(dict(fields), TopicConfig)
        take(len(msgspec.json.encode(config)) + 1).topics.append(config)
    for key, offsets in state.group_offsets.items():
        key_bytes = len(msgspec.json.encode(key)) + _OFFSET_BYTES
        for update in offsets.items():
            take(key_bytes + _OFFSET_BYTES).offsets.append((key, [update]))
    parts[-1].is_last = True
    return tuple(msgspec.json.encode(part) for part in parts)


def is_done(offsets: OffsetTable) -> bool:
    """Whether a state was migrated completely."""
    return offsets.get(*_MARK) is not None


def apply(body: bytes, topics: TopicTable, offsets: OffsetTable) -> None:
    """Apply a committed migration entry to the tables. Raises DamagedBrokerState."""
    try:
        part = msgspec.json.decode(body, type=_Part)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise DamagedBrokerState(f"an entry of what was before cannot be read: {error}") from None
    if is_done(offsets):
        return
    for config in part.topics:
        if not topics.is_known(config.topic_name):
            topics.put(config.topic_name, config)
    for key, updates in part.offsets:
        topic, _, group = key.partition("@")
        is_deleted = topics.is_known(topic) and topics.get(topic) is None
        for queue_id, offset in updates:
            if group == DELIVERY_GROUP or not (is_deleted or offsets.has(key, queue_id)):
                offsets.advance(group, topic, queue_id, offset)
    if part.is_last:
        offsets.advance(*_MARK, 1)


# Messages of a plain commit log from before the group.
#
# They count as committed: they are dispatched to the consume queues before the log's first entry,
# and each queue's offsets continue after them.
# Source: DLedgerCommitLog.recover (dividedCommitlogOffset); DLEDGER.md D.5.

_TRANSACTION_TYPE = 12
_PREPARED = 4
_ROLLED_BACK = 12
"""Bits of a message's sys flag (MessageSysFlag)."""


def plain_dispatches(messages: Iterable[tuple[Message, int]]) -> Iterator[Dispatch]:
    """Convert messages with their sizes (`PlainLog.messages`) to dispatches.

    Prepared and rolled back transaction messages are in no queue
    (CommitLogDispatcherBuildConsumeQueue).
    """
    for message, size in messages:
        if message.sys_flag & _TRANSACTION_TYPE in (_PREPARED, _ROLLED_BACK):
            continue
        properties = message.properties
        yield (
            (message.topic, message.queue_id),
            message.queue_offset,
            message.physical_offset,
            size,
            tags_code(properties, 0, len(properties)),
            message.store_ms,
            properties,
        )


def upgraded_snapshot(
    start: LogEnd,
    membership: Membership,
    plain_log: Callable[[], Iterable[Dispatch]],
    checkpoint: BrokerCheckpoint | None = None,
    reader: UnitReader | None = None,
) -> Snapshot:
    """Return the snapshot that replaces a plain log, at the start of the log that follows it.

    The core sends it to members that have no plain log: their queues start where the plain
    messages end. A loaded checkpoint of an upgraded broker is used instead of the plain log.
    """
    assert start.index < 0, "entries are gone: the snapshot that replaces them is stored"
    offsets: dict[Queue, int] = {}
    if checkpoint is not None:
        queues = ConsumeQueues(decode_state(checkpoint.state).ranges, reader)
        offsets = queues.offsets_at(start.position)
    else:
        for queue, offset, *_ in plain_log():
            offsets[queue] = offset + 1
    state = encode_state(BrokerState(snapshot_ranges(offsets)))
    return Snapshot(start, membership, -1, state)
