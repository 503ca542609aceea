"""Requests of consumers and of mqadmin, for tests of the broker."""

from __future__ import annotations

from shaketable.system.broker.reading.pulls import SUBSCRIPTION_FLAG, SUSPEND_FLAG
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import (
    UNIQUE_KEY_QUERY,
    PullMessage,
    QueryMessage,
    QueueOffsetRequest,
    SearchOffset,
    SendMessageBack,
    SendMessageV2,
    ViewMessage,
)
from shaketable.system.store.message import encode_properties

HOLD_MS = 15_000


def send_with(
    topic: str, queue: int, body: bytes, properties: dict[str, str], opaque: int = 1
) -> Command:
    """Ask to store one message with properties."""
    text = encode_properties(properties).decode()
    ext = SendMessageV2("g", topic, queue, properties=text).to_ext()
    return Command(RequestCode.SEND_MESSAGE_V2, opaque, ext=ext, body=body)


def pull_of(
    topic: str,
    queue: int,
    offset: int,
    *,
    tags: str | None = None,
    hold_ms: int = 0,
    count: int = 32,
    opaque: int = 7,
    code: RequestCode = RequestCode.PULL_MESSAGE,
) -> Command:
    """Ask for messages as RocketMQ's consumers do: with a filter, and to be held."""
    flags = (SUSPEND_FLAG if hold_ms else 0) | (SUBSCRIPTION_FLAG if tags is not None else 0)
    fields = PullMessage(
        "g",
        topic,
        queue,
        offset,
        count,
        flags,
        suspend_timeout_millis=hold_ms,
        subscription=tags,
        expression_type="TAG",
    )
    return Command(code, opaque, ext=fields.to_ext())


def by_key(
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = 2**63 - 1,
    count: int = 32,
    is_unique: bool = False,
) -> Command:
    """Ask for messages by key."""
    ext = QueryMessage(topic, key, count, begin_ms, end_ms).to_ext()
    if is_unique:
        ext[UNIQUE_KEY_QUERY] = "true"
    return Command(RequestCode.QUERY_MESSAGE, 12, ext=ext)


def view(position: int, topic: str | None = None) -> Command:
    """Ask for the message at a place of the log."""
    return Command(RequestCode.VIEW_MESSAGE_BY_ID, 33, ext=ViewMessage(position, topic).to_ext())


def offset_at(topic: str, queue: int, wall_ms: int, boundary: str | None = None) -> Command:
    """Ask for a queue's offset by time."""
    ext = SearchOffset(topic, queue, wall_ms, boundary).to_ext()
    return Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, 29, ext=ext)


def earliest(topic: str, queue: int) -> Command:
    """Ask when a queue's first message was stored."""
    ext = QueueOffsetRequest(topic, queue).to_ext()
    return Command(RequestCode.GET_EARLIEST_MSG_STORETIME, 32, ext=ext)


def back(
    position: int, group: str, level: int = 0, *, times_max: int | None = None, opaque: int = 36
) -> Command:
    """Say that a group could not consume the message at a place of the log."""
    ext = SendMessageBack(position, group, level, max_reconsume_times=times_max).to_ext()
    return Command(RequestCode.CONSUMER_SEND_MSG_BACK, opaque, ext=ext)
