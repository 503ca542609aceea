"""One thing after another: sequences of operations, and of generators.

Source: jepsen.generator (sequences, concat, limit, once, repeat, synchronize, phases).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat as repeated
from typing import Generic, TypeVar

from shaketable.harness.contracts.plugins import Operation
from shaketable.harness.generators.generator import (
    NOTHING_NOW,
    Context,
    Due,
    Ended,
    Generator,
    Given,
)

Item = TypeVar("Item")


class Lazy(Generic[Item]):
    """The rest of a sequence: read when it is first looked at, and the same ever after.

    That makes a value of an iterator. What is in front of the rest is kept by nobody.
    """

    __slots__ = ("_pair", "_source")

    def __init__(self, source: Iterator[Item]) -> None:
        self._source: Iterator[Item] | None = source
        self._pair: tuple[Item, Lazy[Item]] | None = None

    def next(self) -> tuple[Item, Lazy[Item]] | None:
        """Return the first element and what follows it; None at the end."""
        source = self._source
        if source is not None:
            self._source = None
            for item in source:
                self._pair = item, Lazy(source)
                break
        return self._pair


def operations(sequence: Iterable[Operation]) -> Generator:
    """Give a sequence's operations, one after another, each to whoever is free first."""
    return _Operations(Lazy(iter(sequence)))


def once(operation: Operation) -> Generator:
    """Give this one operation."""
    return operations((operation,))


def repeat(operation: Operation, count: int | None = None) -> Generator:
    """Give one operation again and again, without end or so often."""
    return operations(repeated(operation) if count is None else repeated(operation, count))


def concat(*parts: Generator) -> Generator:
    """Give what each part gives, one part after the other: the next when there is no more."""
    return _Concat(parts)


def limit(count: int, generator: Generator) -> Generator:
    """Give so many operations of a generator and no more."""
    return _Limit(count, generator)


def synchronize(generator: Generator) -> Generator:
    """Begin when all clients are free: what went before has ended."""
    return _Synchronized(generator)


def phases(*parts: Generator) -> Generator:
    """Give one part after another, each when all operations of the one before have ended."""
    return _Concat(tuple(_Synchronized(part) for part in parts))


@dataclass(frozen=True, slots=True)
class _Operations:
    rest: Lazy[Operation]

    def ask(self, context: Context) -> Given:
        pair = self.rest.next()
        if pair is None:
            return None
        return Due(pair[0], context.free[0], context.now_ns), _Operations(pair[1])

    def update(self, ended: Ended) -> Generator:
        return self


@dataclass(frozen=True, slots=True)
class _Concat:
    parts: tuple[Generator, ...]

    def ask(self, context: Context) -> Given:
        parts = self.parts
        while parts:
            given = parts[0].ask(context)
            if given is not None:
                return given[0], _Concat((given[1], *parts[1:]))
            parts = parts[1:]
        return None

    def update(self, ended: Ended) -> Generator:
        if not self.parts:
            return self
        first = self.parts[0].update(ended)
        return self if first is self.parts[0] else _Concat((first, *self.parts[1:]))


@dataclass(frozen=True, slots=True)
class _Limit:
    left: int
    inner: Generator

    def ask(self, context: Context) -> Given:
        if self.left <= 0:
            return None
        given = self.inner.ask(context)
        if given is None:
            return None
        step, inner = given
        return step, _Limit(self.left - (type(step) is Due), inner)

    def update(self, ended: Ended) -> Generator:
        inner = self.inner.update(ended)
        return self if inner is self.inner else _Limit(self.left, inner)


@dataclass(frozen=True, slots=True)
class _Synchronized:
    inner: Generator

    def ask(self, context: Context) -> Given:
        if len(context.free) < len(context.clients):
            return NOTHING_NOW, self
        return self.inner.ask(context)

    def update(self, ended: Ended) -> Generator:
        inner = self.inner.update(ended)
        return self if inner is self.inner else _Synchronized(inner)
