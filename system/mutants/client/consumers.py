"""Planted bugs in consumers: rebalance, commits, and leaving a group."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from shaketable.system.client import ClientParts, GroupConsumer, GroupMembership, MessageQueue
from shaketable.system.client.queue_reader import QueueReader
from shaketable.system.client.routes import allocate
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.mutants.client import client_parts
from shaketable.system.remoting.command import Command
from shaketable.system.store.message import Message


class _CommitsBeforeHandling(QueueReader):
    """Advances its offset before the handler runs."""

    async def _consume(self, messages: list[Message]) -> bool:
        self._offset = messages[-1].queue_offset + 1
        return await super()._consume(messages)


class _CommitsBeforeHandlingConsumer(GroupConsumer):
    reader_type = _CommitsBeforeHandling


COMMITTED_BEFORE_HANDLED = Mutant(
    "committed-before-handled",
    client=ClientParts(group_consumer=_CommitsBeforeHandlingConsumer),
    hunt=Hunt("queue-push", ("kill", "pause")),
    about="""
    A consumer commits what it was given, before its handler has returned.

    When it ends, or loses the queue, the messages that were being handled come to nobody again.

    Source: https://github.com/apache/rocketmq/issues/2732 (LitePullConsumer: the offset of messages
    that were dropped with their queue is committed).
    """,
)


class _PropagatesErrors(GroupMembership):
    """Raises if a broker is unreachable."""

    async def _try(self, address: str, command: Command) -> Command | None:
        return await self._source.ask_broker(address, command, self._timeout_s)


CONSUMER_ENDS_WITH_BROKER = Mutant(
    "consumer-ends-with-broker",
    client=client_parts(_PropagatesErrors),
    hunt=Hunt("queue-push", ("kill", "pause")),
    about="""
    A consumer's task ends with the first broker that it cannot reach, and nobody is told.

    Its program goes on, and no message is handled any more until it is started again.

    Source: https://github.com/Parsely/pykafka/issues/227 (errors of a worker thread that nobody
    caught ended it, and the consumer with it).
    """,
)


class _LeftWithoutACommitGroupConsumer(GroupConsumer):
    """Does not commit when it leaves."""

    _is_over = False

    async def _consume(self, nursery: trio.Nursery) -> None:
        try:
            await super()._consume(nursery)
        finally:
            self._is_over = True

    async def _commit_all(self) -> None:
        if self._is_over:
            await trio.lowlevel.checkpoint()
        else:
            await super()._commit_all()


LEFT_WITHOUT_A_COMMIT = Mutant(
    "left-without-a-commit",
    client=ClientParts(group_consumer=_LeftWithoutACommitGroupConsumer),
    hunt=Hunt("queue-push"),
    about="""
    A consumer that leaves in good order commits nothing any more, and only says that it leaves.

    What it handled since its last commit comes again to whoever gets its queues.

    Source: https://github.com/apache/rocketmq/pull/64 (ROCKETMQ-102: at a shutdown the offset that
    is persisted is not that of the latest consumed message).
    """,
)


class _LeavesSilently(GroupMembership):
    """Leaves without unregistering."""

    async def leave(self) -> tuple[str, ...]:
        return await self._brokers()


LEFT_WITHOUT_WORD = Mutant(
    "left-without-word",
    client=client_parts(_LeavesSilently),
    hunt=Hunt("queue-operators", ("transfer",)),
    about="""
    A consumer that leaves its group tells no broker, and counts as told.

    Where its connection stays open for others its queues belong to it still, and nobody consumes
    them.

    Source: https://github.com/apache/rocketmq/issues/7556 (queues of a consumer that unsubscribed
    are given to nobody).
    """,
)


class _OverlappingAllocation(GroupMembership):
    """Also takes the first queue of the next share."""

    def _allocate(
        self, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> tuple[MessageQueue, ...]:
        in_order, own_share = sorted(queues), allocate(queues, ids, self.client_id)
        if not own_share:
            return own_share
        end = in_order.index(own_share[-1]) + 1
        return (*own_share, *in_order[end : end + 1])


OVERLAPPING_SHARES = Mutant(
    "overlapping-shares",
    client=client_parts(_OverlappingAllocation),
    hunt=Hunt("queue-push"),
    about="""
    Consumers divide the queues among them, and round up where a share ends: some belong to two.

    Source: https://github.com/apache/rocketmq-client-go/issues/419 (another division than that of
    the other clients: messages of some queues are consumed by two of them).
    """,
)


class _DropsRemainder(GroupMembership):
    """Gives all members equal shares and leaves the remaining queues unassigned."""

    def _allocate(
        self, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> tuple[MessageQueue, ...]:
        left_over = len(queues) % max(1, len(set(ids)))
        return allocate(sorted(queues)[: len(queues) - left_over], ids, self.client_id)


OWN_DIVISION_OF_QUEUES = Mutant(
    "own-division-of-queues",
    client=client_parts(_DropsRemainder),
    hunt=Hunt("queue-push", ("kill", "pause")),
    about="""
    Consumers divide the queues among them in ranges of one length, and the rest belongs to nobody.

    Source: https://github.com/apache/rocketmq-client-go/issues/419 (another division than that of
    the other clients: some queues are consumed by none of them).
    """,
)


class _DropsSendBacks(QueueReader):
    """Reports messages as sent back without sending them."""

    async def _send_back(self, messages: Sequence[Message], delay_level: int) -> bool:
        await trio.lowlevel.checkpoint()
        return True


class _SentBackToNobodyGroupConsumer(GroupConsumer):
    reader_type = _DropsSendBacks


SENT_BACK_TO_NOBODY = Mutant(
    "sent-back-to-nobody",
    client=ClientParts(group_consumer=_SentBackToNobodyGroupConsumer),
    hunt=Hunt("queue-push", ("kill", "pause")),
    about="""
    What a handler failed at is sent back to a wrong address, and nobody looks at the answer.

    The group goes on behind the message, which comes again to nobody.

    Source: https://github.com/apache/rocketmq-client-go/issues/624 (sending back fails where the
    message's store host is not the broker's address).
    """,
)


class _UnlocksBeforeCommit(GroupConsumer):
    """Releases the lock before it commits."""

    async def _release(self, queue: MessageQueue) -> None:
        await self._unlock((queue,))
        await super()._release(queue)


UNLOCKS_BEFORE_COMMIT = Mutant(
    "unlocks-before-commit",
    client=ClientParts(group_consumer=_UnlocksBeforeCommit),
    hunt=Hunt("queue-push-ordered", ("kill", "pause")),
    about="""
    A consumer that lets go of an ordered queue gives the lock back first, and commits then.

    Whoever gets the queue begins in front of what was consumed, and consumes it once more.

    Source: https://github.com/apache/rocketmq/issues/4086 (the lock should be released when the
    offset is committed, and not before).
    """,
)


PLUGINS = (
    COMMITTED_BEFORE_HANDLED,
    CONSUMER_ENDS_WITH_BROKER,
    LEFT_WITHOUT_A_COMMIT,
    LEFT_WITHOUT_WORD,
    OVERLAPPING_SHARES,
    OWN_DIVISION_OF_QUEUES,
    SENT_BACK_TO_NOBODY,
    UNLOCKS_BEFORE_COMMIT,
)
