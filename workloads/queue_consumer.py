"""A consumer of a message queue: its state, its next operation, and the results.

Source: RocketMQ's DefaultLitePullConsumer and ConsumeMessageOrderlyService; jepsen.tests.kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

import trio

from shaketable.harness.contracts.clients import (
    BatchingClient,
    DelayingClient,
    GroupClient,
    HoldingClient,
    InvalidRequestsClient,
    KeyedClient,
    LockingClient,
    OnewayClient,
    OperatingClient,
    TaggingClient,
    WrappedClient,
)
from shaketable.harness.contracts.errors import DefiniteError
from shaketable.harness.contracts.plugins import Answer, Operation
from shaketable.workloads.queue_shape import (
    DELETE,
    DRAIN_HOLD_S,
    INVALID_REQUEST,
    ONEWAY_SHARE,
    OVERDUE_S,
    SELECT_ANEW_SHARE,
    SELECT_HOLD_S,
    HighestSent,
    KeyQueries,
    Shape,
)

TOPIC: Final = "shaketable"
"""The default topic; also the key of operations that concern no single queue."""
LEAVE_TIDY_SHARE: Final = 0.5
"""Share of leaving consumers that commit first; what the others consumed is delivered again."""
ORDERED, ORDERED_END = "ordered", "ordered-commit"
"""Steps of an ordered consumer: continue in the locked queue; commit and unlock it."""
LOCK_TRUST_S: Final = 20.0
"""How long a locked queue is consumed, in seconds: RocketMQ's clients trust a lock for 30 s."""
RESET_STEPS_MAX: Final = 50
"""Furthest reset of a group's offset, in messages, in either direction."""
LOOK_AFTER_S: Final = 0.3
"""Seconds after a one-way commit at which its consumer checks whether it took effect."""
OPENED: Final = "looked at when it was opened"


class Consumer(WrappedClient):
    """The consumer of one process of the history: its queues, and its position in each.

    After an operation of unknown outcome the process has a new number, and a new consumer.
    """

    def __init__(
        self,
        client: GroupClient,
        shape: Shape,
        topic: str,
        keys: Sequence[str],
        highest: HighestSent | None = None,
        untried: Untried | None = None,
    ) -> None:
        super().__init__(client)
        self.client = client
        self._shape = shape
        self._topic = topic
        self._keys = keys
        self._selected: dict[tuple[str, int], int] = {}  # by queue and tags: the next offset
        self._untried = untried or Untried()
        self._unviewed: Operation | None = None  # looks up the last send
        self._queries: KeyQueries | None = None
        if shape.has_keys:
            assert isinstance(client, KeyedClient), OPENED
            self._queries = KeyQueries(client, shape, keys, highest or HighestSent())
        self._locked: str | None = None
        self._locked_until_s = 0.0
        self._is_in_group = False
        self._owned: tuple[str, ...] = ()
        self._fetched: dict[str, int | None] = {}  # fetched, but not assigned yet
        self._position: dict[str, int] = {}
        self._committed: dict[str, int] = {}  # known committed offsets
        self._unverified: dict[str, float] = {}  # queue -> when to check its one-way commit
        self._due: deque[Operation] = deque()
        self._poll_number = 0
        self._drained: str | None = None  # the queue being drained
        self._is_at_end = False
        self._has_waited = False  # the await steps are done
        self._has_deleted = False  # of the last topic, at the end
        self._is_rewound = True  # the drain has reset the group's offset, if it had to
        self._markers: list[Operation] = []  # the drain's messages still to send
        self._awaited: set[int] = set()  # markers sent and not delivered yet
        self._awaited_until_s = 0.0

    # ---- choosing the next operation ---------------------------------------------------

    def next_step(self, f: str, aim: float) -> Operation | None:
        """Return the next operation; None if there is nothing to do."""
        if not self._is_in_group:
            return Operation("subscribe", self._topic)
        if self._due:
            return self._due.popleft()
        if (other := self._next_of_shape(f, aim)) is not None:
            return other
        if f in (ORDERED, ORDERED_END):
            return self._next_in_order(f, aim)
        if self.client.is_unbalanced():
            return Operation("rebalance", self._topic)
        if f == "unsubscribe":
            if aim < LEAVE_TIDY_SHARE:
                self._due.extend(map(self._commit, filter(self._has_uncommitted, self._owned)))
            self._due.append(Operation("unsubscribe", self._topic))
            return self._due.popleft()
        return self._next_of_queue(f, aim) if self._owned else None

    def _next_of_shape(self, f: str, aim: float) -> Operation | None:
        """Return an operation that does not concern its own queues; None for other steps."""
        match f:
            case "select":
                return self._select(aim)
            case "reset":
                return self._reset(aim)
            case "delete-topic":
                return Operation(DELETE, self._topic, value=int(aim * 1e9))
            case "misrequest":
                assert isinstance(self.client, InvalidRequestsClient), OPENED
                requests = self.client.invalid_requests()
                number = self._untried.take(len(requests), aim)
                label, code = requests[number].label, requests[number].code
                return Operation(
                    INVALID_REQUEST, self._topic, value=number, expected=code, request=label
                )
            case "find":
                assert self._queries is not None, OPENED
                return self._queries.choose(aim)
        return None

    def _select(self, aim: float) -> Operation:
        key = self._keys[int(aim * len(self._keys))]
        asked = self._shape.selections
        tags = asked[int(aim * len(self._keys) * len(asked)) % len(asked)]
        is_anew = aim * 997 % 1 < SELECT_ANEW_SHARE
        begin = 0 if is_anew else self._selected.get((key, tags), 0)
        return Operation("select", key, value=begin, expected=tags)

    def _reset(self, aim: float) -> Operation:
        """Reset the group's offset in any queue, forward or back, as an operator does."""
        key = self._keys[int(aim * len(self._keys))]
        steps = int(aim * 997) % (2 * RESET_STEPS_MAX) - RESET_STEPS_MAX
        return Operation("reset", key, value=max(0, self._position.get(key, 0) + steps))

    def _next_in_order(self, f: str, aim: float) -> Operation:
        """Lock a queue, consume it from the group's offset, commit, unlock."""
        if self._locked is None or trio.current_time() > self._locked_until_s:
            self._forget_lock()
            # Every second lock is that of the first queue, so that even two consumers contend.
            place = int(aim * 2 * len(self._keys)) - len(self._keys)
            return Operation("lock", self._keys[max(place, 0)])
        key = self._locked
        if key not in self._position:
            return self._start(key)
        if f == ORDERED:
            return self._poll(key)
        self._due.append(Operation("unlock", key))
        if self._has_uncommitted(key):
            self._due.appendleft(self._commit(key))
        return self._due.popleft()

    def _forget_lock(self) -> None:
        if self._locked is not None:
            self._position.pop(self._locked, None)
            self._fetched.pop(self._locked, None)
        self._locked = None

    def _next_of_queue(self, f: str, aim: float) -> Operation:
        for key in self._owned:
            if key not in self._position:
                return self._start(key)
        if (seen := self._next_look()) is not None:
            return Operation("fetch", seen)
        if f == "fetch":
            return Operation("fetch", self._owned[int(aim * len(self._owned))])
        news = [
            key for key in self._owned if self._has_uncommitted(key) and key not in self._unverified
        ]
        if f == "commit" and news:
            commit = self._commit(news[int(aim * len(news))])
            is_oneway = self._shape.is_oneway and aim * 997 % 1 < ONEWAY_SHARE
            return replace(commit, f="commit-oneway") if is_oneway else commit
        self._poll_number += 1
        return self._poll(self._owned[self._poll_number % len(self._owned)])

    def next_of_await(self, key: str) -> Operation | None:
        """Return the next step of waiting in an empty queue; None once a message has come.

        No group consumes the queue yet, so the wait starts at its first offset, 0.
        """
        if self._has_waited or self._is_in_group:
            return None
        if key not in self._position:
            return Operation("assign", key, offset=0)
        return self._due.popleft() if self._due else self._poll(key)

    def next_of_delete(self, last: Operation) -> Operation | None:
        """Return the deletion of a topic; None once one was deleted."""
        return None if self._has_deleted else last

    def _next_look(self) -> str | None:
        """Return a queue whose one-way commit is to be checked now, before anything else in it."""
        self._unverified = {
            key: at_s for key, at_s in self._unverified.items() if key in self._owned
        }
        now_s = trio.current_time() if self._unverified else 0.0
        due = next((key for key, at_s in self._unverified.items() if at_s <= now_s), None)
        if due is not None:
            del self._unverified[due]
        return due

    def next_of_drain(self, key: str, marker: Callable[[str], int]) -> Operation | None:
        """Return the next step of draining a queue as the group; None when it is drained.

        If messages are delayed, one marker for each delay, with a value from `marker`, is sent
        first. The messages of one delay are delivered in the order of their sends, so when a marker
        has arrived, all earlier ones have.
        """
        if self._drained != key:
            self._drained, self._is_at_end = key, False
            self._due.clear()
            self._position.pop(key, None)
            self._fetched.pop(key, None)
            self._awaited.clear()
            self._markers = [
                Operation("delay", key, value=marker(key), expected=delay_ms)
                for delay_ms in self._shape.delays_ms
            ]
            self._is_rewound = not self._shape.is_reset
        if self._markers:
            return self._markers[0]
        if not self._is_rewound:  # messages skipped by a reset must be delivered too
            return Operation("reset", key, value=0)
        if self._due:
            return self._due.popleft()
        if key not in self._position:
            return self._start(key)
        if self._awaits_markers() or not self._is_at_end:
            return self._poll(key)
        if self._has_uncommitted(key):
            return self._commit(key)
        return None if self._queries is None else self._queries.next_final(key)

    def _awaits_markers(self) -> bool:
        return bool(self._awaited) and trio.current_time() < self._awaited_until_s

    def _start(self, key: str) -> Operation:
        if key not in self._fetched:
            return Operation("fetch", key)
        return Operation("assign", key, offset=self._fetched[key])

    def _poll(self, key: str) -> Operation:
        hold_s = self._shape.hold_s if self._drained is None else 0.0
        if self._awaits_markers():
            hold_s = DRAIN_HOLD_S
        held_ms = int(hold_s * 1_000) or None
        return Operation("poll", key, offset=self._position[key], expected=held_ms)

    def _commit(self, key: str) -> Operation:
        return Operation("commit", key, value=self._position[key])

    def _has_uncommitted(self, key: str) -> bool:
        return key in self._position and self._position[key] != self._committed.get(key)

    # ---- running it --------------------------------------------------------------------

    async def produce(self, operation: Operation) -> Answer:
        """Run a producer's operation."""
        key, value = operation.key, operation.value
        assert value is not None, f"a {operation.f} of nothing"
        client, number = self.client, operation.expected
        if operation.f == "send" and number is None and self._queries is not None:
            offset, self._unviewed = await self._queries.send(operation)
            return Answer(offset=offset)
        if operation.f == "send" and number is None:
            return Answer(offset=await client.send(key, value))
        assert number is not None, f"a {operation.f} of no number"
        if operation.f == "send":
            assert isinstance(client, TaggingClient), OPENED
            return Answer(offset=await client.send_tagged(key, value, number))
        if operation.f == "batch":
            assert isinstance(client, BatchingClient), OPENED
            first = await client.send_batch(key, range(value, value + number))
            # Not chosen at random: a random stream must not depend on answers.
            self._unviewed = Operation("view", key, offset=first + value // number % number)
            return Answer(offset=first)
        assert isinstance(client, DelayingClient), OPENED
        await client.send_later(key, value, number)
        if self._markers and value == self._markers[0].value:
            self._awaited.add(value)
            self._markers.pop(0)
            longest_s = number / 1_000 + OVERDUE_S
            self._awaited_until_s = trio.current_time() + longest_s
        return Answer()

    def next_of_producer(self, generated: Operation) -> Operation:
        """Return the lookup of a message of the last send, or else the generated operation."""
        viewed, self._unviewed = self._unviewed, None
        return viewed or generated

    async def view(self, operation: Operation) -> Answer:
        """Look up a message by its id."""
        key, offset = operation.key, operation.offset
        assert isinstance(self.client, BatchingClient | KeyedClient), OPENED
        assert offset is not None, "nothing to look up"
        return Answer(messages=[(offset, await self.client.view(key, offset))])

    async def ask(self, operation: Operation) -> Answer:
        """Query messages by key or by id."""
        assert self._queries is not None, OPENED
        return await self._queries.run(operation)

    async def step(self, operation: Operation) -> Answer:
        """Run a consumer's operation and record its result."""
        key, f = operation.key, operation.f
        match f:
            case "subscribe":
                brokers = await self.client.subscribe()
                self._is_in_group = True
                self._position.clear()  # drop the position of the await steps
                self._due.clear()
                return Answer(output=brokers)
            case "unsubscribe":
                await self.client.unsubscribe()
                self._is_in_group = False
                self._own(())
                return Answer()
            case "rebalance":
                self._own(await self.client.rebalance())
                return Answer(output=len(self._owned))
            case "fetch":
                fetched = await self.client.fetch(key)
                if key not in self._position:
                    self._fetched[key] = fetched
                return Answer(output=fetched)
            case "assign" | "seek":
                return await self._assign(operation)
            case "commit":
                assert operation.value is not None, "a commit of nothing"
                await self.client.commit(key, operation.value)
                self._committed[key] = operation.value
                return Answer()
            case "poll":
                return await self._do_poll(operation)
        return await self._step_of_shape(operation)

    async def _step_of_shape(self, operation: Operation) -> Answer:
        """Run an operation that only some shapes have."""
        key, f, client = operation.key, operation.f, self.client
        match f:
            case "lock":
                assert isinstance(client, LockingClient), OPENED
                is_held = await client.lock(key)
                if is_held:
                    self._locked = key
                    self._locked_until_s = trio.current_time() + LOCK_TRUST_S
                    self._position.pop(key, None)
                    self._fetched.pop(key, None)
                return Answer(output=int(is_held))
            case "unlock":
                assert isinstance(client, LockingClient), OPENED
                self._forget_lock()
                await client.unlock(key)
                return Answer()
            case "delete-topic":
                assert isinstance(client, OperatingClient), OPENED
                has_route = await client.delete_topic(f"{key}-{operation.value}")
                self._has_deleted = True
                return Answer(output=int(has_route))
            case "misrequest":
                assert isinstance(client, InvalidRequestsClient), OPENED
                assert operation.value is not None, "it asks for nothing"
                return Answer(output=await client.send_invalid_request(operation.value))
            case "commit-oneway":
                assert isinstance(client, OnewayClient), OPENED
                assert operation.value is not None, "a commit of nothing"
                await client.commit_oneway(key, operation.value)
                self._unverified[key] = trio.current_time() + LOOK_AFTER_S
                return Answer()
            case "reset":
                assert operation.value is not None, "a reset to nowhere"
                await client.commit(key, operation.value)
                self._position.pop(key, None)
                self._fetched.pop(key, None)
                if self._drained == key:
                    # Do not fetch the group's offset: a late one-way commit may have moved it.
                    self._due.append(Operation("assign", key, offset=operation.value))
                    self._is_rewound = True
                return Answer()
        assert f == "select", f"the queue has no operation {f!r}"
        return await self._chosen(operation)

    async def _chosen(self, operation: Operation) -> Answer:
        """Poll the messages with some tags; the answer's offset is the next one."""
        key, offset, tags = operation.key, operation.value, operation.expected
        assert isinstance(self.client, TaggingClient), OPENED
        assert offset is not None, "it starts nowhere"
        assert tags is not None, "it asks for no tag"
        asked = [tag for tag in range(self._shape.tags) if tags >> tag & 1]
        # Others' messages come meanwhile: the broker has to look again at each of them.
        waits = self._shape.hold_s > 0 and offset > 0 and self._drained is None
        polled = await self.client.select(key, offset, asked, SELECT_HOLD_S if waits else 0.0)
        self._selected[key, tags] = polled.next_offset
        if polled.is_outside:
            raise DefiniteError(f"the queue does not reach {offset}")
        return Answer(offset=polled.next_offset, messages=polled.messages)

    async def _assign(self, operation: Operation) -> Answer:
        await trio.lowlevel.checkpoint()
        key, offset = operation.key, operation.offset
        if offset is None:
            offset = await self.client.min_offset(key)
        self._fetched.pop(key, None)
        self._position[key] = offset
        self._committed[key] = offset
        return Answer(offset=offset)

    async def _do_poll(self, operation: Operation) -> Answer:
        """Poll.

        If the position is out of the queue's range (its end was lost), seek back into it.
        """
        key, offset, client = operation.key, self._position[operation.key], self.client
        if operation.expected is None:
            polled = await client.poll(key, offset)
        else:
            assert isinstance(client, HoldingClient), OPENED
            polled = await client.hold(key, offset, operation.expected / 1_000)
        self._has_waited |= bool(polled.messages)
        self._awaited.difference_update(value for _, value in polled.messages)
        self._is_at_end = not polled.messages and not polled.is_outside
        if polled.is_outside:
            self._due.append(Operation("seek", key, offset=polled.next_offset))
        else:
            self._position[key] = polled.next_offset
        return Answer(messages=polled.messages)

    def _own(self, owned: tuple[str, ...]) -> None:
        """Replace the owned queues; first commit what was consumed of those that are lost."""
        if self._is_in_group:
            gone = [key for key in self._owned if key not in owned and self._has_uncommitted(key)]
            self._due.extend(map(self._commit, gone))
        for key in self._owned:
            if key not in owned:
                self._position.pop(key, None)
                self._fetched.pop(key, None)
        self._owned = owned


class Untried:
    """The invalid requests that no client of this process has tried yet in this round.

    Independent random choices would leave some untried in a short run: with 23 of them and 50
    tries, each is left out in one run of nine.
    """

    def __init__(self) -> None:
        self._left: list[int] = []

    def take(self, count: int, aim: float) -> int:
        """Take an untried request below `count`; when all are tried, start a new round.

        `aim` sets the order of the new round. `count` differs between clients: one that has read a
        broker's limits knows of more requests.
        """
        known = [number for number in self._left if number < count]
        if not known:
            known = Random(aim).sample(range(count), count)
            self._left += known
        self._left.remove(known[-1])
        return known[-1]
