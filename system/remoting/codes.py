"""Request and response codes, and the only table from response codes to outcomes.

Source: RocketMQ's RequestCode, ResponseCode; DLedger's DLedgerRequestCode; DLEDGER.md A.2, C.1.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

Outcome = Literal["ok", "fail", "info"]


class RequestCode(IntEnum):
    """Request codes. Requests 50001 to 51006 go between the nodes of a DLedger group."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_KVLIST_BY_NAMESPACE = 219
    GET_TOPICS_BY_CLUSTER = 224
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    QUERY_DATA_VERSION = 322
    ADD_WRITE_PERM_OF_BROKER = 327
    LITE_PULL_MESSAGE = 361
    BROKER_HEARTBEAT = 904
    DLEDGER_METADATA = 50000
    DLEDGER_APPEND = 50001
    DLEDGER_GET = 50002
    DLEDGER_VOTE = 51001
    DLEDGER_HEART_BEAT = 51002
    DLEDGER_PULL = 51003
    DLEDGER_PUSH = 51004
    DLEDGER_LEADERSHIP_TRANSFER = 51005
    DLEDGER_INSTALL_SNAPSHOT = 51006
    # Our own codes, on the client port: neither RocketMQ nor DLedger has them (DLedger's
    # USER_DEFINE is 59999). A broker that does not know them refuses with code 3.
    TRANSFER_LEADERSHIP = 58001
    """ext `member`: transfer the leadership to that voter; answered once it leads."""
    ADD_MEMBER = 58002
    """ext `member`, `address` ("host:port" of its DLedger port): add a learner, later a voter."""
    REMOVE_MEMBER = 58003
    """ext `member`: remove a voter or learner; answered once the change is committed."""
    PULL_COMMITTED = 58004
    """PULL_MESSAGE's fields: served by any member from what it knows to be committed."""
    APPEND_AT = 58005
    """SEND_MESSAGE_V2's fields and `expectedOffset`: a send that gets this offset, or is refused
    with QUEUE_END_MOVED and not appended."""


class ResponseCode(IntEnum):
    """Response codes."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    CONSUMER_NOT_ONLINE = 206
    FLOW_CONTROL = 215
    GO_AWAY = 1500
    # Our own: refuses an APPEND_AT whose message would get another offset, ext `queueOffset`.
    QUEUE_END_MOVED = 58101


_OUTCOMES: dict[int, Outcome] = {
    # Done, with everything that the mode promises.
    ResponseCode.SUCCESS: "ok",
    # A completed read that found nothing at, or after, the requested offset.
    ResponseCode.PULL_NOT_FOUND: "ok",
    ResponseCode.PULL_OFFSET_MOVED: "ok",
    ResponseCode.QUERY_NOT_FOUND: "ok",
    # A slave that does not serve reads (4.9.8), or a filter that matched nothing: nothing was
    # read, and a pull changes nothing.
    ResponseCode.PULL_RETRY_IMMEDIATELY: "fail",
    # Refused before the append: too busy (a full queue, too many pending, the disk is full).
    # RocketMQ answers DLedger's immediate refusals (415, 503) with 2, and so do we. A request
    # that reached the log is never answered with it.
    ResponseCode.SYSTEM_BUSY: "fail",
    ResponseCode.FLOW_CONTROL: "fail",
    # Refused before the append: not the leader (404), not ready (505), a leadership transfer
    # under way (506), shutting down.
    ResponseCode.SERVICE_NOT_AVAILABLE: "fail",
    ResponseCode.GO_AWAY: "fail",
    # Refused before the append: the request itself is illegal, or not permitted.
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "fail",
    ResponseCode.MESSAGE_ILLEGAL: "fail",
    ResponseCode.VERSION_NOT_SUPPORTED: "fail",
    ResponseCode.NO_PERMISSION: "fail",
    ResponseCode.TOPIC_NOT_EXIST: "fail",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "fail",
    # Refused before the append: the queue's max offset is not the expected one.
    ResponseCode.QUEUE_END_MOVED: "fail",
    # SYSTEM_ERROR is missing on purpose: no quorum in time (DLedger's 502), a change of term while
    # waiting (501) and a transfer that did not complete (418) arrive as 1, and may still take
    # effect.
}

_STORED_BUT_LATE = frozenset(
    # Stored on the master, but its flush or its slave is late.
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)


def outcome_of(response_code: int, promises_durable: bool = True) -> Outcome:
    """Return the outcome of a response code, as recorded in a history (DESIGN.md decision 7).

    `promises_durable`: the mode promises more than "stored on the master". A late flush or slave
    (10-12) is then `info`, since the promise is not kept yet, else `ok`. A code that is not in the
    table is `info`: the request may have taken effect.
    """
    if response_code in _STORED_BUT_LATE:
        return "info" if promises_durable else "ok"
    return _OUTCOMES.get(response_code, "info")
