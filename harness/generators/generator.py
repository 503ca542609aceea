"""The generator protocol: contexts, steps and completions.

Source: jepsen.generator's protocol (op, update) and its contexts.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from shaketable.harness.contracts.plugins import Answer, Operation


class Context(NamedTuple):
    """What a generator knows when it chooses its next step.

    Attributes:
        now_ns: time since the clients started, in ns.
        free: clients without an operation, at least one; the one that waited longest (or asks)
            first.
        clients: all clients that it may give operations to, by number.
    """

    now_ns: int
    free: tuple[int, ...]
    clients: tuple[int, ...]


class Due(NamedTuple):
    """An operation, its client, and its time: `at_ns` is never before the context's `now_ns`."""

    operation: Operation
    client: int
    at_ns: int


class Wait(NamedTuple):
    """Nothing to do for the free clients until this time, or until an operation completes."""

    until_ns: int | None = None


class Completion(NamedTuple):
    """How an operation completed: `outcome` is ok, fail or info."""

    client: int
    operation: Operation
    outcome: str
    answer: Answer
    at_ns: int


class Generator(Protocol):
    """An immutable value that chooses what comes next. Pure: the same call has the same answer."""

    def next_op(self, context: Context) -> NextOp:
        """Return the next step and the generator that follows; None if it is exhausted."""
        ...

    def update(self, completion: Completion) -> Generator:
        """Return the generator after an operation completed; itself if that changes nothing."""
        ...


NextOp = tuple[Due | Wait, Generator] | None
"""A generator's answer."""
PENDING = Wait()
"""Nothing to do until an operation completes."""


def sooner(one: Wait, other: Wait | None) -> Wait:
    """Return the wait that ends first."""
    if other is None or other.until_ns is None:
        return one
    return other if one.until_ns is None or other.until_ns < one.until_ns else one
