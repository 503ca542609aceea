"""Planted bugs in the client (`system.client`)."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import trio

from shaketable.system.client import (
    BrokerGroupClient,
    ClientParts,
    GroupConsumer,
    GroupMembership,
    MessageQueue,
    Metadata,
    OutcomeUnknownError,
    Producer,
    PullConsumer,
    RefusedError,
    Sent,
)
from shaketable.system.client.connection import (
    NAME_SERVER_TIMEOUT_S,
    Channels,
    Connection,
    DamagedResponseError,
    NameService,
    PendingCall,
)
from shaketable.system.client.group_consumer import QueueReader
from shaketable.system.client.routes import Route, allocate
from shaketable.system.mutants import GROUP, Hunt, Mutant
from shaketable.system.remoting.command import Command
from shaketable.system.store.message import Message

Result = TypeVar("Result")


def client_parts(membership: type[GroupMembership]) -> ClientParts:
    """Return client parts whose consumers, push consumers included, use this membership."""

    class _GroupConsumer(GroupConsumer):
        membership_type = membership

    return ClientParts(membership=membership, group_consumer=_GroupConsumer)


# Calls: responses, retries and timeouts.


class _MatchesByArrival(Connection):
    """Gives each response to the oldest call in flight."""

    def _call_for(self, response: Command) -> PendingCall | None:
        return next((call for call in self._calls.values() if call.response is None), None)


class _MatchesByArrivalChannels(Channels):
    connection_type = _MatchesByArrival


class _MatchesByArrivalGroupClient(BrokerGroupClient):
    connection_type = _MatchesByArrival


class _MatchesByArrivalProducer(Producer):
    channels_type = _MatchesByArrivalChannels


class _MatchesByArrivalPullConsumer(PullConsumer):
    channels_type = _MatchesByArrivalChannels


class _MatchesByArrivalGroupConsumer(GroupConsumer):
    source_type = _MatchesByArrivalPullConsumer


ANSWERS_BY_ARRIVAL = Mutant(
    "answers-by-arrival",
    client=ClientParts(
        _MatchesByArrivalGroupClient,
        _MatchesByArrivalProducer,
        _MatchesByArrivalPullConsumer,
        group_consumer=_MatchesByArrivalGroupConsumer,
    ),
    about="""
    Answers are given to the calls of a connection in the calls' order, whatever their numbers.

    Where a call timed out, or is answered later than the next one, others get its answer.

    Source: https://github.com/dpkp/kafka-python/pull/403 (responses were not correlated with their
    requests).
    """,
)


class _AnyStoredIsOkProducer(Producer):
    """Reports every stored message as SEND_OK."""

    async def _stored(self, *args: Any) -> Sent:
        return replace(await super()._stored(*args), status="SEND_OK")


ANY_STORED_IS_OK = Mutant(
    "any-stored-is-ok",
    client=ClientParts(producer=_AnyStoredIsOkProducer),
    targets=("sync-double-write",),
    hunt=Hunt("queue", ("wipe", "kill", "partition")),
    about="""
    The producer takes a message that no slave has in time for one that is safe.

    When the master's disk is lost, what was reported as sent is gone.

    Source: https://github.com/apache/rocketmq/issues/4806 (SLAVE_NOT_AVAILABLE and
    FLUSH_SLAVE_TIMEOUT are considered to be written on the slave).
    """,
)


class _TriesRefusalsAgain(BrokerGroupClient):
    """Tries once more what was refused, whatever the reason."""

    async def _at_leader(self, attempt: Callable[[Connection, float], Awaitable[Result]]) -> Result:
        try:
            return await super()._at_leader(attempt)
        except RefusedError:
            await trio.sleep(AGAIN_AFTER_S)
            return await super()._at_leader(attempt)


AGAIN_AFTER_S = 0.05
REFUSALS_TRIED_AGAIN = Mutant(
    "refusals-tried-again",
    client=ClientParts(group_client=_TriesRefusalsAgain),
    targets=GROUP,
    hunt=Hunt("queue-operators", ("transfer",)),
    about="""
    A client asks once more for what was refused for good.

    Nothing comes of it but work for the brokers, and the caller is told later.

    Source: https://github.com/apache/rocketmq/issues/6187 (a send is tried three times though its
    signature is wrong).
    """,
)


class _StaysWithTheSilent(BrokerGroupClient):
    """Turns to another member only if one is named, or the connection is closed."""

    def _retarget(self, member: str, leader: str | None) -> None:
        connection = self._connections.get(member)
        if leader is not None or connection is None or not connection.is_open:
            super()._retarget(member, leader)


STAYS_WITH_THE_SILENT = Mutant(
    "stays-with-the-silent",
    client=ClientParts(group_client=_StaysWithTheSilent),
    targets=GROUP,
    hunt=Hunt("log", ("pause",)),
    about="""
    A client whose call was not answered asks the same member again, as long as it is connected.

    A leader that is paused or cut off is replaced by the others, and such clients never learn it:
    each of their calls waits until its timeout.

    Source: https://github.com/confluentinc/librdkafka/issues/1390 (requests are sent
    again and again to the broker that led before).
    """,
)


STATUS_AGE_S = 2.0
"""How long the client below answers with what a member said of itself."""


class _StatusFromCache(BrokerGroupClient):
    """Asks a member for its state now and then, and answers with what it knows meanwhile."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._known: dict[str, tuple[float, Metadata]] = {}

    async def metadata(self, member: str) -> Metadata:
        """Return what the member said lately, else ask it."""
        asked_s, known = self._known.get(member, (0.0, None))
        if known is not None and trio.current_time() - asked_s < STATUS_AGE_S:
            await trio.lowlevel.checkpoint()
            return known
        answer = await super().metadata(member)
        self._known[member] = trio.current_time(), answer
        return answer


STATUS_FROM_CACHE = Mutant(
    "status-from-cache",
    client=ClientParts(group_client=_StatusFromCache),
    targets=GROUP,
    hunt=Hunt("log", ("kill", "partition")),
    about="""
    What a member said of itself is repeated for two seconds, whatever has become of it.

    An operator who asks for the leader is given one that leads no more.

    Source: https://github.com/apache/kafka/pull/22390 (an admin client knows leaders from a cache
    of which nothing ever expires).
    """,
)


class _NeverRefreshesRoutes(NameService):
    """Never refreshes a route."""

    async def route(self, topic: str, timeout_s: float = NAME_SERVER_TIMEOUT_S) -> Route:
        """Return the first route ever received."""
        known = self._routes.get(topic)
        return known[1] if known is not None else await super().route(topic, timeout_s)


class _RouteKeptForGoodProducer(Producer):
    names_type = _NeverRefreshesRoutes


class _RouteKeptForGoodPullConsumer(PullConsumer):
    names_type = _NeverRefreshesRoutes


ROUTE_KEPT_FOR_GOOD = Mutant(
    "route-kept-for-good",
    client=ClientParts(
        producer=_RouteKeptForGoodProducer, pull_consumer=_RouteKeptForGoodPullConsumer
    ),
    about="""
    A client asks for a topic's route once, and goes on with it whichever member leads since.

    Source: https://github.com/apache/rocketmq/issues/2728 (clients go on with the route of a broker
    that is down) and https://github.com/apache/rocketmq/pull/1686.
    """,
)


SENDS_MAX = 3


class _SendsAgainWhenUnknownGroupClient(BrokerGroupClient):
    """Retries any request of unknown outcome."""

    async def _at_leader(self, attempt: Callable[[Connection, float], Awaitable[Result]]) -> Result:
        for _ in range(SENDS_MAX - 1):
            try:
                return await super()._at_leader(attempt)
            except DamagedResponseError:
                raise
            except OutcomeUnknownError:
                continue
        return await super()._at_leader(attempt)


class _SendsAgainWhenUnknownProducer(Producer):
    """Retries sends of unknown outcome."""

    async def _until_stored(self, *args: Any) -> Sent:
        for _ in range(SENDS_MAX - 1):
            try:
                return await super()._until_stored(*args)
            except DamagedResponseError:
                raise
            except OutcomeUnknownError:
                continue
        return await super()._until_stored(*args)


SENDS_AGAIN_WHEN_UNKNOWN = Mutant(
    "sends-again-when-unknown",
    client=ClientParts(_SendsAgainWhenUnknownGroupClient, _SendsAgainWhenUnknownProducer),
    hunt=Hunt("log", ("pause", "partition")),
    about="""
    A send of unknown outcome is sent once more without the caller's knowledge.

    Where the first one was stored, the message is there twice, or after later ones.

    Source: https://github.com/tulios/kafkajs/issues/257 (100,000 messages sent, 110,000 to 120,000
    stored, after timeouts); RocketMQ's retryTimesWhenSendFailed likewise.
    """,
)


class _TimeoutMeansRefused(Connection):
    """Reports unknown outcomes as refusals."""

    async def call(self, command: Command, timeout_s: float) -> Command:
        """Call, and raise RefusedError where the outcome is unknown."""
        try:
            return await super().call(command, timeout_s)
        except OutcomeUnknownError as error:
            raise RefusedError(-1, str(error)) from None


class _TimeoutIsRefusalChannels(Channels):
    connection_type = _TimeoutMeansRefused


class _TimeoutIsRefusalGroupClient(BrokerGroupClient):
    connection_type = _TimeoutMeansRefused


class _TimeoutIsRefusalProducer(Producer):
    channels_type = _TimeoutIsRefusalChannels


class _TimeoutIsRefusalPullConsumer(PullConsumer):
    channels_type = _TimeoutIsRefusalChannels


TIMEOUT_IS_REFUSAL = Mutant(
    "timeout-is-refusal",
    client=ClientParts(
        _TimeoutIsRefusalGroupClient, _TimeoutIsRefusalProducer, _TimeoutIsRefusalPullConsumer
    ),
    hunt=Hunt("log", ("pause", "partition")),
    about="""
    A request that is not answered in time is reported as refused: certainly without an effect.

    A caller that believes it sends once more, or goes on as if nothing had happened; the message is
    stored.

    Source: https://github.com/apache/rocketmq/issues/1921 (the producer throws MQClientException,
    and the messages are at the brokers).
    """,
)


# Consumers: rebalance, commits, and leaving a group.


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

    When it ends, or loses the queue, the messages that were being handled never come again.

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
    A consumer's task ends with the first broker that it cannot reach, without an error.

    Its program goes on, and no message is handled any more until it is started again.

    Source: https://github.com/Parsely/pykafka/issues/227 (errors of a worker thread that no one
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
    A consumer that leaves in good order commits nothing any more, and only unregisters.

    What it handled since its last commit comes again to the next owner of its queues.

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
    A consumer that leaves its group does not unregister, and believes that it did.

    Where its connection stays open for others its queues belong to it still, and no one consumes
    them.

    Source: https://github.com/apache/rocketmq/issues/7556 (queues of a consumer that unsubscribed
    are given to no consumer).
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
    Consumers divide the queues among them in ranges of one length, and the rest belongs to none.

    Source: https://github.com/apache/rocketmq-client-go/issues/419 (another division than that of
    the other clients: some queues are consumed by none of them).
    """,
)


class _NotesWhatItHasThen(QueueReader):
    """Notes as committed what it has consumed once the commit is answered."""

    async def commit(self) -> None:
        """Commit the offset after the consumed messages."""
        await super().commit()
        if self._committed is not None:
            self._committed = self._offset


class _NotesWhatItHasThenConsumer(GroupConsumer):
    reader_type = _NotesWhatItHasThen


NOTED_WHILE_COMMITTING = Mutant(
    "noted-while-committing",
    client=ClientParts(group_consumer=_NotesWhatItHasThenConsumer),
    hunt=Hunt("queue-push", ("kill", "pause")),
    about="""
    What a consumer handles while a commit is under way counts as committed, too.

    If no message follows, the group stays behind for good, and the next consumer is given again
    what was handled.

    Source: our own, after RocketMQ's RemoteBrokerOffsetStore.persistAll, which reads an offset once
    and sends what it has read.
    """,
)


class _AvoidsForKeys(Producer):
    """Avoids a broker that has refused, also for a message with an order key."""

    def _choose(
        self, route: Route, topic: str, order_key: str | None, avoided: str | None
    ) -> MessageQueue:
        queue = super()._choose(route, topic, order_key, avoided)
        others = [each for each in route.writable if each.broker_name != avoided]
        if order_key is None or queue.broker_name != avoided or not others:
            return queue
        return others[zlib.crc32(order_key.encode()) % len(others)]


ORDER_KEY_MOVES = Mutant(
    "order-key-moves",
    client=ClientParts(producer=_AvoidsForKeys),
    targets=("multi-master",),
    hunt=Hunt("queue-order-keys", ("kill", "pause", "disk-full")),
    about="""
    A message with an order key that a broker refused goes to a queue of another broker.

    The later messages of its key go to their queue as before: they are consumed out of order.

    Source: our own, after RocketMQ's DefaultMQProducerImpl.sendSelectImpl, which never retries with
    another queue.
    """,
)


class _DropsSendBacks(QueueReader):
    """Reports messages as sent back without sending them."""

    async def _send_back(self, messages: Sequence[Message], delay_level: int) -> bool:
        await trio.lowlevel.checkpoint()
        return True


class _SentBackToNobodyGroupConsumer(GroupConsumer):
    reader_type = _DropsSendBacks


SENT_BACK_NOWHERE = Mutant(
    "sent-back-nowhere",
    client=ClientParts(group_consumer=_SentBackToNobodyGroupConsumer),
    hunt=Hunt("queue-push", ("kill", "pause")),
    about="""
    What a handler failed at is sent back to a wrong address, and the answer is ignored.

    The group goes on after the message, which is never delivered again.

    Source: https://github.com/apache/rocketmq-client-go/issues/624 (sending back fails where the
    message's store host is not the broker's address).
    """,
)


class _ReadsWithoutLock(GroupConsumer):
    """Takes each lock for granted once the broker has answered."""

    async def _lock(self, queues: tuple[MessageQueue, ...]) -> frozenset[MessageQueue] | None:
        held = await super()._lock(queues)
        return None if held is None else frozenset(queues)


READS_WITHOUT_LOCK = Mutant(
    "reads-without-lock",
    client=ClientParts(group_consumer=_ReadsWithoutLock),
    hunt=Hunt("queue-push-ordered", ("kill", "pause")),
    about="""
    A consumer of ordered queues asks for their locks, and does not look which of them it got.

    It reads a queue beside the consumer that has the lock: messages are handled out of order.

    Source: our own, after RocketMQ's RebalanceImpl.lock, whose answer lists the locked queues.
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

    The next owner of the queue starts before what was consumed, and consumes it once more.

    Source: https://github.com/apache/rocketmq/issues/4086 (the lock should be released when the
    offset is committed, and not before).
    """,
)


PLUGINS = (
    ANSWERS_BY_ARRIVAL,
    ANY_STORED_IS_OK,
    REFUSALS_TRIED_AGAIN,
    STAYS_WITH_THE_SILENT,
    ROUTE_KEPT_FOR_GOOD,
    SENDS_AGAIN_WHEN_UNKNOWN,
    STATUS_FROM_CACHE,
    TIMEOUT_IS_REFUSAL,
    COMMITTED_BEFORE_HANDLED,
    CONSUMER_ENDS_WITH_BROKER,
    LEFT_WITHOUT_A_COMMIT,
    LEFT_WITHOUT_WORD,
    NOTED_WHILE_COMMITTING,
    ORDER_KEY_MOVES,
    OVERLAPPING_SHARES,
    OWN_DIVISION_OF_QUEUES,
    READS_WITHOUT_LOCK,
    SENT_BACK_NOWHERE,
    UNLOCKS_BEFORE_COMMIT,
)
