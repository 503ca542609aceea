"""Consumer group operations of a campaign's clients, over the public client of the system.

A key is "<topic>/<n>". Queue n is queue n // m of the (n mod m)-th of m broker names, so that a
topic's queues are spread over all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from random import Random

import trio

from shaketable.harness.contracts.clients import (
    ALL_SPAN,
    DEAD,
    FOUND_MAX,
    RETRY,
    Delivery,
    PollResult,
    dead_key,
    retry_key,
)
from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.targets.group_handling import Handling, intervals
from shaketable.harness.targets.refusals import (
    BEYOND_LIMITS,
    GROUP_MEMBERS_KEY,
    INVALID_REQUESTS,
    TOPICS_KEY,
    Asker,
    InvalidRequest,
    code_of,
)
from shaketable.system.client import (
    AdminClient,
    BrokerGroupClient,
    ClientParts,
    ConsumeError,
    DamagedResponseError,
    GroupMembership,
    Message,
    MessageQueue,
    OutcomeUnknownError,
    PullConsumer,
    RefusedError,
    ResponseCode,
    Sent,
    id_after,
    stored_bytes,
    tags_of,
)

GROUP = "shaketable-consumers"
"""The consumer group of the topic "shaketable".

Each topic has one named after it, because the members of a group must subscribe to the same topics
(RocketMQ: consistent subscriptions).
"""
NAME_SERVERS = "ns"
"""Prefix of the ids of name servers."""
ENTRY_HEAD_BYTES = (0, 48)
"""Bytes between two messages of a log: none, or the header of a DLedger entry."""
POLL_MAX = 64
FEW_BYTES = 600
"""What every FEW_EVERY-th pull limits its messages to, so that brokers meet that limit, too."""
FEW_EVERY = 4
BEYOND_TIMES = 8
"""Frequency of the requests beyond low limits, relative to each other invalid request."""
TAGS = ("Aa", "BB", "polygenelubricants")
"""Two tags with the same hash code, and one with the least int as hash code: hard for filters."""
LEVEL_OF_DELAY_MS = {1_000: 1, 5_000: 2, 10_000: 3, 30_000: 4}
"""The levels of RocketMQ's default messageDelayLevel that are short enough for a run."""
REBALANCE_S = 2.0
"""How old a consumer's view of its group may be, unless a broker reports a change."""
HEARTBEAT_S = 5.0
DELETED_TRIES = 3
DELETED_AGAIN_S = 0.2
"""Number of attempts to delete a topic that still has a route, and the pause between them."""
_VALUE = re.compile(rb"-?[0-9]{1,18}")
_clients = count(1)


class GroupOperations:
    """The operations of `contracts.clients.GroupClient`, through name servers.

    Args:
        addresses: the nodes, and name servers by ids that start with NAME_SERVERS.
        broker_names: the names over which a topic's queues are spread.
        timeout_s: how long one operation may take.
        parts: the classes of the clients.
        rng: for the broker to try first, and for pauses; unseeded if omitted.
        client_id: by which brokers know this client in its group; None: this process's own.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        broker_names: Sequence[str],
        timeout_s: float,
        parts: ClientParts | None = None,
        rng: Random | None = None,
        client_id: str | None = None,
    ) -> None:
        self._parts = parts or ClientParts()
        self._names = [str(at) for node, at in addresses.items() if is_name_server(node)]
        self._nodes = {str(at): node for node, at in addresses.items() if not is_name_server(node)}
        self._brokers = tuple(broker_names)
        self._timeout_s = timeout_s
        self._producer = self._parts.producer(self._names, timeout_s=timeout_s, rng=rng or Random())
        self._client_id = client_id or f"{os.getpid()}@{next(_clients)}"
        self._group = GROUP
        self._consumer = self._make_consumer()
        self._membership: GroupMembership | None = None
        self._heartbeat_due_s = 0.0
        self._rebalance_due_s = 0.0
        self._topic, self._queues = "", 0
        self._subscription = "*"
        self._pulls = 0
        self._reconsume_times_max = -1
        self._lives = count(1)
        """Numbers the push consumers of this client."""
        self._sent_ids: dict[tuple[str, int], str] = {}
        self._seen: dict[str, Message] = {}
        """The last message received from each queue."""
        self._is_made = False
        self._limits: tuple[int, ...] | None = None
        """Low limits of the brokers, () if they are the usual ones; None: not queried yet."""
        self._askings = count(1)
        """Numbers the invalid requests."""
        self._locked: set[str] = set()
        """Queues that may be locked for this client."""
        self._handling: Handling | None = None
        self._answered_by: str | None = None

    @property
    def group_node(self) -> str | None:
        """The node that answered the last of these operations."""
        return self._nodes.get(self._answered_by or "")

    def use(self, topic: str, queues: int) -> None:
        """Set the topic; it is created by the first operation, if missing."""
        self._topic, self._queues = topic, queues
        self._is_made = False
        if (group := f"{topic}-consumers") != self._group:
            self._consumer.close()
            self._group = group
            self._consumer = self._make_consumer()

    def is_unbalanced(self) -> bool:
        """Return whether a broker reported a change of the group, or a rebalance is due."""
        return trio.current_time() >= self._rebalance_due_s

    async def send(self, key: str, value: int) -> int:
        """Send a message whose body is the value's digits to the key's queue."""
        queue = self._queue(key)
        async with self._definite_or_not():
            return self._stored(await self._producer.send(queue.topic, b"%d" % value, queue=queue))

    async def send_with_order_key(self, key: str, value: int) -> None:
        """Send a message whose queue the producer chooses by the order key; it is the tag, too."""
        topic, _, order_key = key.rpartition("/")
        async with self._definite_or_not():
            self._stored(
                await self._producer.send(
                    topic, b"%d" % value, tags=f"key{order_key}", order_key=order_key
                )
            )

    async def read_order_key(self, key: str, place: int, places: int) -> Sequence[int]:
        """Select the messages of these queues by the tag."""
        topic, _, order_key = key.rpartition("/")
        tag, found = f"key{order_key}", list[Message]()
        self._consumer.forget(topic)
        self._is_made = False  # each broker has to be there, with its queues
        try:
            async with self._definite_or_not():
                for queue in sorted(await self._consumer.queues(topic))[place::places]:
                    found += await self._rest_of(queue, 0, subscription=tag)
        except IndefiniteError as error:
            raise DefiniteError(f"not read: {error}") from error
        return [value_of(each.body) for each in found if tags_of(each) == tag]

    async def send_later(self, key: str, value: int, delay_ms: int) -> None:
        """Send a message with the level of that delay."""
        queue, properties = self._queue(key), {"DELAY": str(LEVEL_OF_DELAY_MS[delay_ms])}
        async with self._definite_or_not():
            self._stored(
                await self._producer.send(
                    queue.topic, b"%d" % value, queue=queue, properties=properties
                )
            )

    async def send_batch(self, key: str, values: Sequence[int]) -> int:
        """Send the messages as one batch."""
        queue = self._queue(key)
        bodies = [b"%d" % value for value in values]
        async with self._definite_or_not():
            sent = await self._producer.send_batch(queue.topic, bodies, queue=queue)
            first = self._stored(sent)
        self._sent_ids = {
            (key, first + place): message_id for place, message_id in enumerate(sent.message_ids)
        }
        return first

    async def view(self, key: str, offset: int) -> int:
        """Look up the message at the broker that its id names."""
        async with self._definite_or_not():
            try:
                message_id = self._sent_ids[key, offset]
                return value_of((await self._consumer.view(message_id)).body)
            except (KeyError, ValueError) as error:
                raise RefusedError(
                    -1, f"the send's answer named no such message: {error}"
                ) from None

    async def send_keyed(self, key: str, value: int, span: int) -> int:
        """Send a message with its keys; its id is kept until the next send."""
        queue, number = self._queue(key), int(key.rpartition("/")[2])
        properties = {"UNIQ_KEY": unique_key_of(value)}
        async with self._definite_or_not():
            sent = await self._producer.send(
                queue.topic,
                b"%d" % value,
                queue=queue,
                keys=keys_of(number, value, span),
                properties=properties,
            )
            offset = self._stored(sent)
        self._sent_ids = {(key, offset): sent.message_ids[0]}
        return offset

    async def find(
        self, key: str, first: int, span: int, offset: int | None
    ) -> Sequence[tuple[int, int]]:
        """Query by the key of a range of values."""
        times_ms = None
        if offset is not None:
            seen = self._seen[key]
            assert seen.queue_offset == offset, "it asks for the time of another message"
            times_ms = (seen.store_ms, seen.store_ms)
        text = key_of(int(key.rpartition("/")[2]), first, span)
        return await self._found(key, text, times_ms)

    async def find_unique(self, key: str, value: int) -> Sequence[tuple[int, int]]:
        """Query by a unique key."""
        return await self._found(key, unique_key_of(value), None, is_unique=True)

    async def _found(
        self, key: str, text: str, times_ms: tuple[int, int] | None, *, is_unique: bool = False
    ) -> Sequence[tuple[int, int]]:
        queue = self._queue(key)
        begin_ms, end_ms = times_ms or (0, 2**63 - 1)
        async with self._definite_or_not():
            found = await self._consumer.query(
                queue,
                text,
                count_max=FOUND_MAX,
                begin_ms=begin_ms,
                end_ms=end_ms,
                is_unique=is_unique,
            )
        kept = in_queue(found, (queue.topic, queue.queue_id), times_ms)
        if kept and (newest := kept[0]) is not None:
            self._seen[key] = newest
        return [
            (NOWHERE, FOREIGN_VALUE) if mine is None else (mine.queue_offset, value_of(mine.body))
            for mine in kept
        ]

    def seen(self, key: str) -> tuple[int, int] | None:
        """Return (offset, value) of the last message received from the queue."""
        seen = self._seen.get(key)
        return None if seen is None else (seen.queue_offset, value_of(seen.body))

    async def peek(self, key: str, shift: int) -> Sequence[tuple[int, int]]:
        """Look up the message stored after the last one seen, by an id computed from its size."""
        seen, queue = self._seen[key], self._queue(key)
        places = [shift] if shift else [stored_bytes(seen) + head for head in ENTRY_HEAD_BYTES]
        async with self._definite_or_not():
            for place in places:
                message = await self._viewed(id_after(seen, place))
                if message is None:
                    continue
                is_mine = (message.topic, message.queue_id) == (
                    queue.topic.encode(),
                    queue.queue_id,
                )
                if is_mine or shift:
                    return [(message.queue_offset, value_of(message.body))]
        return ()

    async def _viewed(self, message_id: str) -> Message | None:
        """Look up a message by its id; None if there is none, or no broker answers."""
        try:
            return await self._consumer.view(message_id)
        except DamagedResponseError:
            raise
        except (RefusedError, OutcomeUnknownError):
            return None

    async def send_tagged(self, key: str, value: int, tag: int) -> int:
        """Send a message with one of TAGS."""
        queue = self._queue(key)
        async with self._definite_or_not():
            return self._stored(
                await self._producer.send(queue.topic, b"%d" % value, queue=queue, tags=TAGS[tag])
            )

    async def select(
        self, key: str, offset: int, tags: Sequence[int], hold_s: float = 0.0
    ) -> PollResult:
        """Pull with a subscription to tags; what the broker's filter passes is filtered again."""
        queue, names = self._queue(key), [TAGS[tag] for tag in tags]
        subscription = " || ".join(names)
        self._subscription = subscription
        if self._membership is not None:  # sent with its next heartbeat
            self._membership.subscriptions = {self._topic: subscription}
        async with self._definite_or_not():
            pulled = await self._consumer.pull(
                queue,
                offset,
                count_max=POLL_MAX,
                bytes_max=self._bytes_max(),
                subscription=subscription,
                wait_s=hold_s,
            )
        messages = [
            (each.queue_offset, value_of(each.body))
            for each in pulled.messages
            if tags_of(each) in names
        ]
        is_outside = pulled.status == "OFFSET_ILLEGAL" and pulled.next_offset != offset
        return PollResult(messages, pulled.next_offset, is_outside)

    def _bytes_max(self) -> int | None:
        self._pulls += 1
        return None if self._pulls % FEW_EVERY else FEW_BYTES

    async def subscribe(self) -> int:
        """Join the group."""
        async with self._definite_or_not():
            self._membership = self._parts.membership(
                self._consumer, self._client_id, {self._topic: self._subscription}, self._timeout_s
            )
            brokers = await self._membership.heartbeat()
            if not brokers:
                raise RefusedError(-1, "no broker took the heartbeat")
        now_s = trio.current_time()
        self._heartbeat_due_s, self._rebalance_due_s = now_s + HEARTBEAT_S, now_s
        return brokers

    async def unsubscribe(self) -> None:
        """Leave the group."""
        if self._membership is not None:
            await self._membership.leave()
            self._membership = None

    async def rebalance(self) -> tuple[str, ...]:
        """Ask for the group's members, and take this consumer's share of the queues."""
        assert self._membership is not None, "it is in no group"
        if trio.current_time() >= self._heartbeat_due_s:
            await self._membership.heartbeat()
            self._heartbeat_due_s = trio.current_time() + HEARTBEAT_S
        self._rebalance_due_s = trio.current_time() + REBALANCE_S
        async with self._definite_or_not():
            mine = await self._membership.assignment(self._topic)
            if mine is None:
                self._heartbeat_due_s = 0.0  # a new leader may not know of us
                raise RefusedError(-1, "no broker could say who is in the group")
        if not mine:
            self._heartbeat_due_s = 0.0  # a new leader may not know of us
        return tuple(key for queue in mine if (key := self._key(queue)) is not None)

    async def fetch(self, key: str) -> int | None:
        """Return the group's committed offset."""
        queue = self._queue(key)
        async with self._definite_or_not():
            return await self._consumer.committed(queue)

    async def commit(self, key: str, offset: int) -> None:
        """Commit the group's offset."""
        queue = self._queue(key)
        async with self._definite_or_not():
            await self._consumer.commit(queue, offset)

    async def commit_oneway(self, key: str, offset: int) -> None:
        """Commit the group's offset without waiting for an answer."""
        queue = self._queue(key)
        async with self._definite_or_not():
            await self._consumer.commit_oneway(queue, offset)

    async def lock(self, key: str) -> bool:
        """Lock the queue; it is unlocked at the latest when this client is closed."""
        queue = self._queue(key)
        self._locked.add(key)
        async with self._definite_or_not():
            return await self._consumer.lock(queue, self._client_id)

    async def unlock(self, key: str) -> None:
        """Release the lock."""
        async with self._definite_or_not():
            await self._consumer.unlock(self._queue(key), self._client_id)
        self._locked.discard(key)

    async def delete_topic(self, topic: str) -> bool:
        """Create a topic, delete it, and check whether it still has a route."""
        async with self._definite_or_not():
            try:
                await self._producer.create_topic(topic, 1)
            except RefusedError as error:
                if error.code != ResponseCode.NO_PERMISSION:
                    raise  # no room for it: a missing topic can be deleted too
            for _ in range(DELETED_TRIES):
                await self._producer.delete_topic(topic)
                if not await self._producer.has_route(topic):
                    return False
                await trio.sleep(DELETED_AGAIN_S)
            return True

    def invalid_requests(self) -> Sequence[InvalidRequest]:
        """Return all invalid requests to brokers with these limits."""
        return (
            (*INVALID_REQUESTS, *BEYOND_LIMITS * BEYOND_TIMES) if self._limits else INVALID_REQUESTS
        )

    async def send_invalid_request(self, number: int) -> int:
        """Send it to the leader of the broker with the topic's first queue."""
        queue = self._queue(f"{self._topic}/0")
        async with self._definite_or_not():
            leader = await self._consumer.master(queue)
            if leader is None:
                raise RefusedError(-1, "no leader")
            if self._limits is None:
                config = await self._consumer.broker_config(leader)
                names = (TOPICS_KEY, GROUP_MEMBERS_KEY)
                self._limits = tuple(int(config[name]) for name in names if name in config)
            client = self._leaders_client(leader)
            try:
                asker = self._asker(client, queue.broker_name, leader)
                code = await code_of(self.invalid_requests()[number], asker)
            finally:
                client.close()
            self._consumer.last_address = leader
        return code

    def _leaders_client(self, leader: str) -> BrokerGroupClient:
        host, _, port = leader.rpartition(":")
        return self._parts.group_client(
            {"leader": (host, int(port))}, timeout_s=self._timeout_s, rng=Random(0)
        )

    def _asker(self, client: BrokerGroupClient, broker: str, leader: str) -> Asker:
        topics_max, members_max = self._limits or (0, 0)
        return Asker(
            self._producer,
            self._consumer,
            AdminClient(client),
            self._topic,
            broker,
            leader,
            lambda group: self._parts.pull_consumer(
                self._names, group=group, timeout_s=self._timeout_s
            ),
            lambda consumer, client_id, topic: self._parts.membership(
                consumer, client_id, {topic: "*"}, self._timeout_s
            ),
            topics_max,
            members_max,
            f"{re.sub('[^0-9A-Za-z]', '-', self._client_id)}-{next(self._askings)}",
            self._names,
        )

    async def min_offset(self, key: str) -> int:
        """Return the queue's min offset."""
        queue = self._queue(key)
        async with self._definite_or_not():
            return await self._consumer.min_offset(queue)

    async def max_offset(self, key: str) -> int:
        """Return the queue's max offset."""
        queue = self._queue(key)
        async with self._definite_or_not():
            return await self._consumer.max_offset(queue)

    async def poll(self, key: str, offset: int) -> PollResult:
        """Pull messages from an offset on."""
        return await self._poll(key, offset, 0.0)

    async def _poll(self, key: str, offset: int, hold_s: float) -> PollResult:
        queue = self._queue(key)
        async with self._definite_or_not():
            # A slave may lag, so only a master's answer proves that there is no message.
            master = await self._consumer.master(queue)
            pulled = await self._consumer.pull(
                queue, offset, count_max=POLL_MAX, bytes_max=self._bytes_max(), wait_s=hold_s
            )
            if not pulled.messages and (master is None or pulled.status == "NO_MATCHED_MSG"):
                raise RefusedError(-1, "no broker that knows served the pull")
        if pulled.messages:
            self._seen[key] = pulled.messages[-1]
        messages = [(each.queue_offset, value_of(each.body)) for each in pulled.messages]
        is_outside = pulled.status == "OFFSET_ILLEGAL" and pulled.next_offset != offset
        return PollResult(messages, pulled.next_offset, is_outside)

    async def hold(self, key: str, offset: int, hold_s: float) -> PollResult:
        """Pull, and let the broker hold the pull at the queue's end."""
        return await self._poll(key, offset, hold_s)

    # ---- a push consumer ----------------------------------------------------------------

    async def start_handling(self, *, is_ordered: bool) -> None:
        """Start a push consumer beside this client."""
        async with self._definite_or_not():
            make = partial(
                self._parts.group_consumer,
                self._names,
                group=self._group,
                # A killed one comes back under a new id, as a process does.
                client_id=f"{self._client_id}#{next(self._lives)}",
                subscriptions={self._topic: "*"},
                is_ordered=is_ordered,
                reconsume_times_max=self._reconsume_times_max,
                intervals=intervals(self._timeout_s),
            )
            self._handling = Handling(make, self._delivery)
            await trio.lowlevel.checkpoint()

    def next_delivery(self) -> Delivery | None:
        """Return the oldest delivery that waits to be handled."""
        return None if self._handling is None else self._handling.next_delivery()

    async def handle(self, delivery: Delivery) -> bool:
        """Let its handler return."""
        return self._handling is not None and await self._handling.handle(delivery)

    async def fail(self, delivery: Delivery, consumed: int) -> bool:
        """Let its handler fail after the first messages."""
        error = ConsumeError(consumed)
        return self._handling is not None and await self._handling.handle(delivery, error)

    def retry_later(self, times_max: int) -> None:
        """Set how often messages are retried."""
        self._reconsume_times_max = times_max

    def retry_keys(self) -> tuple[str, ...]:
        """Return a key for each broker name: each has a retry queue of the group."""
        return tuple(retry_key(self._topic, number) for number in range(len(self._brokers)))

    async def send_back(self, delivery: Delivery, consumed: int, delay_level: int) -> bool:
        """Let its handler fail after the first messages; the consumer sends the others back."""
        error = ConsumeError(consumed, delay_level)
        return self._handling is not None and await self._handling.handle(delivery, error)

    async def look(self, key: str, offset: int) -> Delivery:
        """Read a retry queue from an offset on, or all dead letters."""
        async with self._definite_or_not():
            if key != dead_key(self._topic):
                return _delivery(key, await self._rest_of(self._queue(key), offset))
            found: list[Message] = []
            dead = f"{DEAD}{self._group}"
            is_any = await self._producer.has_route(dead)
            for queue in await self._consumer.queues(dead) if is_any else ():
                found += await self._rest_of(queue, await self._consumer.min_offset(queue))
            return _delivery(key, found)

    async def _rest_of(
        self, queue: MessageQueue, offset: int, *, subscription: str = "*"
    ) -> list[Message]:
        """Return a queue's messages from an offset to its current end.

        Raises RefusedError, OutcomeUnknownError.
        """
        end = await self._consumer.max_offset(queue)
        found: list[Message] = []
        offset = max(offset, await self._consumer.min_offset(queue))
        while offset < end:
            pulled = await self._consumer.pull(
                queue, offset, count_max=POLL_MAX, subscription=subscription
            )
            if pulled.next_offset <= offset:
                raise RefusedError(-1, f"nothing of {queue} is to be had from {offset} on")
            found += pulled.messages
            offset = pulled.next_offset
        return found

    async def stop_handling(self, *, is_tidy: bool) -> None:
        """Stop the push consumer.

        Raises the error it ended with, if it had ended by itself, which only a bug makes it do.
        """
        handling, self._handling = self._handling, None
        if handling is None:
            return
        await handling.end(is_tidy=is_tidy)

    async def fetch_with_end(self, key: str) -> tuple[int | None, int]:
        """Return the group's offset in the queue, and the queue's end, which is requested first."""
        end = await self.max_offset(key)
        return await self.fetch(key), end

    def _delivery(self, queue: MessageQueue, messages: Sequence[Message]) -> Delivery | None:
        key = self._key(queue)
        if key is None or not key.startswith(f"{self._topic}/"):
            return None
        return _delivery(key, messages)

    async def close_groups(self) -> None:
        """Leave the group, and close connections."""
        try:
            try:
                await self.stop_handling(is_tidy=True)
            finally:
                for key in sorted(self._locked):
                    with suppress(DefiniteError, IndefiniteError):
                        await self.unlock(key)
                await self.unsubscribe()
        finally:
            self._producer.close()
            self._consumer.close()

    # ---- steps -------------------------------------------------------------------------

    def _make_consumer(self) -> PullConsumer:
        return self._parts.pull_consumer(
            self._names, group=self._group, timeout_s=self._timeout_s, on_request=self._asked
        )

    def _stored(self, sent: Sent) -> int:
        """Return the offset of a message that is stored as the brokers' mode promises."""
        self._answered_by = sent.answered_by
        if sent.status != "SEND_OK":
            # Stored at the master, but not (yet) where the mode promises: outcome unknown.
            raise OutcomeUnknownError(f"{sent.status} at offset {sent.offset}")
        return sent.offset

    def _asked(self, _address: str, _request: object) -> None:
        """Handle a broker's notice that the group has changed."""
        self._rebalance_due_s = 0.0

    def _queue(self, key: str) -> MessageQueue:
        topic, _, number = key.rpartition("/")
        if topic.endswith(f"/{RETRY}"):
            return MessageQueue(f"{RETRY}{self._group}", self._brokers[int(number)], 0)
        each, name = divmod(int(number), len(self._brokers))
        return MessageQueue(topic, self._brokers[name], each)

    def _key(self, queue: MessageQueue) -> str | None:
        if queue.broker_name not in self._brokers:
            return None
        if queue.topic == f"{RETRY}{self._group}":
            return retry_key(self._topic, self._brokers.index(queue.broker_name))
        number = queue.queue_id * len(self._brokers) + self._brokers.index(queue.broker_name)
        return f"{queue.topic}/{number}"

    async def _make_topic(self) -> None:
        """Create the topic on all broker names, unless this client has seen it there.

        Raises RefusedError, OutcomeUnknownError.
        """
        if self._is_made:
            return
        wanted = {self._queue(f"{self._topic}/{number}") for number in range(self._queues)}
        try:
            known = set(await self._consumer.queues(self._topic))
        except RefusedError:
            known = set()
        if not wanted <= known:
            each = -(-self._queues // len(self._brokers))
            had = [queue.queue_id + 1 for queue in known]  # never shrink a topic
            await self._producer.create_topic(self._topic, max([each, *had]))
        self._is_made = True

    @asynccontextmanager
    async def _definite_or_not(self) -> AsyncIterator[None]:
        """Create the topic first; convert the client's errors to definite or indefinite ones."""
        try:
            await self._make_topic()
        except (RefusedError, OutcomeUnknownError) as error:
            raise DefiniteError(f"no topic yet: {error}") from error
        self._consumer.last_address = None
        try:
            yield
            self._answered_by = self._consumer.last_address or self._answered_by
        except RefusedError as error:
            self._is_made = False  # a broker that lost its disk lost its topics too
            self._consumer.forget(self._topic)  # its route may be outdated
            raise DefiniteError(str(error)) from error
        except (DamagedResponseError, OutcomeUnknownError) as error:
            raise IndefiniteError(str(error)) from error


def _delivery(key: str, messages: Sequence[Message]) -> Delivery:
    """Convert messages to a delivery, as recorded in the history."""
    pairs = [(each.queue_offset, value_of(each.body)) for each in messages]
    return Delivery(key, pairs, [each.reconsume_times for each in messages])


def is_name_server(node: str) -> bool:
    """Return whether an id among the addresses is a name server's."""
    return node.startswith(NAME_SERVERS)


def value_of(body: bytes) -> int:
    """Return the value in a message's body; FOREIGN_VALUE if there is none."""
    return int(body) if _VALUE.fullmatch(body) else FOREIGN_VALUE


# The message keys of a campaign, and what to record of a query's answer.
#
# A message of value v has the key of each range of values [first, first + span) that it is queried
# by. Keys are chosen to provoke wrong answers: every second range has a key with the same hash as
# its neighbour's, because a broker's index knows only hashes; the range's key occurs twice among
# the message's KEYS; and one of its KEYS equals the unique key of another message. None of this
# may show in an answer.
#
# Source: RocketMQ's IndexService.buildKey (one index for UNIQ_KEY and KEYS); apache/rocketmq issue
# 3613 (a key of the same hash is found).

FOREIGN_VALUE = -1
"""Recorded for a message without a value, or one that should not have been returned. No client
sends it, so the checkers report a message that was never sent.
"""
NOWHERE = -1
"""Recorded as the offset of a message of another queue."""
_SAME_HASH = ("Aa", "BB")
"""Texts with the same String.hashCode."""


def key_of(queue: int, first: int, span: int) -> str:
    """Return the key of the `span` values from `first` on, in the topic's queue."""
    pair, place = divmod(first // span, len(_SAME_HASH))
    return f"{queue}.{span}.{pair}{_SAME_HASH[place]}"


def unique_key_of(value: int) -> str:
    """Return the UNIQ_KEY of the message with that value."""
    return f"U{value}"


def keys_of(queue: int, value: int, span: int) -> list[str]:
    """Return the KEYS of the message with that value."""
    own = key_of(queue, value - value % span, span)
    neighbour = unique_key_of(value + span if value // span % 2 == 0 else value - span)
    return [own, key_of(queue, 0, ALL_SPAN), own, neighbour]


def in_queue(
    messages: Iterable[Message], queue: tuple[str, int], times_ms: tuple[int, int] | None
) -> Sequence[Message | None]:
    """Return the messages, with None for each one of another queue or another store time."""
    topic, queue_id = queue[0].encode(), queue[1]
    return [
        each
        if (each.topic, each.queue_id) == (topic, queue_id)
        and (times_ms is None or times_ms[0] <= each.store_ms <= times_ms[1])
        else None
        for each in messages
    ]
