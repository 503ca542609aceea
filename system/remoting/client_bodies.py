"""Bodies of clients' requests: batches of messages, heartbeats, group members, locks.

SEND_BATCH_MESSAGE (320) has messages of one topic and queue, one after the other. Each is i32 size,
i32 magic 0, i32 body CRC 0, i32 flag, i32 body length, body, i16 properties length, properties.
Source: RocketMQ's MessageDecoder.encodeMessage; DLEDGER.md A.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from shaketable.system.remoting.command import I32, CommandError

_MESSAGE_HEAD = struct.Struct(">iiiii")  # size, magic, body CRC, flag, body length
_U16 = struct.Struct(">H")
_SEPARATOR = 2
"""The byte after each property."""


class BatchMessage(NamedTuple):
    """One message of a batch. The views of a decoded message are valid as long as its frame."""

    body: bytes | memoryview
    properties: bytes | memoryview = b""
    flag: int = 0


def encode_batch(messages: Sequence[BatchMessage]) -> bytes:
    """Encode the request's body. Raises CommandError if properties are too long."""
    parts: list[bytes | memoryview] = []
    for body, properties, flag in messages:
        if len(properties) > 0x7FFF:
            raise CommandError(f"properties of {len(properties)} bytes, at most 32767")
        size = _MESSAGE_HEAD.size + len(body) + _U16.size + len(properties)
        parts += (
            _MESSAGE_HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _U16.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(data: bytes | memoryview, count_max: int) -> list[BatchMessage]:
    """Decode the body.

    Raises CommandError if it is empty, malformed, or has more than `count_max` messages.
    """
    view = memoryview(data)
    found: list[BatchMessage] = []
    at = 0
    while at < len(view):
        if len(found) == count_max:
            raise CommandError(f"a batch of more than {count_max} messages")
        message, size = _decode_at(view[at:], len(found))
        found.append(message)
        at += size
    if not found:
        raise CommandError("a batch without a message")
    return found


def _decode_at(view: memoryview, ordinal: int) -> tuple[BatchMessage, int]:
    try:
        size, _, _, flag, body_bytes = _MESSAGE_HEAD.unpack_from(view)
        properties_at = _MESSAGE_HEAD.size + body_bytes + _U16.size
        if body_bytes < 0:
            raise CommandError(f"message {ordinal} of a batch has a body of {body_bytes} bytes")
        (properties_bytes,) = _U16.unpack_from(view, properties_at - _U16.size)
    except struct.error:
        raise CommandError(f"message {ordinal} of a batch is cut off") from None
    if size != properties_at + properties_bytes or size > len(view):
        raise CommandError(
            f"message {ordinal} of a batch has size {size}, its fields take "
            f"{properties_at + properties_bytes} of {len(view)} bytes"
        )
    body = view[_MESSAGE_HEAD.size : _MESSAGE_HEAD.size + body_bytes]
    return BatchMessage(body, view[properties_at:size], flag), size


def joined_properties(own: bytes | memoryview, batch_properties: bytes) -> bytes:
    """Return a message's properties followed by its batch's (RocketMQ's MessageExtEncoder)."""
    if not batch_properties:
        return bytes(own)
    separator = b"\x02" if own and own[-1] != _SEPARATOR else b""
    return b"".join((own, separator, batch_properties))


# Consumers' requests, client side: heartbeats (34), group members (38), locks (41, 42).
#
# Source: RocketMQ's HeartbeatData, GetConsumerListByGroupResponseBody, LockBatchRequestBody and
# LockBatchResponseBody; DLEDGER.md A.2.

Kind = TypeVar("Kind")
QueueName = tuple[str, str, int]
"""Topic, broker name and queue id."""


class _Queue(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    broker_name: str
    queue_id: I32


class _Topics(msgspec.Struct, frozen=True, rename="camel"):
    """The body of a GET_ALL_TOPIC_CONFIG answer (TopicConfigSerializeWrapper), names only."""

    topic_config_table: dict[str, msgspec.Raw]


class _Table(msgspec.Struct, frozen=True):
    """The body of a GET_BROKER_RUNTIME_INFO answer (KVTable)."""

    table: dict[str, str]


class _Locked(msgspec.Struct, frozen=True):
    queues: tuple[_Queue, ...] = msgspec.field(default=(), name="lockOKMQSet")


class _ClientIds(msgspec.Struct, frozen=True, rename="camel"):
    consumer_id_list: tuple[str, ...] = ()


def encode_heartbeat(client_id: str, group: str, subscriptions: Mapping[str, str]) -> bytes:
    """Encode the heartbeat of a client in one group; `subscriptions` are expressions by topic."""
    return msgspec.json.encode(
        {
            "clientID": client_id,
            "producerDataSet": [],
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "subscriptionDataSet": [
                        _subscription(topic, text) for topic, text in sorted(subscriptions.items())
                    ],
                    "unitMode": False,
                }
            ],
        }
    )


def _subscription(topic: str, expression: str) -> dict[str, object]:
    tags = [] if expression == "*" else [each.strip() for each in expression.split("||")]
    return {
        "topic": topic,
        "subString": expression,
        "tagsSet": tags,
        "codeSet": [],
        "subVersion": 0,
        "expressionType": "TAG",
        "classFilterMode": False,
    }


def decode_client_ids(data: bytes | memoryview) -> tuple[str, ...]:
    """Decode the client ids of a group. Raises CommandError."""
    return _decode_json(data, _ClientIds).consumer_id_list


def encode_locks(group: str, client_id: str, queues: Iterable[QueueName]) -> bytes:
    """Encode the body that locks or unlocks queues."""
    named = [_Queue(*queue) for queue in queues]
    return msgspec.json.encode(
        {"consumerGroup": group, "clientId": client_id, "mqSet": named, "onlyThisBroker": False}
    )


def decode_locked(data: bytes | memoryview) -> tuple[QueueName, ...]:
    """Decode the queues that are now locked for the client. Raises CommandError."""
    found = _decode_json(data, _Locked).queues
    return tuple((each.topic, each.broker_name, each.queue_id) for each in found)


def decode_topic_names(data: bytes | memoryview) -> frozenset[str]:
    """Decode the names of a broker's topics. Raises CommandError."""
    return frozenset(_decode_json(data, _Topics).topic_config_table)


def decode_runtime_stats(data: bytes | memoryview) -> dict[str, str]:
    """Decode a broker's figures by name. Raises CommandError."""
    return _decode_json(data, _Table).table


def _decode_json(data: bytes | memoryview, kind: type[Kind]) -> Kind:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"bad {kind.__name__.lstrip('_')} body: {error}") from None
