"""Typed request and response headers, the ext fields of a command, and clients' bodies.

Source: SendMessageRequestHeaderV2, PullMessageRequestHeader and their responses in RocketMQ
5.3.3; DLEDGER.md A.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self, TypeVar

import msgspec

from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import (
    I32,
    I64,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    Command,
    CommandError,
    Frame,
    SerializeType,
    decode_command,
    encode_command,
)


class Fields(msgspec.Struct, gc=False):
    """Base class of all typed headers: decodes from and encodes to ext fields."""

    @classmethod
    def from_ext(cls, ext: dict[str, str]) -> Self:
        """Decode the fields, whose values are strings. Raises CommandError naming the bad one."""
        try:
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError as error:
            raise CommandError(f"bad {cls.__name__} fields: {error}") from None

    def to_ext(self) -> dict[str, str]:
        """Encode the fields as strings, as Java does; None is omitted."""
        ext = {}
        for name, wire_name in zip(
            self.__struct_fields__, self.__struct_encode_fields__, strict=True
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool):
                ext[wire_name] = "true" if value else "false"
            else:
                ext[wire_name] = str(value)
        return ext


class SendMessageV2(
    Fields,
    gc=False,
    rename={
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_ms": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    },
):
    """SEND_MESSAGE_V2 (310): one message for one queue; the command's body is the message's."""

    producer_group: str
    topic: str
    queue_id: I32
    born_ms: I64 = 0
    default_topic: str = "TBW102"
    default_topic_queue_nums: I32 = 16
    sys_flag: I32 = 0
    flag: I32 = 0
    properties: str = ""
    reconsume_times: I32 = 0
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False
    broker_name: str | None = None


class ExpectedOffset(Fields, gc=False, rename="camel"):
    """The field of APPEND_AT (58005) in addition to those of SEND_MESSAGE_V2."""

    expected_offset: I64


class SendMessageResponse(Fields, gc=False, rename="camel"):
    """The response to a send: msgId, queueId, queueOffset, transactionId.

    The broker encodes it by the template `command.send_response`: change both.
    """

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None


class PullMessage(Fields, gc=False, rename="camel"):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32 = 32
    sys_flag: I32 = 0
    commit_offset: I64 = 0
    suspend_timeout_millis: I64 = 0
    subscription: str | None = None
    sub_version: I64 = 0
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None


class PullMessageResponse(Fields, gc=False, rename="camel"):
    """The response to a pull; the body has the messages as stored."""

    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64


class QueueOffsetRequest(Fields, gc=False, rename="camel"):
    """GET_MAX_OFFSET (30) and GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: I32


class QueueOffsetResponse(Fields, gc=False, rename="camel"):
    """The response to GET_MAX_OFFSET and GET_MIN_OFFSET."""

    offset: I64


class QueryConsumerOffset(Fields, gc=False, rename="camel"):
    """QUERY_CONSUMER_OFFSET (14); the response is a QueueOffsetResponse."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool = True


class UpdateConsumerOffset(Fields, gc=False, rename="camel"):
    """UPDATE_CONSUMER_OFFSET (15): the group has consumed the queue's messages before it."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


class GroupRequest(Fields, gc=False, rename="camel"):
    """GET_CONSUMER_LIST_BY_GROUP (38) and NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    consumer_group: str


class UnregisterClient(Fields, gc=False, rename={"client_id": "clientID"}):
    """UNREGISTER_CLIENT (35): removes a client from the named groups."""

    client_id: str
    producer_group: str | None = msgspec.field(default=None, name="producerGroup")
    consumer_group: str | None = msgspec.field(default=None, name="consumerGroup")


class CreateTopic(Fields, gc=False, rename="camel"):
    """UPDATE_AND_CREATE_TOPIC (17). `attributes` has the form "+name=value,-name"."""

    topic: str
    default_topic: str = "TBW102"
    read_queue_nums: I32 = 16
    write_queue_nums: I32 = 16
    perm: I32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: str | None = None


class DeleteTopic(Fields, gc=False, rename="camel"):
    """DELETE_TOPIC_IN_BROKER (215)."""

    topic: str


class MemberRequest(Fields, gc=False, rename="camel"):
    """TRANSFER_LEADERSHIP, ADD_MEMBER and REMOVE_MEMBER: names a member.

    `address` is "host:port" of the member's DLedger port; only ADD_MEMBER needs it.
    """

    member: str
    address: str | None = None


class MetadataResponse(Fields, gc=False, rename="camel"):
    """The response to DLEDGER_METADATA: one member's state; lists have ';' between members.

    Entries up to `committed_index` are committed and durable on it; its pulls see those up to
    `applied_index`. `peers` has DLedger's form, "n0-127.0.0.1:40911;...", and contains the members
    whose address is in the log. The log's entries start at `begin_index`; a snapshot replaces
    those up to `snapshot_index` (-1: none). `wall_ms` (since 1970) and `monotonic_ms` are the
    member's clocks at the time of the answer.
    """

    self_id: str
    role: str
    term: I64
    leader_id: str
    committed_index: I64
    ledger_end_index: I64
    applied_index: I64 = -1
    voters: str = ""
    learners: str = ""
    peers: str = ""
    membership_index: I64 = -1
    begin_index: I64 = 0
    snapshot_index: I64 = -1
    wall_ms: I64 | None = None
    monotonic_ms: I64 | None = None


class SendMessage(Fields, gc=False, rename="camel"):
    """SEND_MESSAGE (10): the same fields under long names."""

    producer_group: str
    topic: str
    queue_id: I32
    born_timestamp: I64 = 0
    default_topic: str = "TBW102"
    default_topic_queue_nums: I32 = 16
    sys_flag: I32 = 0
    flag: I32 = 0
    properties: str = ""
    reconsume_times: I32 = 0
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False

    def to_v2(self) -> SendMessageV2:
        """Return the same request as SEND_MESSAGE_V2."""
        return SendMessageV2(*msgspec.structs.astuple(self))


class SendRequest(msgspec.Struct, gc=False):
    """A SEND_MESSAGE_V2 or SEND_MESSAGE; `body` is the message's, valid as long as its frame."""

    opaque: int
    flag: int
    fields: SendMessageV2
    body: memoryview
    serialize_type: int

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no response."""
        return bool(self.flag & ONEWAY_FLAG)


class _SendHeader(msgspec.Struct, gc=False, tag_field="code", tag=int(RequestCode.SEND_MESSAGE_V2)):
    """A JSON header of code 310 with its fields, decoded in one pass (THROUGHPUT.md rule 3)."""

    fields: SendMessageV2 = msgspec.field(name="extFields")
    opaque: I32 = 0
    flag: I32 = 0


_SEND_DECODER = msgspec.json.Decoder(_SendHeader, strict=False)


def decode_request(frame: Frame) -> SendRequest | Command:
    """Decode a frame: SEND_MESSAGE_V2 and SEND_MESSAGE to a SendRequest, all else to a Command.

    A response is a Command, whatever its code. Raises only CommandError.
    """
    if frame.serialize_type == SerializeType.JSON:
        try:
            header = _SEND_DECODER.decode(frame.header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            pass  # another request, or a malformed one: decode it generically
        else:
            if not header.flag & RESPONSE_FLAG:
                return SendRequest(
                    header.opaque, header.flag, header.fields, frame.body, SerializeType.JSON
                )
    command = decode_command(frame)
    if command.is_response:
        return command
    if command.code == RequestCode.SEND_MESSAGE_V2:
        fields = SendMessageV2.from_ext(command.ext)
    elif command.code == RequestCode.SEND_MESSAGE:
        fields = SendMessage.from_ext(command.ext).to_v2()
    else:
        return command
    return SendRequest(command.opaque, command.flag, fields, frame.body, command.serialize_type)


def encode_send(
    fields: SendMessageV2,
    body: bytes,
    opaque: int,
    serialize_type: int = SerializeType.JSON,
) -> bytes:
    """Encode a SEND_MESSAGE_V2 (client side)."""
    return encode_command(
        Command(
            RequestCode.SEND_MESSAGE_V2,
            opaque,
            ext=fields.to_ext(),
            body=body,
            serialize_type=serialize_type,
        )
    )


# Typed requests for single messages and offsets, and their response headers.
#
# Source: QueryMessageRequestHeader, ViewMessageRequestHeader, SearchOffsetRequestHeader,
# GetEarliestMsgStoretimeRequestHeader and their responses, ConsumerSendMsgBackRequestHeader in
# RocketMQ 5.3.3; DLEDGER.md A.2.

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""The ext field that is "true" if a QUERY_MESSAGE's key is a UNIQ_KEY (Java's MixAll)."""


class QueryMessage(Fields, gc=False, rename="camel"):
    """QUERY_MESSAGE (12): messages by key, stored between two times, both inclusive."""

    topic: str
    key: str
    max_num: I32 = 32
    begin_timestamp: I64 = 0
    end_timestamp: I64 = 2**63 - 1


class QueryMessageResponse(Fields, gc=False, rename="camel"):
    """The response to QUERY_MESSAGE; the field names are Java's."""

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


class ViewMessage(Fields, gc=False, rename="camel"):
    """VIEW_MESSAGE_BY_ID (33): the message at a byte position of the log."""

    offset: I64
    topic: str | None = None


class SearchOffset(Fields, gc=False, rename="camel"):
    """SEARCH_OFFSET_BY_TIMESTAMP (29).

    `boundary_type` "LOWER" (the default) requests the first message stored at that time or
    later, "UPPER" the last one stored at that time or earlier.
    """

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None


class EarliestStoreTimeResponse(Fields, gc=False, rename="camel"):
    """The response to GET_EARLIEST_MSG_STORETIME (32): ms since 1970, -1 without a message."""

    timestamp: I64


class SendMessageBack(Fields, gc=False, rename="camel"):
    """CONSUMER_SEND_MSG_BACK (36): the message at a byte position was not consumed.

    `delay_level` 0 leaves the delay of the retry to the broker; below 0, the message goes to the
    dead-letter queue.
    """

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


# Bodies of clients' requests: batches of messages, heartbeats, group members, locks.
#
# SEND_BATCH_MESSAGE (320) has messages of one topic and queue, one after the other. Each is i32
# size, i32 magic 0, i32 body CRC 0, i32 flag, i32 body length, body, i16 properties length,
# properties. Source: RocketMQ's MessageDecoder.encodeMessage; DLEDGER.md A.2.

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
