"""What a generator is asked, and what it answers.

Source: jepsen.generator's protocol (op, update) and its contexts.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from shaketable.harness.contracts.plugins import Answer, Operation


class Context(NamedTuple):
    """What a generator may know when it is asked.

    `now_ns` counts from when the clients began. `clients` are those that it may give something
    to, by their numbers; `free` those of them that have nothing to do, at least one, who waited
    longest (or asks) first.
    """

    now_ns: int
    free: tuple[int, ...]
    clients: tuple[int, ...]


class Due(NamedTuple):
    """An operation, who is to do it, and when: `at_ns` is never before the time of the ask."""

    operation: Operation
    client: int
    at_ns: int


class Wait(NamedTuple):
    """Nothing to do for those who are free, until this time or until something ends."""

    until_ns: int | None = None


class Ended(NamedTuple):
    """What became of an operation that was due: `outcome` is ok, fail or info."""

    client: int
    operation: Operation
    outcome: str
    answer: Answer
    at_ns: int


class Generator(Protocol):
    """A value that says what comes next. Pure: the same question has the same answer."""

    def ask(self, context: Context) -> Given:
        """Return what comes next, and the generator that goes on; None if nothing ever will."""
        ...

    def update(self, ended: Ended) -> Generator:
        """Take note of what became of an operation; return itself if that changes nothing."""
        ...


Given = tuple[Due | Wait, Generator] | None
"""A generator's answer."""
NOTHING_NOW = Wait()
"""Nothing to do until something ends."""


def sooner(one: Wait, other: Wait | None) -> Wait:
    """Return the wait that is over first."""
    if other is None or other.until_ns is None:
        return one
    return other if one.until_ns is None or other.until_ns < one.until_ns else one
