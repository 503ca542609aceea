"""A push consumer: consumes topics with the other members of its group, by rebalancing queues.

A queue's messages go to the handler in order, one pull at a time. Messages that were handled but
not committed are delivered again to the queue's next consumer: at-least-once delivery.
Source: RocketMQ's DefaultMQPushConsumerImpl, RebalanceImpl, ProcessQueue, ConsumeMessageOrderly-
Service; DLEDGER.md D.4.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import trio

from shaketable.system.client.connection import (
    DamagedResponseError,
    OutcomeUnknownError,
    RefusedError,
)
from shaketable.system.client.pull_consumer import PullConsumer
from shaketable.system.client.routes import MessageQueue, allocate
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.requests import (
    GroupRequest,
    UnregisterClient,
    decode_client_ids,
    decode_locked,
    encode_heartbeat,
    encode_locks,
)
from shaketable.system.store.message import TAGS, Message, find_property

# Consumes one queue for a consumer group: pulls, calls the handler, commits.
#
# Source: RocketMQ's PullMessageService, ProcessQueue, ConsumeMessageConcurrentlyService and
# ConsumeMessageOrderlyService; DLEDGER.md D.4.

RETRY_AFTER_S: Final = 0.2
SUSPEND_S: Final = 1.0
"""How long an ordered queue pauses after a message that was not consumed."""
LOCK_POLL_S: Final = 0.1
LOCK_GRACE_S: Final = 20.0
"""How long a handler may keep running after its lock ends. It gets no new messages then, and the
broker keeps a lock twice as long as clients trust it, so no other consumer gets the queue yet."""


class ConsumeError(Exception):
    """A handler failed: the first `consumed` messages count as consumed, the others are retried.

    `delay_level` is the delay before a retry through the retry topic (RocketMQ's
    delayLevelWhenNextConsume): 0 leaves it to the broker, -1 sends the messages to the dead-letter
    queue at once.
    """

    def __init__(self, consumed: int = 0, delay_level: int = 0) -> None:
        super().__init__(f"{consumed} messages were consumed, the next was not")
        self.consumed = consumed
        self.delay_level = delay_level


Handler = Callable[[MessageQueue, Sequence[Message]], Awaitable[None]]


class QueueReader:
    """Consumes one queue that is assigned to this consumer.

    Attributes:
        ended: set when `run` has ended.
    """

    def __init__(
        self,
        source: PullConsumer,
        queue: MessageQueue,
        subscription: str,
        handler: Handler,
        *,
        is_ordered: bool,
        wait_s: float,
        reconsume_times_max: int = -1,
    ) -> None:
        self._source = source
        self._queue = queue
        self._subscription = subscription
        tags = [] if subscription == "*" else subscription.split("||")
        self._tags = frozenset(tag.strip().encode() for tag in tags)
        self._handler = handler
        self._is_ordered = is_ordered
        self._wait_s = wait_s
        self._reconsume_times_max = reconsume_times_max
        self._offset: int | None = None  # messages before it are consumed
        self._committed: int | None = None
        self._scope = trio.CancelScope()
        self._handling = trio.CancelScope()
        self._locked_until_s = math.inf
        self._is_lost = False  # whether the lock was lost since the last step started
        self.ended = trio.Event()

    def extend_lock(self, until_s: float) -> None:
        """Set until when, by trio's clock, the queue may be consumed."""
        self._locked_until_s = until_s
        self._handling.deadline = until_s + LOCK_GRACE_S

    def lock_lost(self) -> None:
        """Stop at once: another consumer holds the queue's lock.

        If the queue comes back, consumption continues at the group's committed offset.
        """
        self._is_lost = True
        self.extend_lock(-math.inf)

    async def run(self) -> None:
        """Consume until `stop` is called, or until cancelled."""
        try:
            with self._scope:
                while True:
                    await self._step()
        finally:
            self.ended.set()

    def stop(self) -> None:
        """Stop consuming. A running handler is cancelled; its messages are delivered again."""
        self._scope.cancel()

    async def commit(self) -> None:
        """Commit the offset after the consumed messages; if that fails, it is retried later."""
        offset = self._offset
        if offset is None or offset == self._committed or self._is_lost:
            return
        try:
            await self._source.commit(self._queue, offset)
        except (RefusedError, OutcomeUnknownError):
            return
        self._committed = offset

    async def _step(self) -> None:
        """Pull once, and pass the messages to the handler."""
        if self._is_lost:
            self._is_lost, self._offset = False, None
        if not self._is_locked():
            await trio.sleep(LOCK_POLL_S)
            return
        try:
            if self._offset is None:
                self._offset = self._committed = await self._start_offset()
            pulled = await self._source.pull(
                self._queue, self._offset, subscription=self._subscription, wait_s=self._wait_s
            )
        except (RefusedError, OutcomeUnknownError):
            await trio.sleep(RETRY_AFTER_S)
            return
        if self._is_lost or not self._is_locked():
            return  # the lock ended during the pull
        wanted = [message for message in pulled.messages if self._is_wanted(message)]
        if not wanted or await self._consume(wanted):
            self._offset = pulled.next_offset

    def _is_locked(self) -> bool:
        return trio.current_time() < self._locked_until_s

    async def _start_offset(self) -> int:
        """Return the group's committed offset, else the queue's min offset."""
        committed = await self._source.committed(self._queue)
        return committed if committed is not None else await self._source.min_offset(self._queue)

    def _is_wanted(self, message: Message) -> bool:
        """Return whether a message's tag is subscribed to; the broker compares hashes only."""
        return not self._tags or find_property(message.properties, TAGS) in self._tags

    async def _consume(self, messages: list[Message]) -> bool:
        """Call the handler; return True if this queue need not deliver the messages again."""
        deadline_s = self._locked_until_s + LOCK_GRACE_S
        try:
            with trio.CancelScope(deadline=deadline_s) as self._handling:
                await self._handler(self._queue, messages)
            if self._handling.cancelled_caught:
                return False
        except ConsumeError as error:
            left = messages[error.consumed :]
            if not self._is_ordered and await self._send_back(left, error.delay_level):
                return True
            if left:
                self._offset = left[0].queue_offset
                await trio.sleep(SUSPEND_S)
                return False
        return True

    async def _send_back(self, messages: Sequence[Message], delay_level: int) -> bool:
        """Send messages back for a retry; return False if the broker did not take them all."""
        for message in messages:
            try:
                await self._source.send_back(
                    self._queue,
                    message.physical_offset,
                    delay_level=delay_level,
                    reconsume_times_max=self._reconsume_times_max,
                )
            except (RefusedError, OutcomeUnknownError):
                return False
        return True


# A consumer's membership in its group: heartbeats to all brokers, and its assigned queues.
#
# It starts nothing by itself: its owner schedules the calls.
# Source: RocketMQ's MQClientInstance (sendHeartbeatToAllBroker, unregisterClient) and
# RebalanceImpl; DLEDGER.md D.4.


# The consumer of a group.


class GroupMembership:
    """One consumer of a group, as the brokers know it.

    Args:
        source: sends the requests; its group is the consumer group.
        client_id: identifies this consumer.
        subscriptions: by topic "*" or tags as "a || b".
        timeout_s: how long one call may take.
    """

    def __init__(
        self,
        source: PullConsumer,
        client_id: str,
        subscriptions: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        self.client_id = client_id
        self.subscriptions = dict(subscriptions)
        self._source = source
        self._timeout_s = timeout_s

    async def heartbeat(self) -> int:
        """Send a heartbeat to all brokers; return how many accepted it.

        An unreachable broker gets the next one.
        """
        body = encode_heartbeat(self.client_id, self._source.group, self.subscriptions)
        accepted = 0
        for address in await self._brokers():
            answer = await self._try(address, Command(RequestCode.HEART_BEAT, body=body))
            accepted += answer is not None and answer.code == ResponseCode.SUCCESS
        return accepted

    async def leave(self) -> tuple[str, ...]:
        """Unregister at all brokers; return the addresses of those that accepted it.

        The others notice when the connection closes or the heartbeats stop.
        """
        fields = UnregisterClient(self.client_id, consumer_group=self._source.group)
        accepted: list[str] = []
        for address in await self._brokers():
            command = Command(RequestCode.UNREGISTER_CLIENT, ext=fields.to_ext())
            answer = await self._try(address, command)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                accepted.append(address)
        return tuple(accepted)

    async def members(self, address: str) -> tuple[str, ...]:
        """Return the ids of the group's clients that a broker knows of.

        Raises RefusedError, OutcomeUnknownError and its subclass DamagedResponseError.
        """
        fields = GroupRequest(self._source.group)
        request = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext=fields.to_ext())
        answer = await self._source.ask_broker(address, request, self._timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise RefusedError(answer.code, answer.remark or "")
        try:
            return tuple(decode_client_ids(answer.body))
        except CommandError as error:
            raise DamagedResponseError(f"{address} sent a bad list: {error}") from None

    async def assignment(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return this consumer's queues of a topic, None if that is unknown now."""
        try:
            queues = await self._source.queues(topic)
            addresses = await self._source.brokers(topic)
        except RefusedError:
            return None
        request = Command(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext=GroupRequest(self._source.group).to_ext()
        )
        for address in addresses:
            answer = await self._try(address, request)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                try:
                    ids = decode_client_ids(answer.body)
                except CommandError:
                    continue
                return self._allocate(queues, ids)
        return None

    def _allocate(
        self, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> tuple[MessageQueue, ...]:
        """Return this consumer's share of a topic's queues, in a group of these clients."""
        return allocate(queues, ids, self.client_id)

    async def _brokers(self) -> tuple[str, ...]:
        found: set[str] = set()
        for topic in self.subscriptions:
            try:
                found.update(await self._source.brokers(topic))
            except RefusedError:
                continue  # no broker has the topic yet, or no name server answers: try later
        return tuple(sorted(found))

    async def _try(self, address: str, command: Command) -> Command | None:
        try:
            return await self._source.ask_broker(address, command, self._timeout_s)
        except (RefusedError, OutcomeUnknownError):
            return None


RELEASE_SECONDS_MAX: Final = 2.0
"""How long a revoked queue, or the end of the consumer, waits for the last commit."""
LOCK_VALID_S: Final = 30.0
"""How long a granted lock is trusted; the broker keeps it for 60 s."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of the background tasks, in seconds: RocketMQ's defaults.

    `wait_s` is how long a broker may hold a pull, `call_s` how long any other call may take, and
    `routes_s` how often routes are refreshed.
    """

    heartbeat_s: float = 30.0
    rebalance_s: float = 20.0
    commit_s: float = 5.0
    lock_s: float = 20.0
    wait_s: float = 15.0
    call_s: float = 3.0
    routes_s: float = 30.0


Assigned = Callable[[tuple[MessageQueue, ...]], None]


class GroupConsumer:
    """One consumer of a group. `run` consumes until cancelled, or until `close` is called.

    Args:
        name_servers: "host:port;host:port", or a list of such addresses.
        group: the consumer group.
        client_id: identifies this consumer; "ip@name" in RocketMQ.
        subscriptions: by topic "*" or tags as "a || b".
        handler: takes a queue's messages in order; they count as consumed when it returns. On a
            ConsumeError, messages are retried: later through the retry topic, or in place if
            `is_ordered`.
        reconsume_times_max: how often a message is retried before it goes to the dead-letter
            queue; -1 leaves it to the broker (16 times).
        is_ordered: consume a queue under its lock, so that no two consumers overlap while its
            broker's leader stays the same. As in RocketMQ, a new leader has no locks: a consumer
            that thereby loses a queue to another stops at the next renewal, after at most
            `lock_s`.
        on_assigned: called with this consumer's queues whenever they change.
    """

    membership_type: ClassVar[type[GroupMembership]] = GroupMembership
    reader_type: ClassVar[type[QueueReader]] = QueueReader
    source_type: ClassVar[type[PullConsumer]] = PullConsumer

    def __init__(  # noqa: PLR0913 - a push consumer's parameters, all passed by name
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        client_id: str,
        subscriptions: Mapping[str, str],
        handler: Handler,
        is_ordered: bool = False,
        reconsume_times_max: int = -1,
        on_assigned: Assigned | None = None,
        intervals: Intervals | None = None,
    ) -> None:
        self._intervals = intervals or Intervals()
        self._timeout_s = self._intervals.call_s
        self._source = self.source_type(
            name_servers, group=group, timeout_s=self._timeout_s, on_request=self._on_broker_request
        )
        self._group = group
        self._client_id = client_id
        self._subscriptions = {**subscriptions, f"%RETRY%{group}": "*"}
        self._membership = self.membership_type(
            self._source, client_id, self._subscriptions, self._timeout_s
        )
        self._handler = handler
        self._is_ordered = is_ordered
        self._reconsume_times_max = reconsume_times_max
        self._on_assigned = on_assigned
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._releasing: set[MessageQueue] = set()
        self._locked: set[MessageQueue] = set()
        """Queues whose lock this consumer may hold: requested, and not certainly released."""
        self._changed = trio.Event()
        self._open = trio.CancelScope()

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """This consumer's current queues, in order."""
        return tuple(sorted(self._readers))

    async def run(self) -> None:
        """Consume until cancelled; then commit the consumed offsets and leave the group."""
        try:
            with self._open:
                async with trio.open_nursery() as nursery:
                    await self._consume(nursery)
        finally:
            if not self._open.cancel_called:
                with trio.CancelScope(shield=True), trio.move_on_after(RELEASE_SECONDS_MAX):
                    await self._commit_all()
                    await self._unlock_all()
                    await self._membership.leave()
            self._source.close()

    def close(self) -> None:
        """End `run` and close all connections at once, as in a crash.

        Nothing is committed, no lock is released, and no broker is notified.
        """
        self._open.cancel()
        self._source.close()

    # ---- steps ------------------------------------------------------------------------

    def _on_broker_request(self, _address: str, request: Command) -> None:
        """Rebalance at once when a broker notifies that the group's clients have changed."""
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._changed.set()

    async def _consume(self, nursery: trio.Nursery) -> None:
        intervals = self._intervals
        nursery.start_soon(self._every, intervals.heartbeat_s, self._heartbeat)
        nursery.start_soon(self._every, intervals.commit_s, self._commit_all)
        nursery.start_soon(self._every, intervals.routes_s, self._forget_routes)
        if self._is_ordered:
            nursery.start_soon(self._every, intervals.lock_s, self._renew_locks)
        await self._heartbeat()
        while True:
            self._changed = trio.Event()
            is_settled = await self._rebalance(nursery)
            with trio.move_on_after(intervals.rebalance_s if is_settled else 1.0):
                await self._changed.wait()

    async def _every(self, interval_s: float, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await trio.sleep(interval_s)
            await step()

    async def _forget_routes(self) -> None:
        """Make the next rebalance refresh the routes."""
        for topic in self._subscriptions:
            self._source.forget(topic)
        await trio.lowlevel.checkpoint()

    async def _heartbeat(self) -> None:
        await self._membership.heartbeat()

    async def _rebalance(self, nursery: trio.Nursery) -> bool:
        """Start reading newly assigned queues and release those assigned to others.

        Return False if an assignment is unknown or a lock was not granted: retry soon.
        """
        assigned: set[MessageQueue] = set()
        is_settled = True
        for topic in self._subscriptions:
            assignment = await self._membership.assignment(topic)
            if assignment is None:
                is_settled = topic.startswith("%RETRY%") and is_settled
                assigned.update(queue for queue in self._readers if queue.topic == topic)
            else:
                assigned.update(assignment)
        before = self.assigned
        for queue in before:
            if queue not in assigned:
                await self._release(queue)
        for queue in sorted(assigned - set(self._readers) - self._releasing):
            if self._is_ordered and not await self._lock((queue,)):
                is_settled = False
                continue
            reader = self._readers[queue] = self.reader_type(
                self._source,
                queue,
                self._subscriptions[queue.topic],
                self._handler,
                is_ordered=self._is_ordered,
                wait_s=self._intervals.wait_s,
                reconsume_times_max=self._reconsume_times_max,
            )
            reader.extend_lock(self._lock_end_s())
            nursery.start_soon(reader.run)
        if self._on_assigned is not None and self.assigned != before:
            self._on_assigned(self.assigned)
        return is_settled

    async def _release(self, queue: MessageQueue) -> None:
        """Stop reading a queue, commit its consumed offset, then release its lock.

        Shielded from cancellation: the queue is in no other list that the end of `run` cleans up.
        The commit precedes the release, so that the next holder starts after what was consumed.
        """
        reader = self._readers.pop(queue)
        self._releasing.add(queue)
        try:
            reader.stop()
            with trio.move_on_after(RELEASE_SECONDS_MAX, shield=True):
                await reader.ended.wait()
                if not self._open.cancel_called:
                    await reader.commit()
                    await self._unlock((queue,))
        finally:
            self._releasing.discard(queue)

    async def _commit_all(self) -> None:
        for queue, reader in list(self._readers.items()):
            if self._readers.get(queue) is reader:  # it may have been released meanwhile
                await reader.commit()

    def _lock_end_s(self) -> float:
        return trio.current_time() + LOCK_VALID_S if self._is_ordered else math.inf

    async def _renew_locks(self) -> None:
        for name in sorted({queue.broker_name for queue in self._readers}):
            readers = self._readers_at(name)
            held = await self._lock(tuple(readers)) if readers else None
            if held is None:
                continue
            for queue, reader in readers.items():
                if queue in held:
                    reader.extend_lock(self._lock_end_s())
                else:
                    reader.lock_lost()

    async def _unlock_all(self) -> None:
        """Release all locks, so that others need not wait for their leases to end."""
        for name in sorted({queue.broker_name for queue in self._locked}):
            queues = sorted(queue for queue in self._locked if queue.broker_name == name)
            await self._unlock(tuple(queues))

    async def _unlock(self, queues: tuple[MessageQueue, ...]) -> None:
        """Release these locks, all of one broker name; if that fails, their leases end."""
        if not self._is_ordered:
            return
        answer = await self._ask_locks(RequestCode.UNLOCK_BATCH_MQ, queues)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._locked.difference_update(queues)

    def _readers_at(self, broker_name: str) -> dict[MessageQueue, QueueReader]:
        """Return the readers of a broker name's queues, in order."""
        readers = sorted(self._readers.items())
        return {queue: reader for queue, reader in readers if queue.broker_name == broker_name}

    async def _lock(self, queues: tuple[MessageQueue, ...]) -> frozenset[MessageQueue] | None:
        """Lock queues, all of one broker name; return those that this consumer holds now.

        None if the broker did not answer.
        """
        self._locked.update(queues)
        answer = await self._ask_locks(RequestCode.LOCK_BATCH_MQ, queues)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        try:
            locked = {MessageQueue(*name) for name in decode_locked(answer.body)}
        except CommandError:
            return None
        self._locked.difference_update(set(queues) - locked)
        return frozenset(locked)

    async def _ask_locks(
        self, code: RequestCode, queues: tuple[MessageQueue, ...]
    ) -> Command | None:
        names = [(each.topic, each.broker_name, each.queue_id) for each in queues]
        command = Command(code, body=encode_locks(self._group, self._client_id, names))
        try:
            return await self._source.ask_master(queues[0], command)
        except (RefusedError, OutcomeUnknownError):
            return None
