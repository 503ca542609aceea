"""Planted bugs in sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.consume_queue import ConsumeQueues, Queue
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.sends import ConditionalSends, Sends
from shaketable.system.mutants import GROUP, Hunt, Mutant
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.requests import BatchMessage, SendMessageV2, SendRequest


class AckTimeoutsNeverFire(Broker):
    """Never expires pending appends."""

    def tick(self, now_ms: float) -> None:
        """Advance only the core's time."""
        self.core.tick(now_ms)


ACK_TIMEOUTS_NEVER_FIRE = Mutant(
    "ack-timeouts-never-fire",
    broker=AckTimeoutsNeverFire,
    targets=GROUP,
    hunt=Hunt("log", ("partition",)),
    about="""
    Appends that no majority acknowledges are never answered.

    Clients wait until their own timeout, and the leader's table of pending appends fills up.
    DLedger's loop over the pending indices is bounded by Integer.MAX_VALUE, which long-lived groups
    pass (production logs show indices of 1.26e11).

    Source: DLedger's DLedgerEntryPusher.checkResponseFuturesTimeout (bug E17),
    https://github.com/openmessaging/dledger (DLedgerEntryPusher.java)
    """,
)


class _StoresFirstHalf(Sends):
    """Stores the first half of a batch, and answers with as many ids as were sent."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._sent = 0

    def _checked_batch(self, request: SendRequest, topic: bytes) -> Sequence[BatchMessage]:
        messages = super()._checked_batch(request, topic)
        self._sent = len(messages)
        return messages[: -(-self._sent // 2)]

    def _response_ids(self, ids: list[bytes]) -> list[bytes]:
        return ids + ids[-1:] * (self._sent - len(ids))


class BatchHalfStored(Broker):
    """A broker with these batches."""

    sends_type = _StoresFirstHalf


BATCH_HALF_STORED = Mutant(
    "batch-half-stored",
    broker=BatchHalfStored,
    hunt=Hunt("queue-batches", ("transfer",)),
    about="""
    A batch of several messages is acknowledged whole, and the latter half of it is in no queue.

    Source: https://github.com/apache/rocketmq/issues/2865 (messages of batches in DLedger mode got
    offsets that others had, and some of them could never be consumed).
    """,
)


class _RepeatsFirstId(Sends):
    """Answers with the first message's id for each message."""

    def _response_ids(self, ids: list[bytes]) -> list[bytes]:
        return ids[:1] * len(ids)


class BatchHasOneId(Broker):
    """A broker with these batches."""

    sends_type = _RepeatsFirstId


BATCH_HAS_ONE_ID = Mutant(
    "batch-has-one-id",
    broker=BatchHasOneId,
    hunt=Hunt("queue-batches", ("transfer",)),
    about="""
    The answer to a batch names the place of its first message for each of them.

    Who looks a message up by its id finds another one, and sends that one back.

    Source: https://github.com/apache/rocketmq/pull/2406 (DLedgerCommitLog: the position was not
    moved on between the messages of a batch).
    """,
)


class _ComparesWithCommitted(ConditionalSends):
    """Compares with the consume queue's max offset."""

    def __init__(self, queues: Callable[[], ConsumeQueues], *more: Any) -> None:
        super().__init__(*more)
        self._queues = queues

    def _next_offset(self, queue: Queue) -> int:
        return self._queues().max_offset(queue)


class ConditionOnCommitted(Broker):
    """A broker with these conditional appends."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        parts = self._sends, self._appender, self._outbox
        self._conditional = _ComparesWithCommitted(lambda: self.queues, *parts)


CONDITION_ON_COMMITTED = Mutant(
    "condition-on-committed",
    broker=ConditionOnCommitted,
    targets=GROUP,
    hunt=Hunt("register", ("kill", "partition")),
    about="""
    A conditional append is compared with the end of what is committed, not with the log's own end.

    Two appends that name the same offset, one right after the other, are both stored: the second
    one's condition was not true any more, and a compare-and-set overwrites what it never saw.

    Source: our own; a condition checked against applied state while writes are pipelined.
    """,
)


class _IgnoresWritePermission(Sends):
    """Checks that the queue exists, not that the topic is writable."""

    def _is_refused(
        self,
        connection: Connection,
        request: SendRequest,
        fields: SendMessageV2,
        topic: bytes,
        wall_ms: int,
    ) -> bool:
        config = self._topics.get(fields.topic)
        if config is not None and 0 <= fields.queue_id < config.write_queue_nums:
            return False
        return super()._is_refused(connection, request, fields, topic, wall_ms)


class ReadOnlyTopicsWritten(Broker):
    """A broker with these sends."""

    sends_type = _IgnoresWritePermission


READ_ONLY_TOPICS_WRITTEN = Mutant(
    "read-only-topics-written",
    broker=ReadOnlyTopicsWritten,
    hunt=Hunt("queue-operators", ("transfer",)),
    about="""
    A broker does not look whether a topic may be written.

    A send to one that an operator has closed for writes is acknowledged, and stored.

    Source: our own, after RocketMQ's AbstractSendMessageProcessor.msgCheck, which refuses it with
    NO_PERMISSION ("the topic sending message is forbidden").
    """,
)


class _AnswersSystemError(Sends):
    """Refuses with SYSTEM_ERROR, whatever the reason."""

    def _is_refused(
        self,
        connection: Connection,
        request: SendRequest,
        fields: SendMessageV2,
        topic: bytes,
        wall_ms: int,
    ) -> bool:
        if 0 <= fields.queue_id < self._topics.write_queues.get(topic, 0):
            return False
        refusal = self._topics.admit(fields, wall_ms)
        if refusal is None:
            return False
        self._outbox.refuse(connection, request, ResponseCode.SYSTEM_ERROR, refusal[1])
        return True


class RefusedAsSystemError(Broker):
    """A broker with these refusals."""

    sends_type = _AnswersSystemError


REFUSED_AS_SYSTEM_ERROR = Mutant(
    "refused-as-system-error",
    broker=RefusedAsSystemError,
    hunt=Hunt("queue-operators", ("transfer",)),
    about="""
    What a broker refuses for good it answers with SYSTEM_ERROR, as it does where it does not know.

    Nothing in the answer is wrong, but the client does not know whether it was done, and
    asks again what will be refused for ever.

    Source: https://github.com/apache/rocketmq/issues/2931 (what TopicValidator refuses is answered
    with SYSTEM_ERROR where MESSAGE_ILLEGAL would say why).
    """,
)


PLUGINS = (
    ACK_TIMEOUTS_NEVER_FIRE,
    BATCH_HALF_STORED,
    BATCH_HAS_ONE_ID,
    CONDITION_ON_COMMITTED,
    READ_ONLY_TOPICS_WRITTEN,
    REFUSED_AS_SYSTEM_ERROR,
)
