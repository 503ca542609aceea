"""Bodies of consumers' requests, client side: heartbeats (34), group members (38), locks (41, 42).

Source: RocketMQ's HeartbeatData, GetConsumerListByGroupResponseBody, LockBatchRequestBody and
LockBatchResponseBody; DLEDGER.md A.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from shaketable.system.remoting.command import I32, CommandError

Kind = TypeVar("Kind")
QueueName = tuple[str, str, int]
"""Topic, broker name and queue id."""


class _Queue(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    broker_name: str
    queue_id: I32


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
    return _decode(data, _ClientIds).consumer_id_list


def encode_locks(group: str, client_id: str, queues: Iterable[QueueName]) -> bytes:
    """Encode the body that locks or unlocks queues."""
    named = [_Queue(*queue) for queue in queues]
    return msgspec.json.encode(
        {"consumerGroup": group, "clientId": client_id, "mqSet": named, "onlyThisBroker": False}
    )


def decode_locked(data: bytes | memoryview) -> tuple[QueueName, ...]:
    """Decode the queues that are now locked for the client. Raises CommandError."""
    found = _decode(data, _Locked).queues
    return tuple((each.topic, each.broker_name, each.queue_id) for each in found)


def _decode(data: bytes | memoryview, kind: type[Kind]) -> Kind:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"bad {kind.__name__.lstrip('_')} body: {error}") from None
