"""What a target's clients may be able to do besides the operations of a log: optional protocols.

A workload that needs one of them looks at the client when it is opened, and says in one line
what it lacks. A system that keeps registers, and no log, offers `RegisterClient` alone.

Source: jepsen.client; jepsen.tests.linearizable-register for the register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from shaketable.harness.contracts.groups import Handed, Polled
from shaketable.harness.contracts.plugins import TargetClient, Workload

FOUND_MAX: Final = 16
"""So many messages are asked for by a key at most."""
ALL_SPAN: Final = 1 << 62
"""Of the key that all messages of a queue bear that bear any."""


@runtime_checkable
class OpeningWorkload(Workload, Protocol):
    """A workload that needs more of a client, and may put something around it before it is used.

    A target whose clients are all of one type says so by an attribute `client_type`, and by
    `group_client_type` of those that workloads of consumer groups get: then a campaign of a
    workload that they cannot do is refused before anything is started.
    """

    def why_not(self, client: type) -> str | None:
        """Say what clients of that type lack for this workload ("cannot ..."); None if nothing."""
        ...

    def opened(self, client: TargetClient) -> TargetClient:
        """Return the client as this workload uses it, for one process of a history."""
        ...


@runtime_checkable
class HoldingWorkload(Workload, Protocol):
    """A workload whose operations may wait on purpose, beside the time that an answer takes."""

    @property
    def hold_s(self) -> float:
        """How long at most, in seconds."""
        ...


@runtime_checkable
class CombinedWorkload(Workload, Protocol):
    """A workload of several, each on topics of its own: a checker of one judges these alone."""

    @property
    def topics(self) -> Mapping[str, frozenset[str]]:
        """Which checker judges which topics; who is not named judges all."""
        ...


def topics_of(workload: Workload) -> Mapping[str, frozenset[str]]:
    """Return which topics some of the workload's checkers judge alone."""
    return workload.topics if isinstance(workload, CombinedWorkload) else {}


def hold_of(workload: Workload) -> float:
    """Return how long operations of a workload may wait on purpose, in seconds."""
    return workload.hold_s if isinstance(workload, HoldingWorkload) else 0.0


@runtime_checkable
class ConditionalClient(Protocol):
    """A log's client that appends on a condition."""

    async def append_at(self, key: str, value: int, offset: int) -> int:
        """Append `value` to queue `key` if it gets `offset` there; return the offset that it got.

        Raises:
            DefiniteError: the queue does not end there, and nothing was appended.
        """
        ...


@runtime_checkable
class RegisterClient(Protocol):
    """A client of a register for each key."""

    async def get(self, key: str) -> int | None:
        """Return what the register holds, None for nothing."""
        ...

    async def put(self, key: str, value: int) -> None:
        """Let it hold this."""
        ...

    async def swap(self, key: str, expected: int | None, value: int) -> bool:
        """Let it hold `value` if it holds `expected`; False if it was seen to hold another.

        Raises:
            DefiniteError: nothing was changed, and what it held is not known.
        """
        ...


@runtime_checkable
class PollingClient(Protocol):
    """A log's client that reads many messages at a time."""

    async def poll(self, key: str, offset: int) -> Polled:
        """Return the messages from `offset` on, as many as come at once, perhaps none."""
        ...


@runtime_checkable
class OffsetsClient(Protocol):
    """A client that keeps a consumer group's offsets."""

    async def fetch(self, key: str) -> int | None:
        """Return the offset that the group committed, None if it committed none."""
        ...

    async def commit(self, key: str, offset: int) -> None:
        """Let the group go on at `offset`."""
        ...


@runtime_checkable
class DelayingClient(Protocol):
    """A group's client whose messages may be delivered later."""

    async def send_later(self, key: str, value: int, delay_ms: int) -> None:
        """Have `value` delivered in queue `key` when `delay_ms` are over; where, nobody knows yet.

        `delay_ms` is one of `workloads.queue_shape.DELAYS_MS`.
        """
        ...


@runtime_checkable
class BatchingClient(Protocol):
    """A group's client that sends several messages of a queue at once."""

    async def send_batch(self, key: str, values: Sequence[int]) -> int:
        """Produce these, one behind the other; return the first one's offset."""
        ...

    async def view(self, key: str, offset: int) -> int:
        """Look the message of the last batch that has `offset` up by its id; return its value.

        The id is the one that the batch's answer named for it.
        """
        ...


@runtime_checkable
class KeyedClient(Protocol):
    """A group's client that names messages by keys, and asks for them by key or by id.

    A message bears the key of each range of values that its own lies in, of `span` values and of
    `ALL_SPAN`, in its queue; and a unique one.
    """

    async def send_keyed(self, key: str, value: int, span: int) -> int:
        """Produce `value` with its keys; return its offset."""
        ...

    async def find(
        self, key: str, first: int, span: int, offset: int | None
    ) -> Sequence[tuple[int, int]]:
        """Return messages by the key of a range of values: the newest, at most `FOUND_MAX`.

        With `offset` those alone that were stored at the same time as the message there, which
        this client has seen. What comes but should not is nobody's.
        """
        ...

    async def find_unique(self, key: str, value: int) -> Sequence[tuple[int, int]]:
        """Return the messages by the unique key of a value."""
        ...

    async def peek(self, key: str, shift: int) -> Sequence[tuple[int, int]]:
        """Ask by id for what stands behind the last message that this client saw of the queue.

        Return it if there is a message, and it is of this queue. With a `shift` of more than 0 ask
        for what stands so many bytes behind that message's begin: no message does.
        """
        ...

    def seen(self, key: str) -> tuple[int, int] | None:
        """Return offset and value of the last message that this client saw of the queue."""
        ...

    async def view(self, key: str, offset: int) -> int:
        """As `BatchingClient.view`, and for a message that was sent with keys."""
        ...


@runtime_checkable
class TaggingClient(Protocol):
    """A group's client that gives messages tags, which are numbers here, and asks for some."""

    async def send_tagged(self, key: str, value: int, tag: int) -> int:
        """Produce `value` with that tag; return its offset."""
        ...

    async def select(self, key: str, offset: int, tags: Sequence[int]) -> Polled:
        """Return messages of these tags among those from `offset` up to the answer's next offset.

        They are what the client is subscribed to from then on, as others of its group are told.
        """
        ...


@runtime_checkable
class HoldingClient(Protocol):
    """A group's client whose polls may wait at the queue's end until a message comes."""

    async def hold(self, key: str, offset: int, hold_s: float) -> Polled:
        """Poll as `GroupClient.poll` does; where nothing is there yet, wait for it so long."""
        ...


@runtime_checkable
class LockingClient(Protocol):
    """A group's client that consumes a queue under its lock."""

    async def lock(self, key: str) -> bool:
        """Have the queue locked for this consumer; False if another one holds it."""
        ...

    async def unlock(self, key: str) -> None:
        """Give the lock back."""
        ...


@runtime_checkable
class OnewayClient(Protocol):
    """A group's client that commits without an answer."""

    async def commit_oneway(self, key: str, offset: int) -> None:
        """Have the group go on at `offset`, if that arrives; nobody says whether it did."""
        ...


@runtime_checkable
class OperatingClient(Protocol):
    """A group's client that makes and deletes topics, as operators do."""

    async def delete_topic(self, topic: str) -> bool:
        """Make a topic that nobody uses, delete it, and look: True if it still has a route.

        Where it has one it is deleted again, a few times: what a broker had said of it before may
        have been on its way.
        """
        ...


@runtime_checkable
class ErringClient(Protocol):
    """A group's client that asks, as an operator may, for what must be refused."""

    def misrequests(self) -> Sequence[int]:
        """Return the codes with which the things that it can ask for are to be refused."""
        ...

    async def misrequest(self, number: int) -> int:
        """Ask for one of them; return the code of the answer, 0 where it was done.

        Raises:
            DefiniteError: it was refused for another reason, that will pass.
        """
        ...


@runtime_checkable
class HandlingClient(Protocol):
    """A group's client beside which a consumer may run that is handed messages by itself.

    It asks who is in the group, pulls and commits on its own, as RocketMQ's push consumers do. A
    message counts as consumed when it was handled, and only then.
    """

    async def start_handling(self, *, is_ordered: bool) -> None:
        """Have it run; `is_ordered`: it takes each queue under its lock."""
        ...

    def handed(self) -> Handed | None:
        """Return what it was handed first of all that waits to be handled; None if nothing does."""
        ...

    async def handle(self, handed: Handed) -> bool:
        """Say that this was handled; False if it was taken away before, and comes again."""
        ...

    async def stop_handling(self, *, is_tidy: bool) -> None:
        """End it. A tidy one commits what was handled and leaves; another one is just gone."""
        ...

    async def fetch_with_end(self, key: str) -> tuple[int | None, int]:
        """Return the offset that the group committed, and the queue's end, asked for before."""
        ...


@runtime_checkable
class FailingClient(HandlingClient, Protocol):
    """One whose handler may fail: what it did not handle comes again."""

    async def fail(self, handed: Handed, consumed: int) -> bool:
        """Say that the first `consumed` messages were handled, and that the next one failed.

        False if all was taken away before.
        """
        ...


@runtime_checkable
class RetryingClient(FailingClient, Protocol):
    """One whose consumers, where they take no locks, send back what failed.

    It comes again by a queue of its own (`contracts.groups.retry_key`) when its delay is over, so
    often at most, and then lies among the dead letters (`dead_key`).
    """

    def retry_later(self, times_max: int) -> None:
        """Have a message of the consumers that start from now on come again so often at most.

        -1: as often as the brokers say.
        """
        ...

    def retry_keys(self) -> Sequence[str]:
        """Return the keys by which messages of the topic come again."""
        ...

    async def send_back(self, handed: Handed, consumed: int, delay_level: int) -> bool:
        """Say that the first `consumed` messages were handled, and that the others failed.

        `delay_level`: 0 leaves the delay to the broker, below 0 they are dead at once, else they
        come after the delay of that level. False if all was taken away before.
        """
        ...

    async def look(self, key: str, offset: int) -> Handed:
        """Return what lies in a queue of these keys from an offset on, up to its end at least.

        Of dead letters: all, whatever the offset.
        """
        ...
