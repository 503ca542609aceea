"""Sequences of operations and of generators.

Source: jepsen.generator (sequences, concat, limit, once, repeat, synchronize, phases).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat as repeated
from typing import Generic, TypeVar

from shaketable.harness.contracts.plugins import Operation
from shaketable.harness.generators.generator import (
    PENDING,
    Completion,
    Context,
    Due,
    Generator,
    NextOp,
)

Item = TypeVar("Item")


class Lazy(Generic[Item]):
    """The rest of an iterator as an immutable value: read on first use, the same ever after.

    Elements before it are not kept.
    """

    __slots__ = ("_pair", "_source")

    def __init__(self, source: Iterator[Item]) -> None:
        self._source: Iterator[Item] | None = source
        self._pair: tuple[Item, Lazy[Item]] | None = None

    def next(self) -> tuple[Item, Lazy[Item]] | None:
        """Return the first element and the rest; None at the end."""
        source = self._source
        if source is not None:
            self._source = None
            for item in source:
                self._pair = item, Lazy(source)
                break
        return self._pair


def operations(sequence: Iterable[Operation]) -> Generator:
    """Give a sequence's operations in order, each to the first free client."""
    return _Operations(Lazy(iter(sequence)))


def once(operation: Operation) -> Generator:
    """Give this operation once."""
    return operations((operation,))


def repeat(operation: Operation, count: int | None = None) -> Generator:
    """Repeat one operation, `count` times or forever."""
    return operations(repeated(operation) if count is None else repeated(operation, count))


def concat(*parts: Generator) -> Generator:
    """Run the parts in order, each until it is exhausted."""
    return _Concat(parts)


def limit(count: int, generator: Generator) -> Generator:
    """Give at most `count` operations of a generator."""
    return _Limit(count, generator)


def synchronize(generator: Generator) -> Generator:
    """Wait until all clients are free, so that earlier operations have completed, then start."""
    return _Synchronized(generator)


def phases(*parts: Generator) -> Generator:
    """Run the parts in order, each after all operations of the one before have completed."""
    return _Concat(tuple(_Synchronized(part) for part in parts))


@dataclass(frozen=True, slots=True)
class _Operations:
    rest: Lazy[Operation]

    def next_op(self, context: Context) -> NextOp:
        pair = self.rest.next()
        if pair is None:
            return None
        return Due(pair[0], context.free[0], context.now_ns), _Operations(pair[1])

    def update(self, completion: Completion) -> Generator:
        return self


@dataclass(frozen=True, slots=True)
class _Concat:
    parts: tuple[Generator, ...]

    def next_op(self, context: Context) -> NextOp:
        parts = self.parts
        while parts:
            given = parts[0].next_op(context)
            if given is not None:
                return given[0], _Concat((given[1], *parts[1:]))
            parts = parts[1:]
        return None

    def update(self, completion: Completion) -> Generator:
        if not self.parts:
            return self
        first = self.parts[0].update(completion)
        return self if first is self.parts[0] else _Concat((first, *self.parts[1:]))


@dataclass(frozen=True, slots=True)
class _Limit:
    left: int
    inner: Generator

    def next_op(self, context: Context) -> NextOp:
        if self.left <= 0:
            return None
        given = self.inner.next_op(context)
        if given is None:
            return None
        step, inner = given
        return step, _Limit(self.left - (type(step) is Due), inner)

    def update(self, completion: Completion) -> Generator:
        inner = self.inner.update(completion)
        return self if inner is self.inner else _Limit(self.left, inner)


@dataclass(frozen=True, slots=True)
class _Synchronized:
    inner: Generator

    def next_op(self, context: Context) -> NextOp:
        if len(context.free) < len(context.clients):
            return PENDING, self
        return self.inner.next_op(context)

    def update(self, completion: Completion) -> Generator:
        inner = self.inner.update(completion)
        return self if inner is self.inner else _Synchronized(inner)
