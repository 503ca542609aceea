"""Typed requests and response headers: what stands in a command's ext fields.

Source: SendMessageRequestHeaderV2, PullMessageRequestHeader and their responses in RocketMQ
5.3.3; DLEDGER.md A.2.
"""

from __future__ import annotations

from typing import Annotated, Self

import msgspec

from system.remoting.command import Command
from system.remoting.frame import Frame

I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Fields(msgspec.Struct, gc=False, omit_defaults=True):
    """What all typed headers share: reading from and writing to ext fields."""

    @classmethod
    def from_ext(cls, ext: dict[str, str]) -> Self:
        """Read the fields; raises CommandError naming the first bad one."""
        raise NotImplementedError

    def to_ext(self) -> dict[str, str]:
        """Write the fields as strings, Java's way; None is left out."""
        raise NotImplementedError


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
    """SEND_MESSAGE_V2 (310): one message for one queue; the message's body is the command's."""

    producer_group: str
    topic: str
    queue_id: I32
    born_ms: I64 = 0
    default_topic: str = "TBW102"
    default_topic_queue_nums: I32 = 4
    sys_flag: I32 = 0
    flag: I32 = 0
    properties: str = ""
    reconsume_times: I32 = 0
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False
    broker_name: str | None = None


class SendMessageResponse(Fields, gc=False, rename="camel"):
    """The answer to a send: msgId, queueId, queueOffset, transactionId."""

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
    """The answer to a pull; the messages stand in the body as they are stored."""

    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64


class QueueOffsetRequest(Fields, gc=False, rename="camel"):
    """GET_MAX_OFFSET (30) and GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: I32


class QueueOffsetResponse(Fields, gc=False, rename="camel"):
    """The answer to GET_MAX_OFFSET and GET_MIN_OFFSET."""

    offset: I64


class SendRequest(msgspec.Struct, gc=False):
    """A SEND_MESSAGE_V2 decoded in one go (THROUGHPUT.md rule 3)."""

    opaque: int
    flag: int
    fields: SendMessageV2
    body: memoryview
    serialize_type: int

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & 2)


def decode_request(frame: Frame) -> SendRequest | Command:
    """Decode a frame: SEND_MESSAGE_V2 and SEND_MESSAGE become a SendRequest, else a Command.

    Raises CommandError, and nothing else.
    """
    raise NotImplementedError


def encode_send(fields: SendMessageV2, body: bytes, opaque: int) -> bytes:
    """Return the frame of a SEND_MESSAGE_V2 (client side)."""
    raise NotImplementedError
