"""What clients of the target kafka do: a topic with one partition for each log.

A session is with one broker, which is asked directly, and one that does not lead the partition
refuses. Each append is one Produce request, which is never sent again; with `idempotence` it is the
library's producer that appends, which finds the leader and sends a message again until it is
acknowledged. The library, aiokafka, is installed with the brokers: it is imported when a session is
opened.

Source: Kafka's ReplicaManager, DelayedProduce and Partition; KIP-207 (offsets after an election).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from shaketable.harness.described.client import Node

PARTITION: Final = 0
BATCH_BYTES_MAX: Final = 4096
"""A batch has one message, a number."""
FETCH_BYTES: Final = 1
"""An answer has the whole batch with the offset, however little is asked for (KIP-74)."""
LATEST: Final = -1
"""A timestamp of ListOffsets: the end."""
NO_OFFSET: Final = -1
BY_BROKERS: Final = -1
"""Partitions and replicas of a topic that lists its brokers (CreateTopics)."""
ACKS: Final = {"all": -1, "1": 1}
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
TOPIC_ALREADY_EXISTS: Final = 36
NOT_STORED: Final = {
    2: "CORRUPT_MESSAGE: the batch was checked before it was appended",
    3: "UNKNOWN_TOPIC_OR_PARTITION: the broker does not have the partition",
    6: "NOT_LEADER_OR_FOLLOWER: the broker does not lead the partition",
    10: "MESSAGE_TOO_LARGE: the batch was checked before it was appended",
    17: "INVALID_TOPIC_EXCEPTION: the topic was checked before the batch was appended",
    18: "RECORD_LIST_TOO_LARGE: the batch was checked before it was appended",
    19: "NOT_ENOUGH_REPLICAS: the replicas in sync were counted before the batch was appended",
    21: "INVALID_REQUIRED_ACKS: the request was not looked at",
    29: "TOPIC_AUTHORIZATION_FAILED: the request was not looked at",
    87: "INVALID_RECORD: the batch was checked before it was appended",
}
"""Errors of a Produce request after which its message is not in the log, if the answer has no
offset: a leader that is replaced while it waits for its followers answers with two of these too,
and with the offset that the message got."""


class RefusedError(Exception):
    """Nothing was stored, and nothing will be."""


class FailedError(Exception):
    """The broker answered with an error; what became of a message is not known."""


DEFINITE = (RefusedError,)


@dataclass
class Session:
    """A connection to one broker.

    Attributes:
        connection: to it.
        acks: whom an append waits for, as Produce requests have it.
        replicas: how many brokers have each topic.
        timeout_ms: how long a request may take.
        producer: what appends, if not each append is one request.
        topics: those that are known to be there.
    """

    connection: Any
    acks: int
    replicas: int
    timeout_ms: int
    producer: Any = None
    topics: set[str] = field(default_factory=set)


async def open(node: Node) -> Session:  # noqa: A001 - the name of the operation
    """Connect; a failure is definite."""
    from aiokafka.conn import create_conn  # noqa: PLC0415 - it is in the target's folder

    timeout_ms = int(node.timeout_s * 1000)
    connection = await create_conn(node.host, node.port, request_timeout_ms=timeout_ms)
    acks = ACKS[str(node.options["acks"])]
    session = Session(connection, acks, int(node.options["replicas"]), timeout_ms)
    if node.options["idempotence"] == "on":
        try:
            session.producer = await _idempotent_producer(node, acks, timeout_ms)
        except BaseException:
            connection.close()
            raise
    return session


async def close(session: Session) -> None:
    """Close the connection, and the producer, which may have messages to send."""
    session.connection.close()
    if session.producer is not None:
        await session.producer.stop()


async def append(session: Session, key: str, value: int) -> int:
    """Append a message to the log's partition."""
    if session.producer is not None:
        return await _sent(session, key, value)
    code, offset = await _produced(session, key, value)
    if code == UNKNOWN_TOPIC_OR_PARTITION and offset == NO_OFFSET:
        await _make_topic(session, key)
        code, offset = await _produced(session, key, value)
    if code == NONE:
        return offset
    raise error_of_append(code, offset)


async def read_at(session: Session, key: str, offset: int) -> str | None:
    """Fetch the message at an offset; None if the leader knows of none that is committed there."""
    code, records = await _fetched(session, key, offset)
    if code == UNKNOWN_TOPIC_OR_PARTITION:
        await _make_topic(session, key)
        code, records = await _fetched(session, key, offset)
    if code == OFFSET_OUT_OF_RANGE:
        return None
    _check_read(code)
    return _message(records, offset)


async def end(session: Session, key: str) -> int:
    """Return the offset after the last committed message of the log's partition."""
    code, offset = await _latest(session, key)
    if code == UNKNOWN_TOPIC_OR_PARTITION:
        await _make_topic(session, key)
        code, offset = await _latest(session, key)
    _check_read(code)
    return offset


def error_of_append(code: int, offset: int) -> RefusedError | FailedError:
    """Return the error of an answer: definite only if the message certainly is not in the log."""
    if offset == NO_OFFSET and code in NOT_STORED:
        return RefusedError(NOT_STORED[code])
    return FailedError(f"{_name(code)}, offset {offset}")


async def _idempotent_producer(node: Node, acks: int, timeout_ms: int) -> Any:
    from aiokafka import AIOKafkaProducer  # noqa: PLC0415 - as in open

    if acks != ACKS["all"]:
        raise RefusedError("idempotence=on needs acks=all, as Kafka's producers do")
    producer = AIOKafkaProducer(
        bootstrap_servers=str(node),
        enable_idempotence=True,
        acks="all",
        request_timeout_ms=timeout_ms,
    )
    try:
        await producer.start()
    except BaseException:
        await producer.stop()
        raise
    return producer


async def _sent(session: Session, key: str, value: int) -> int:
    """Let the producer append a message; return its offset. It may be sent several times."""
    if key not in session.topics:
        await _make_topic(session, key)
        session.topics.add(key)
    done = await session.producer.send_and_wait(
        _topic(key), str(value).encode(), partition=PARTITION
    )
    if done.offset == NO_OFFSET:  # it was sent again, and the broker no longer knows its offset
        raise FailedError("the message is stored, at an offset that is not known")
    return int(done.offset)


async def _produced(session: Session, key: str, value: int) -> tuple[int, int]:
    """Send a Produce request; return the error code and the offset."""
    from aiokafka.protocol.produce import ProduceRequest  # noqa: PLC0415 - as in open

    batch = [(PARTITION, _batch(str(value).encode()))]
    asked = ProduceRequest(None, session.acks, session.timeout_ms, [(_topic(key), batch)])
    answer = await session.connection.send(asked)
    [(_, [(_, code, offset, *_)])] = answer.topics
    return code, offset


def _batch(value: bytes) -> bytes:
    from aiokafka.record.default_records import (  # noqa: PLC0415 - as in open
        DefaultRecordBatchBuilder,
    )

    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=BATCH_BYTES_MAX,
    )  # fmt: skip
    builder.append(0, int(time.time() * 1000), None, value, [])
    return bytes(builder.build())


class _OfVersion:
    """A request of a version that the client chose, which is else the newest that both know."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def prepare(self, _versions: object) -> Any:
        """Return it, as connections ask for it."""
        return self._request


async def _fetched(session: Session, key: str, offset: int) -> tuple[int, bytes]:
    """Send a Fetch request that does not wait; return the error code and the batches.

    From version 11 on followers answer consumers too (KIP-392), with what they have.
    """
    from aiokafka.protocol.fetch import (  # noqa: PLC0415 - as in open
        FetchRequest,
        FetchRequest_v10,
    )

    wanted = [(_topic(key), [(PARTITION, offset, FETCH_BYTES)])]
    request = FetchRequest(0, 0, FETCH_BYTES, 0, wanted).build(FetchRequest_v10)
    answer = await session.connection.send(_OfVersion(request))
    [(_, [(_, code, *_, records)])] = answer.topics
    return code, records


def _message(records: bytes, offset: int) -> str | None:
    """Return the message at an offset: batches may begin before it, and the last may be cut off."""
    from aiokafka.record.memory_records import MemoryRecords  # noqa: PLC0415 - as in open

    batches = MemoryRecords(records)
    while batches.has_next():
        for record in batches.next_batch():
            if record.offset == offset:
                return bytes(record.value).decode()
    return None


async def _latest(session: Session, key: str) -> tuple[int, int]:
    """Send a ListOffsets request; return the error code and the end."""
    from aiokafka.protocol.offset import OffsetRequest  # noqa: PLC0415 - as in open

    asked = OffsetRequest(-1, 0, [(_topic(key), [(PARTITION, LATEST)])])
    [(_, [(_, code, _, offset, *_)])] = (await session.connection.send(asked)).topics
    return code, offset


async def _make_topic(session: Session, key: str) -> None:
    """Make a log's topic, unless it is there. All topics have the same brokers, in one order."""
    from aiokafka.protocol.admin import CreateTopicsRequest  # noqa: PLC0415 - as in open

    assignment = [(PARTITION, list(range(session.replicas)))]
    wanted: list[Any] = [(_topic(key), BY_BROKERS, BY_BROKERS, assignment, [])]
    try:
        answer = await session.connection.send(
            CreateTopicsRequest(wanted, session.timeout_ms, validate_only=False)
        )
    except Exception as error:  # the message comes after it
        raise RefusedError(f"the topic was not made: {type(error).__name__}: {error}") from error
    [(_, code, *_)] = answer.topic_errors
    if code not in (NONE, TOPIC_ALREADY_EXISTS):
        raise RefusedError(f"the topic was not made: {_name(code)}")


def _check_read(code: int) -> None:
    if code != NONE:
        raise RefusedError(_name(code))


def _name(code: int) -> str:
    """Return the library's name of an error code."""
    from aiokafka.errors import for_code  # noqa: PLC0415 - as in open

    return f"{for_code(code).__name__} ({code})"


def _topic(key: str) -> str:
    return key.replace("/", "-")
