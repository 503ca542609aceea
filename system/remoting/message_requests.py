"""Typed requests for single messages and places in queues, and their response headers.

Source: QueryMessageRequestHeader, ViewMessageRequestHeader, SearchOffsetRequestHeader,
GetEarliestMsgStoretimeRequestHeader and their responses, ConsumerSendMsgBackRequestHeader in
RocketMQ 5.3.3; DLEDGER.md A.2.
"""

from __future__ import annotations

from shaketable.system.remoting.command import I32, I64
from shaketable.system.remoting.requests import Fields

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""The ext field, "true" then, of a QUERY_MESSAGE whose key is a UNIQ_KEY (Java's MixAll)."""


class QueryMessage(Fields, gc=False, rename="camel"):
    """QUERY_MESSAGE (12): messages by key, stored between two times, both included."""

    topic: str
    key: str
    max_num: I32 = 32
    begin_timestamp: I64 = 0
    end_timestamp: I64 = 2**63 - 1


class QueryMessageResponse(Fields, gc=False, rename="camel"):
    """The answer to QUERY_MESSAGE; Java's names, spelt as there."""

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


class ViewMessage(Fields, gc=False, rename="camel"):
    """VIEW_MESSAGE_BY_ID (33): the message at a byte position of the log."""

    offset: I64
    topic: str | None = None


class SearchOffset(Fields, gc=False, rename="camel"):
    """SEARCH_OFFSET_BY_TIMESTAMP (29).

    `boundary_type` "LOWER" (the default) asks for the first message stored at that time or
    later, "UPPER" for the last one stored then or earlier.
    """

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None


class EarliestStoreTimeResponse(Fields, gc=False, rename="camel"):
    """The answer to GET_EARLIEST_MSG_STORETIME (32): ms since the epoch, -1 without a message."""

    timestamp: I64


class SendMessageBack(Fields, gc=False, rename="camel"):
    """CONSUMER_SEND_MSG_BACK (36): the message at a byte position was not consumed.

    `delay_level` 0 leaves it to the broker when it comes again; below 0 it never does.
    """

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
