"""Optional protocols of a target's clients, beside the operations of a log.

A workload that needs one checks for it when a client is opened, and reports in one line what is
missing. A system that has registers and no log implements `RegisterClient` alone.

Source: jepsen.client; jepsen.tests.linearizable-register for the register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Operation, Step, TargetClient, Workload

ANSWER_GRACE_S: Final = 1.0
"""How much longer than its own timeout a target's client may take before it is cancelled."""
FINALS_S: Final = 30.0
"""How long final operations may take, unless their workload says more."""
FOUND_MAX: Final = 16
"""At most this many messages are requested by key."""
ALL_SPAN: Final = 1 << 62
"""The span of the key shared by all messages of a queue that have keys."""


@runtime_checkable
class OpeningWorkload(Workload, Protocol):
    """A workload that needs more of a client, and may wrap it before use.

    A target whose clients are all of one type declares it as `client_type`, and as
    `group_client_type` the type for workloads of consumer groups. A campaign whose workload these
    cannot serve is then refused before anything starts.
    """

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack for this workload ("cannot ..."); None if nothing."""
        ...

    def opened(self, client: TargetClient) -> TargetClient:
        """Wrap the client for this workload, for one process of a history."""
        ...


class WrappedClient:
    """A target's client, with what a workload keeps for one process of a history.

    What a workload does not replace goes to the client unchanged.
    """

    def __init__(self, client: TargetClient) -> None:
        self._client = client

    @property
    def node(self) -> str | None:
        """The node that answered last."""
        return self._client.node

    async def append(self, key: str, value: int) -> int:
        """Append, unchanged."""
        return await self._client.append(key, value)

    async def read(self, key: str, offset: int) -> int | None:
        """Read, unchanged."""
        return await self._client.read(key, offset)

    async def end(self, key: str) -> int:
        """Return the queue's end, unchanged."""
        return await self._client.end(key)

    async def aclose(self) -> None:
        """Close connections."""
        await self._client.aclose()


@runtime_checkable
class Reusable(Protocol):
    """A client that can serve another process after an operation whose outcome is unknown.

    A program keeps its client then, and with it what the client believes of the cluster. Half of
    such clients are kept; all others are closed, and replaced by new ones.

    Source: jepsen.client/Reusable.
    """

    def is_reusable(self) -> bool:
        """Return whether it holds nothing that belongs to its process, such as a position."""
        ...


@runtime_checkable
class HoldingWorkload(Workload, Protocol):
    """A workload whose operations may wait on purpose (long polling) before they are answered."""

    @property
    def hold_s(self) -> float:
        """The longest wait, in seconds."""
        ...


@runtime_checkable
class FinishingWorkload(Workload, Protocol):
    """A workload whose final operations may have to wait longer than is usual."""

    @property
    def finals_s(self) -> float:
        """How long all of them may take, in seconds."""
        ...


@runtime_checkable
class CombinedWorkload(Workload, Protocol):
    """A workload made of several, each on topics of its own that its own checkers judge."""

    @property
    def topics(self) -> Mapping[str, frozenset[str]]:
        """The topics that a checker judges; a checker that is not listed judges all."""
        ...


def topics_of(workload: Workload) -> Mapping[str, frozenset[str]]:
    """Return the topics of those of the workload's checkers that do not judge all of them."""
    return workload.topics if isinstance(workload, CombinedWorkload) else {}


def hold_of(workload: Workload) -> float:
    """Return how long operations of a workload may wait on purpose, in seconds."""
    return workload.hold_s if isinstance(workload, HoldingWorkload) else 0.0


def finals_s_of(workload: Workload) -> float:
    """Return how long the final operations of a workload may take, in seconds."""
    return max(FINALS_S, workload.finals_s if isinstance(workload, FinishingWorkload) else 0.0)


def patience_s_of(op_timeout_s: float, workload: Workload) -> float:
    """Return how long one operation may go on before it is cancelled, in seconds."""
    return op_timeout_s + ANSWER_GRACE_S + hold_of(workload)


@runtime_checkable
class ConditionalClient(Protocol):
    """A log's client with a conditional append."""

    async def append_at(self, key: str, value: int, offset: int) -> int:
        """Append `value` to queue `key` if its offset will be `offset`; return its actual offset.

        Raises:
            DefiniteError: the queue does not end at `offset`; nothing was appended.
        """
        ...


@runtime_checkable
class ReadWriteClient(Protocol):
    """A client of one register for each key, without a compare-and-set."""

    async def get(self, key: str) -> int | None:
        """Return the register's value; None if it has none."""
        ...

    async def put(self, key: str, value: int) -> None:
        """Write `value` to the register."""
        ...


@runtime_checkable
class RegisterClient(ReadWriteClient, Protocol):
    """A client of one register for each key."""

    async def swap(self, key: str, expected: int | None, value: int) -> bool:
        """Compare and set: write `value` if the register holds `expected`, else return False.

        Raises:
            DefiniteError: nothing was written, and the current value is unknown.
        """
        ...


@runtime_checkable
class SetClient(Protocol):
    """A client of one grow-only set for each key."""

    async def add(self, key: str, value: int) -> int | None:
        """Add an element; return its offset, if the set is a log."""
        ...

    async def elements(self, key: str) -> Sequence[int]:
        """Return all elements."""
        ...


@runtime_checkable
class CounterClient(Protocol):
    """A client of one counter for each key."""

    async def increment(self, key: str, amount: int) -> int | None:
        """Add to the counter; return the offset of that, if the counter is a log."""
        ...

    async def count(self, key: str) -> int:
        """Return the counter's value; 0 if it was never incremented."""
        ...


@runtime_checkable
class QueueClient(Protocol):
    """A client of one queue for each key, whose elements are taken in any order."""

    async def enqueue(self, key: str, value: int) -> None:
        """Put an element into the queue."""
        ...

    async def dequeue(self, key: str) -> int | None:
        """Take an element out of the queue and return it; None if the queue is empty.

        Raises:
            DefiniteError: nothing was taken, and whatever was on its way is in the queue again.
            IndefiniteError: an element may be gone, and no client was given it.
        """
        ...


@runtime_checkable
class OrderKeysClient(Protocol):
    """A client whose messages may have an order key, by which it chooses their queue.

    A key is "topic/number": the number is the order key. `use` has named the topic, and how many
    queues it has.
    """

    def use(self, topic: str, queues: int) -> None:
        """Set the topic; it is created by the first operation, if missing."""
        ...

    async def send_with_order_key(self, key: str, value: int) -> None:
        """Send a message with that order key."""
        ...

    async def read_order_key(self, key: str, place: int, places: int) -> Sequence[int]:
        """Return the values of all messages with that order key in a share of the topic's queues.

        Of the queues in order, these are the one at `place` and each `places` after it. Raises
        DefiniteError alone: nothing is taken.
        """
        ...


@runtime_checkable
class TransactionClient(Protocol):
    """A client with transactions over lists, one list for each key."""

    async def transact(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Do all steps in one transaction, in this order; return them, each read with its list.

        Raises:
            DefiniteError: the transaction was aborted.
            IndefiniteError: it may have been committed.
        """
        ...


@runtime_checkable
class RegisterTransactionClient(Protocol):
    """A client with transactions over registers, one register for each key."""

    async def transact_registers(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Do all steps in one transaction, in this order; return them, each read with its value.

        A read ("r") of a register without a value returns None, a write ("w") its own value.

        Raises:
            DefiniteError: the transaction was aborted.
            IndefiniteError: it may have been committed.
        """
        ...


@runtime_checkable
class BankClient(Protocol):
    """A client of accounts, between which money is transferred.

    An account that does not exist yet holds `opening`.

    Source: jepsen.tests.bank.
    """

    async def transfer(self, source: str, destination: str, amount: int, opening: int) -> None:
        """Move an amount from one account to another one.

        Raises:
            DefiniteError: it was not moved; the source may have less.
            IndefiniteError: it may have been moved.
        """
        ...

    async def balances(self, accounts: Sequence[str], opening: int) -> Sequence[int]:
        """Return the balances of these accounts, all at one time."""
        ...


@runtime_checkable
class LogClient(Protocol):
    """A client of one log for each key: the operations of `TargetClient`."""

    async def append(self, key: str, value: int) -> int:
        """Append; return the offset."""
        ...

    async def read(self, key: str, offset: int) -> int | None:
        """Return the value at `offset`; None if the log ends at or before it."""
        ...

    async def end(self, key: str) -> int:
        """Return the offset of the next append."""
        ...


@runtime_checkable
class PollingClient(Protocol):
    """A log's client that reads many messages at a time."""

    async def poll(self, key: str, offset: int) -> PollResult:
        """Return the messages from `offset` on, as many as one answer brings; may be none."""
        ...


@runtime_checkable
class OffsetsClient(Protocol):
    """A client that stores a consumer group's offsets."""

    async def fetch(self, key: str) -> int | None:
        """Return the group's committed offset; None if there is none."""
        ...

    async def commit(self, key: str, offset: int) -> None:
        """Commit `offset` for the group: the next message to consume."""
        ...


@runtime_checkable
class DelayingClient(Protocol):
    """A group's client that can send delayed messages."""

    async def send_later(self, key: str, value: int, delay_ms: int) -> None:
        """Send `value` to be delivered in queue `key` after `delay_ms`; its offset is not known.

        `delay_ms` is one of `workloads.queue_shape.DELAYS_MS`.
        """
        ...


@runtime_checkable
class BatchingClient(Protocol):
    """A group's client that sends several messages of a queue in one batch."""

    async def send_batch(self, key: str, values: Sequence[int]) -> int:
        """Send these values at consecutive offsets; return the offset of the first."""
        ...

    async def view(self, key: str, offset: int) -> int:
        """Return the value of the message at `offset` of the last batch, looked up by message id.

        The id is the one in the answer to the batch.
        """
        ...


@runtime_checkable
class KeyedClient(Protocol):
    """A group's client that gives messages keys, and finds messages by key or by id.

    A message has a unique key, and in its queue one key for each range of values that holds its
    own: ranges of `span` values, and of `ALL_SPAN`.
    """

    async def send_keyed(self, key: str, value: int, span: int) -> int:
        """Send `value` with its keys; return its offset."""
        ...

    async def find(
        self, key: str, first: int, span: int, offset: int | None
    ) -> Sequence[tuple[int, int]]:
        """Return the newest messages with the key of a range of values, at most `FOUND_MAX`.

        With `offset`: only those stored at the same time as the message at that offset, which this
        client has seen. A message that should not have been returned has offset and value -1,
        which no client ever sends, so that the checker sees it.
        """
        ...

    async def find_unique(self, key: str, value: int) -> Sequence[tuple[int, int]]:
        """Return the messages with the unique key of a value."""
        ...

    async def peek(self, key: str, shift: int) -> Sequence[tuple[int, int]]:
        """Look up, by id, the message stored after the last one that this client saw of the queue.

        Returns it if there is one and it is of this queue. With `shift` above 0 the lookup is that
        many bytes after the start of that message, where no message starts.
        """
        ...

    def seen(self, key: str) -> tuple[int, int] | None:
        """Return (offset, value) of the last message that this client saw of the queue."""
        ...

    async def view(self, key: str, offset: int) -> int:
        """As `BatchingClient.view`, and for messages that were sent with keys."""
        ...


@runtime_checkable
class TaggingClient(Protocol):
    """A group's client that gives messages tags (numbers here) and selects by tag."""

    async def send_tagged(self, key: str, value: int, tag: int) -> int:
        """Send `value` with that tag; return its offset."""
        ...

    async def select(
        self, key: str, offset: int, tags: Sequence[int], hold_s: float = 0.0
    ) -> PollResult:
        """Return the messages with these tags from `offset` up to the answer's next offset.

        It waits up to `hold_s` seconds for a first one. From then on they are also the client's
        subscription, as its group sees it.
        """
        ...


@runtime_checkable
class HoldingClient(Protocol):
    """A group's client whose polls can wait at the queue's end for a message (long polling)."""

    async def hold(self, key: str, offset: int, hold_s: float) -> PollResult:
        """Poll as `GroupClient.poll` does, but wait up to `hold_s` seconds for a first message."""
        ...


@runtime_checkable
class LockingClient(Protocol):
    """A group's client that consumes a queue under its lock."""

    async def lock(self, key: str) -> bool:
        """Lock the queue for this consumer; False if another one holds the lock."""
        ...

    async def unlock(self, key: str) -> None:
        """Release the lock."""
        ...


@runtime_checkable
class OnewayClient(Protocol):
    """A group's client that can commit one-way, without an answer."""

    async def commit_oneway(self, key: str, offset: int) -> None:
        """Commit `offset` without waiting for an answer: it may or may not arrive."""
        ...


@runtime_checkable
class OperatingClient(Protocol):
    """A group's client that creates and deletes topics, as operators do."""

    async def delete_topic(self, topic: str) -> bool:
        """Create an unused topic, delete it, and look it up: True if it still has a route.

        If it has one, it is deleted again, a few times: a broker's earlier registration may have
        been on its way.
        """
        ...


class InvalidRequest(Protocol):
    """A request that must be refused."""

    @property
    def label(self) -> str:
        """The request in words: "add the leader"."""
        ...

    @property
    def code(self) -> int:
        """The response code with which it must be refused."""
        ...


@runtime_checkable
class InvalidRequestsClient(Protocol):
    """A group's client that can send requests that must be refused."""

    def invalid_requests(self) -> Sequence[InvalidRequest]:
        """Return its invalid requests."""
        ...

    async def send_invalid_request(self, number: int) -> int:
        """Send one of the invalid requests; return the response code, 0 if it succeeded.

        Raises:
            DefiniteError: it was refused for another, transient reason.
        """
        ...


@runtime_checkable
class HandlingClient(Protocol):
    """A group's client that can run a push consumer, which is handed messages.

    The consumer rebalances, pulls and commits by itself, as RocketMQ's push consumers do. A message
    is consumed once it was handled, and only then.
    """

    async def start_handling(self, *, is_ordered: bool) -> None:
        """Start the consumer; with `is_ordered` it consumes each queue under its lock."""
        ...

    def next_delivery(self) -> Delivery | None:
        """Return the oldest delivery that waits to be handled; None if there is none."""
        ...

    async def handle(self, delivery: Delivery) -> bool:
        """Acknowledge a delivery; False if its queue was revoked, so that it is redelivered."""
        ...

    async def stop_handling(self, *, is_tidy: bool) -> None:
        """Stop the consumer.

        Tidily it commits what was handled and leaves the group; otherwise it is just gone, as in a
        crash.
        """
        ...

    async def fetch_with_end(self, key: str) -> tuple[int | None, int]:
        """Return the group's committed offset and the queue's end, which was requested first."""
        ...


@runtime_checkable
class FailingClient(HandlingClient, Protocol):
    """A push consumer's client whose handler can fail; what it did not handle is redelivered."""

    async def fail(self, delivery: Delivery, consumed: int) -> bool:
        """Report that the first `consumed` messages were handled, and that the next one failed.

        Returns False if the queue was revoked before.
        """
        ...


@runtime_checkable
class RetryingClient(FailingClient, Protocol):
    """A client whose concurrent (not ordered) consumers send failed messages back.

    A message comes again through a retry queue (`retry_key`) after its delay, up
    to a maximum number of times, and is then a dead letter (`dead_key`).
    """

    def retry_later(self, times_max: int) -> None:
        """Set how often a message may be retried, for consumers that start from now on.

        -1: the brokers' default.
        """
        ...

    def retry_keys(self) -> Sequence[str]:
        """Return the keys of the topic's retry queues."""
        ...

    async def send_back(self, delivery: Delivery, consumed: int, delay_level: int) -> bool:
        """Report that the first `consumed` messages were handled, and that the others failed.

        `delay_level`: 0 leaves the delay to the broker, below 0 makes them dead letters at once,
        else they come again after the delay of that level. Returns False if the queue was revoked
        before.
        """
        ...

    async def look(self, key: str, offset: int) -> Delivery:
        """Return the contents of a retry or dead-letter queue from an offset to at least its end.

        For dead letters: all, whatever the offset.
        """
        ...


# ---- consumer groups ---------------------------------------------------------------------
#
# A client that joins a group, and workloads whose steps depend on its state. A target has such
# clients if it can (`contracts.abilities.NamesBrokers`); a workload that needs them is a
# `GroupWorkload`. Source: jepsen.tests.kafka (subscribe, assign, poll, commits), RocketMQ's
# DefaultLitePullConsumer.


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of a poll.

    Attributes:
        messages: (offset, value) in the order of delivery.
        next_offset: where to poll next.
        is_outside: the requested offset is out of the queue's range; `next_offset` is in it again.
    """

    messages: Sequence[tuple[int, int]]
    next_offset: int
    is_outside: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages of queue `key` delivered to a push consumer: (offset, value) in order.

    `attempts`: how often each was sent back before; empty if that is not known.
    """

    key: str
    messages: Sequence[tuple[int, int]]
    attempts: Sequence[int] = ()


RETRY: Final = "%RETRY%"
DEAD: Final = "%DLQ%"


def retry_key(topic: str, number: int) -> str:
    """Return the key of a topic's retry queue on broker name `number`."""
    return f"{topic}/{RETRY}/{number}"


def dead_key(topic: str) -> str:
    """Return the key of all of a topic's dead-letter queues."""
    return f"{topic}/{DEAD}"


@runtime_checkable
class GroupClient(TargetClient, Protocol):
    """A producer, and one consumer of one consumer group. One operation at a time.

    Methods raise as those of `TargetClient`. Queues are named by keys.
    """

    def use(self, topic: str, queues: int) -> None:
        """Set the topic and its number of queues. Call this first."""
        ...

    def is_unbalanced(self) -> bool:
        """Return whether the group may have changed, or `rebalance` is due."""
        ...

    async def send(self, key: str, value: int) -> int:
        """Produce `value` to queue `key`; return its offset."""
        ...

    async def subscribe(self) -> int:
        """Join the group; return how many brokers know of it."""
        ...

    async def unsubscribe(self) -> None:
        """Leave the group."""
        ...

    async def rebalance(self) -> tuple[str, ...]:
        """Ask for the group's members; return the queues assigned to this consumer."""
        ...

    async def fetch(self, key: str) -> int | None:
        """Return the group's committed offset; None if there is none."""
        ...

    async def commit(self, key: str, offset: int) -> None:
        """Commit `offset` for the group: the next message to consume."""
        ...

    async def min_offset(self, key: str) -> int:
        """Return the lowest offset that the queue retains."""
        ...

    async def poll(self, key: str, offset: int) -> PollResult:
        """Return the messages from `offset` on, as many as one answer brings; may be none."""
        ...


@runtime_checkable
class GroupWorkload(Workload, Protocol):
    """A workload whose next operation depends on the state of its client."""

    def opened(self, client: GroupClient) -> TargetClient:
        """Wrap the client with this workload's state, for one process of a history."""
        ...

    def choose(self, operation: Operation, client: TargetClient) -> Operation | None:
        """Turn a generated operation into what this client does in its present state; None: no-op.

        For a final operation: what is still to do; None when done.
        """
        ...
