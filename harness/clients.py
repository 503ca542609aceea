"""What a target's clients may be able to do besides the operations of a log: optional protocols.

A workload that needs one of them looks at the client when it is opened, and says in one line
what it lacks. A system that keeps registers, and no log, offers `RegisterClient` alone.

Source: jepsen.client; jepsen.tests.linearizable-register for the register.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from harness.groups import Polled
from harness.plugins import TargetClient, Workload


@runtime_checkable
class OpeningWorkload(Workload, Protocol):
    """A workload that needs more of a client, and may put something around it before it is used.

    A target whose clients are all of one type says so by an attribute `client_type`: then a
    campaign of a workload that they cannot do is refused before anything is started.
    """

    def why_not(self, client: type) -> str | None:
        """Say what clients of that type lack for this workload ("cannot ..."); None if nothing."""
        ...

    def opened(self, client: TargetClient) -> TargetClient:
        """Return the client as this workload uses it, for one process of a history."""
        ...


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
