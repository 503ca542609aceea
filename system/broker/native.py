"""What the broker takes over from a native commit log, from before the group.

Its messages count as committed: they are dispatched to the consume queues in front of the log's
first entry, and each queue's offsets go on behind them.
Source: DLedgerCommitLog.recover (dividedCommitlogOffset); DLEDGER.md D.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from shaketable.system.broker.broker_state import (
    BrokerState,
    decode_state,
    encode_state,
    snapshot_ranges,
)
from shaketable.system.broker.consume_queue import ConsumeQueues, Queue, UnitReader
from shaketable.system.broker.log_format import Dispatch
from shaketable.system.raft.batch import LogEnd
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Snapshot
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint
from shaketable.system.store.message import Message
from shaketable.system.store.message_properties import tags_code

_TRANSACTION_TYPE = 12
_PREPARED = 4
_ROLLED_BACK = 12
"""Of a message's sys flag (MessageSysFlag)."""


def native_dispatches(messages: Iterable[tuple[Message, int]]) -> Iterator[Dispatch]:
    """Return messages with their sizes (`NativeLog.messages`) as the broker dispatches them.

    Halves of old transactions have no place in a queue (CommitLogDispatcherBuildConsumeQueue).
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
    begin: LogEnd,
    membership: Membership,
    native: Callable[[], Iterable[Dispatch]],
    checkpoint: BrokerCheckpoint | None = None,
    reader: UnitReader | None = None,
) -> Snapshot:
    """Return the snapshot that stands for a native log, at the begin of the log behind it.

    The core needs one there, for members that have no native log: their queues begin where
    the native messages end. Where a checkpoint of an upgraded broker was loaded, it is asked
    instead of the native log.
    """
    assert begin.index < 0, "entries are gone: the snapshot that stands for them is stored"
    offsets: dict[Queue, int] = {}
    if checkpoint is not None:
        queues = ConsumeQueues(decode_state(checkpoint.state).ranges, reader)
        offsets = queues.offsets_at(begin.position)
    else:
        for queue, offset, *_ in native():
            offsets[queue] = offset + 1
    state = encode_state(BrokerState(snapshot_ranges(offsets)))
    return Snapshot(begin, membership, -1, state)
