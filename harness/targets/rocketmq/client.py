"""What clients of the targets rocketmq do: a topic with one queue for each log.

A session is with one broker, which is asked directly, whatever name servers say: one that does not
lead refuses. In DLedger mode, without name servers, slaves do not copy the leader's topics either
(RocketMQ: SlaveSynchronize), so that a new leader may not know a topic whose messages it has: then
a send makes it (autoCreateTopicEnable), and a read has it made.

Source: RocketMQ 5.3.3's SendMessageProcessor, PullMessageProcessor, DLedgerCommitLog, and
CommitLog.asyncPutMessage for Controller mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import trio

from shaketable.harness.described.client import Node
from shaketable.system.client.connection import Connection, OutcomeUnknownError, RefusedError
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import (
    CreateTopic,
    Fields,
    PullMessage,
    PullMessageResponse,
    SendMessageResponse,
    SendMessageV2,
)
from shaketable.system.store.message import walk_messages

GROUP: Final = "shaketable"
"""The group of the producers, and of the consumers."""
QUEUE: Final = 0
SUBSCRIPTION_FLAG: Final = 4
"""A pull says what it subscribes to (RocketMQ: PullSysFlag)."""
CONNECT_TIMEOUT_S: Final = 1.0
NOT_STORED: Final = {
    ResponseCode.SYSTEM_BUSY: "a slave, or too busy: the request was not looked at",
    ResponseCode.MESSAGE_ILLEGAL: "the message was checked before it was stored",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the store was asked first whether it takes messages",
    ResponseCode.NO_PERMISSION: "the topic was checked before the message was stored",
    ResponseCode.TOPIC_NOT_EXIST: "the topic was checked before the message was stored",
    ResponseCode.FLOW_CONTROL: "the request was not looked at",
    ResponseCode.GO_AWAY: "the broker is shutting down: the request was not looked at",
}
"""Response codes after which a message certainly is not stored, and why."""
MAYBE_STORED: Final = "[PC_SYNCHRONIZED]"
"""A remark of SYSTEM_BUSY that comes after DLedger was asked to append (DLedgerCommitLog)."""
NOT_IN_SYNC: Final = "in-sync replicas not enough"
"""A remark that in Controller mode comes before a message is stored, in DLedger mode after it."""
MIN_IN_SYNC: Final = "min_in_sync"
"""An option that the target in Controller mode has."""
NOTHING_THERE: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
"""Response codes of a pull from an offset that the queue does not have."""
DEFINITE = (RefusedError,)


@dataclass
class Session:
    """A connection to one broker.

    Attributes:
        connection: to it.
        timeout_s: how long a request may take.
        is_asked_first: whether a broker makes sure that enough replicas are in sync before it
            stores a message, as in Controller mode.
    """

    connection: Connection
    timeout_s: float
    is_asked_first: bool = False


async def open(node: Node) -> Session:  # noqa: A001 - the name of the operation
    """Connect; a failure is definite."""
    timeout_s = min(node.timeout_s, CONNECT_TIMEOUT_S)
    connection = await Connection.open(node.host, node.port, timeout_s)
    return Session(connection, node.timeout_s, MIN_IN_SYNC in node.options)


async def close(session: Session) -> None:
    """Close the connection."""
    await trio.lowlevel.checkpoint()
    session.connection.close()


async def append(session: Session, key: str, value: int) -> int:
    """Send a message to the log's queue; its offset there is the log's."""
    fields = SendMessageV2(GROUP, _topic(key), QUEUE, default_topic_queue_nums=1)
    answer = await _asked(session, RequestCode.SEND_MESSAGE_V2, fields, str(value).encode())
    if answer.code != ResponseCode.SUCCESS:
        if session.is_asked_first and answer.remark == NOT_IN_SYNC:
            raise RefusedError(answer.code, NOT_IN_SYNC)
        raise _error_of(answer)
    return SendMessageResponse.from_ext(answer.ext).queue_offset


async def read_at(session: Session, key: str, offset: int) -> str | None:
    """Pull the message at an offset of the leader's queue; None if there is none.

    The place counts from which it was pulled, not the offset that the message itself has: a broker
    that gave an offset twice stores the message at another place (ConsumeQueue).
    """
    answer = await _pulled(session, key, offset)
    if answer.code in NOTHING_THERE:
        return None
    if PullMessageResponse.from_ext(answer.ext).next_begin_offset != offset + 1:
        return None  # the first message there is comes later
    return bytes(next(walk_messages(answer.body)).body).decode()


async def end(session: Session, key: str) -> int:
    """Return the max offset of the log's queue.

    It is that of a pull, which slaves refuse; they answer GET_MAX_OFFSET.
    """
    answer = await _pulled(session, key, 0)
    return PullMessageResponse.from_ext(answer.ext).max_offset


async def _pulled(session: Session, key: str, offset: int) -> Command:
    """Return the leader's answer to a pull of one message: there is one, or there is none."""
    fields = PullMessage(
        GROUP, _topic(key), QUEUE, offset, 1, SUBSCRIPTION_FLAG, subscription="*",
        expression_type="TAG",
    )  # fmt: skip
    answer = await _asked(session, RequestCode.PULL_MESSAGE, fields)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        made = CreateTopic(_topic(key), read_queue_nums=1, write_queue_nums=1)
        await _asked(session, RequestCode.UPDATE_AND_CREATE_TOPIC, made)
        answer = await _asked(session, RequestCode.PULL_MESSAGE, fields)
    if answer.code != ResponseCode.SUCCESS and answer.code not in NOTHING_THERE:
        raise _error_of(answer)
    return answer


def _topic(key: str) -> str:
    return key.replace("/", "-")


async def _asked(session: Session, code: RequestCode, fields: Fields, body: bytes = b"") -> Command:
    command = Command(code, ext=fields.to_ext(), body=body)
    return await session.connection.call(command, session.timeout_s)


def _error_of(answer: Command) -> RefusedError | OutcomeUnknownError:
    """Return the error of an answer: definite only if the message certainly is not stored."""
    remark = answer.remark or ""
    if answer.code in NOT_STORED and not remark.startswith(MAYBE_STORED):
        return RefusedError(answer.code, remark)
    return OutcomeUnknownError(f"code {answer.code}: {remark}")
