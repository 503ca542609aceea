"""Answers queries: messages by key or position, offsets by time, min and max offsets.

Source: RocketMQ's QueryMessageProcessor, AdminBrokerProcessor and
ConsumeQueue.getOffsetInQueueByTime (5.3.3); DLEDGER.md A.2.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import islice

from shaketable.system.broker.consume_queue import ConsumeQueues, Queue
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reading.key_items import message_at
from shaketable.system.broker.reput import Reput
from shaketable.system.raft.ledger import LogView
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.requests import (
    UNIQUE_KEY_QUERY,
    EarliestStoreTimeResponse,
    QueryMessage,
    QueryMessageResponse,
    QueueOffsetRequest,
    QueueOffsetResponse,
    SearchOffset,
    ViewMessage,
)
from shaketable.system.store.key_index import has_key
from shaketable.system.store.message import BORN_HOST_V6, UNIQ_KEY, Message, find_property

ANY_MEMBER_CODES = frozenset((RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID))
"""Any member answers these: an offset message id names the broker that stored the message."""
QUERY_CODES = ANY_MEMBER_CODES | {
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
}
CANDIDATES_MAX = 4096
"""Messages that one query by key reads, including those of other keys with the same hash."""
_STORE_TIME_AT = 56
_SYS_FLAG_AT = 36
_I32 = struct.Struct(">i").unpack_from
_I64 = struct.Struct(">q").unpack_from


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """A query by key. `is_unique`: the key is a UNIQ_KEY."""

    fields: QueryMessage
    is_unique: bool


@dataclass(frozen=True, slots=True)
class QueueRangeQuery:
    """A query for a queue's min or max offset, or the store time of its first message."""

    code: int
    fields: QueueOffsetRequest


Query = KeyQuery | QueueRangeQuery | ViewMessage | SearchOffset


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a query."""

    ext: dict[str, str] = field(default_factory=dict)
    body: list[bytes] = field(default_factory=list)
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None


def parse_query(command: Command) -> Query:
    """Parse a query. Raises CommandError."""
    if command.code == RequestCode.QUERY_MESSAGE:
        is_unique = command.ext.get(UNIQUE_KEY_QUERY) == "true"
        return KeyQuery(QueryMessage.from_ext(command.ext), is_unique)
    if command.code == RequestCode.VIEW_MESSAGE_BY_ID:
        return ViewMessage.from_ext(command.ext)
    if command.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
        fields = SearchOffset.from_ext(command.ext)
        if fields.boundary_type not in (None, "LOWER", "UPPER"):
            raise CommandError(f"boundaryType is LOWER or UPPER, not {fields.boundary_type[:32]!r}")
        return fields
    return QueueRangeQuery(command.code, QueueOffsetRequest.from_ext(command.ext))


def answer_query(reput: Reput, log: LogView, limits: BrokerConfig, query: Query) -> Answer:
    """Answer a query from the applied state. Raises StoreError."""
    if isinstance(query, KeyQuery):
        return _messages_by_key(reput, log, limits, query)
    if isinstance(query, ViewMessage):
        return _message_by_position(reput, log, query)
    if isinstance(query, SearchOffset):
        queue = (query.topic.encode(), query.queue_id)
        offset = offset_by_time(
            reput.queues, log, queue, query.timestamp, is_upper=query.boundary_type == "UPPER"
        )
        return Answer(QueueOffsetResponse(offset).to_ext())
    return _answer_range(reput.queues, log, query)


def offset_by_time(
    queues: ConsumeQueues, log: LogView, queue: Queue, wall_ms: int, *, is_upper: bool = False
) -> int:
    """Return the offset of the first message stored at `wall_ms` or later, else the max offset.

    With `is_upper`, of the last message stored at `wall_ms` or earlier, else the min offset.
    Store times can go back when a new leader's clock is behind; the answer is then one of the
    offsets where they cross `wall_ms`. Raises StoreError.
    """
    low, high = queues.min_offset(queue), queues.max_offset(queue)
    min_offset = low
    while low < high:  # binary search: the message before low is too early, the one at high is not
        middle = (low + high) // 2
        store_ms = _store_ms(queues, log, queue, middle)
        if store_ms < wall_ms or (is_upper and store_ms == wall_ms):
            low = middle + 1
        else:
            high = middle
    return max(min_offset, low - 1) if is_upper else low


def _answer_range(queues: ConsumeQueues, log: LogView, query: QueueRangeQuery) -> Answer:
    queue = (query.fields.topic.encode(), query.fields.queue_id)
    min_offset, max_offset = queues.min_offset(queue), queues.max_offset(queue)
    if query.code == RequestCode.GET_EARLIEST_MSG_STORETIME:
        store_ms = _store_ms(queues, log, queue, min_offset) if min_offset < max_offset else -1
        return Answer(EarliestStoreTimeResponse(store_ms).to_ext())
    offset = max_offset if query.code == RequestCode.GET_MAX_OFFSET else min_offset
    return Answer(QueueOffsetResponse(offset).to_ext())


def _store_ms(queues: ConsumeQueues, log: LogView, queue: Queue, offset: int) -> int:
    """Return the store time of an existing message, in ms since 1970."""
    ((position, _, _),) = queues.units(queue, offset, 1)
    head = log.read(position, _STORE_TIME_AT + 12 + 8)
    is_v6 = _I32(head, _SYS_FLAG_AT)[0] & BORN_HOST_V6
    store_ms: int = _I64(head, _STORE_TIME_AT + (12 if is_v6 else 0))[0]
    return store_ms


def _message_by_position(reput: Reput, log: LogView, query: ViewMessage) -> Answer:
    found = message_at(log, query.offset, reput.applied_position)
    if found is None or query.topic not in (None, "", found[0].topic.decode(errors="replace")):
        remark = f"there is no committed message at {query.offset} of this broker's log"
        return Answer(code=ResponseCode.SYSTEM_ERROR, remark=remark)
    return Answer(body=[found[1]])


def _messages_by_key(reput: Reput, log: LogView, limits: BrokerConfig, query: KeyQuery) -> Answer:
    fields = query.fields
    topic, key = fields.topic.encode(), fields.key.encode()
    begin_ms, end_ms = fields.begin_timestamp, fields.end_timestamp
    count_max = max(1, min(fields.max_num, limits.query_messages_max))
    body: list[bytes] = []
    newest: Message | None = None
    total = 0
    candidates = reput.keys.candidates(topic, key, begin_ms, end_ms) if key else iter(())
    for position in islice(candidates, CANDIDATES_MAX):
        found = message_at(log, position, reput.applied_position)
        if found is None:  # it has expired, or a snapshot has replaced the log
            continue
        message, data = found
        if not (begin_ms <= message.store_ms <= end_ms and _has_key(message, topic, key, query)):
            continue
        total += len(data)
        if body and total > limits.query_bytes_max:
            break
        newest = newest or message
        body.append(data)
        if len(body) == count_max:
            break
    if newest is None:
        is_indexed = limits.key_items_max > 0
        why = "" if is_indexed else ": nothing is indexed here, as messageIndexEnable=false"
        remark = f"no message of that topic, key and time is found{why}"
        return Answer(code=ResponseCode.QUERY_NOT_FOUND, remark=remark)
    ext = QueryMessageResponse(newest.store_ms, newest.physical_offset).to_ext()
    return Answer(ext, body)


def _has_key(message: Message, topic: bytes, key: bytes, query: KeyQuery) -> bool:
    if query.is_unique and find_property(message.properties, UNIQ_KEY) != key:
        return False
    return has_key(topic, key, message.topic, message.properties)
