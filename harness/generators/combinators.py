"""Combinators: generators of operations and of other generators, in sequence or by choice.

Source: jepsen.generator (sequences, concat, limit, once, repeat, synchronize, phases, mix, any,
until-ok).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from itertools import repeat as repeated
from random import Random
from typing import Generic, TypeVar

from shaketable.harness.contracts.plugins import Operation
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators.generator import (
    PENDING,
    Completion,
    Context,
    Due,
    Generator,
    NextOp,
    Wait,
    sooner,
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


# ---- choices: at random, the soonest, or again until one operation is ok ---------------------


def mix(*parts: Generator, seed: str, weights: Sequence[float] | None = None) -> Generator:
    """Choose a part at random for each operation; an exhausted part drops out.

    Args:
        parts: what to choose among.
        seed: seed of the random choices.
        weights: relative frequencies of the parts; equal if omitted.
    """
    shares = tuple(weights) if weights is not None else (1.0,) * len(parts)
    assert len(shares) == len(parts), "a weight for each part"
    assert all(share > 0 for share in shares), "weights are above 0"
    return _Mix(parts, shares, Lazy(_rolls(rng_for(seed, "mix"))))


def any_of(*parts: Generator) -> Generator:
    """Take the operation that is due first; at the same time, the first part's."""
    return _Any(parts)


def until_ok(generator: Generator) -> Generator:
    """Repeat a generator's operations until one of them is ok."""
    return _UntilOk(generator, frozenset(), is_done=False)


def _rolls(rng: Random) -> Iterator[float]:
    while True:
        yield rng.random()


@dataclass(frozen=True, slots=True)
class _Mix:
    parts: tuple[Generator, ...]
    shares: tuple[float, ...]
    rolls: Lazy[float]

    def next_op(self, context: Context) -> NextOp:
        roll = self.rolls.next()
        assert roll is not None, "rolls have no end"
        parts, shares = list(self.parts), list(self.shares)
        wait: Wait | None = None
        while parts:
            chosen = _chosen(shares, roll[0])
            # Try the chosen part first. If it is pending, try the others in order.
            for number in (chosen, *(n for n in range(len(parts)) if n != chosen)):
                given = parts[number].next_op(context)
                if given is None:
                    del parts[number], shares[number]
                    break
                step, parts[number] = given
                if isinstance(step, Due):
                    return step, _Mix(tuple(parts), tuple(shares), roll[1])
                wait = sooner(step, wait)
            else:
                return wait or PENDING, _Mix(tuple(parts), tuple(shares), self.rolls)
        return None

    def update(self, completion: Completion) -> Generator:
        parts = _updated(self.parts, completion)
        return self if parts is self.parts else _Mix(parts, self.shares, self.rolls)


@dataclass(frozen=True, slots=True)
class _Any:
    parts: tuple[Generator, ...]

    def next_op(self, context: Context) -> NextOp:
        kept: list[Generator] = []
        best: tuple[int, Due, Generator] | None = None
        wait: Wait | None = None
        for part in self.parts:
            given = part.next_op(context)
            if given is None:
                continue
            step, after = given
            if isinstance(step, Wait):
                wait = sooner(step, wait)
                kept.append(after)
                continue
            if best is None or step.at_ns < best[1].at_ns:
                best = len(kept), step, after
            kept.append(part)  # unchanged: its operation was not taken
        if best is not None:
            kept[best[0]] = best[2]
            return best[1], _Any(tuple(kept))
        return (wait or PENDING, _Any(tuple(kept))) if kept else None

    def update(self, completion: Completion) -> Generator:
        parts = _updated(self.parts, completion)
        return self if parts is self.parts else _Any(parts)


@dataclass(frozen=True, slots=True)
class _UntilOk:
    inner: Generator
    open: frozenset[int]
    is_done: bool

    def next_op(self, context: Context) -> NextOp:
        if self.is_done:
            return None
        given = self.inner.next_op(context)
        if given is None:
            return None
        step, inner = given
        open_ = self.open | {step.client} if isinstance(step, Due) else self.open
        return step, _UntilOk(inner, open_, is_done=False)

    def update(self, completion: Completion) -> Generator:
        inner = self.inner.update(completion)
        if completion.client not in self.open:
            return self if inner is self.inner else _UntilOk(inner, self.open, self.is_done)
        is_done = self.is_done or completion.outcome == "ok"
        return _UntilOk(inner, self.open - {completion.client}, is_done)


def _chosen(shares: Sequence[float], roll: float) -> int:
    """Return the index of the share that `roll`, in [0, 1), falls into."""
    sums = list(accumulate(shares))
    at = roll * sums[-1]
    return next((number for number, bound in enumerate(sums) if at < bound), len(sums) - 1)


def _updated(parts: tuple[Generator, ...], completion: Completion) -> tuple[Generator, ...]:
    """Update all parts; return the same tuple if none changed."""
    after = tuple(part.update(completion) for part in parts)
    is_same = all(one is other for one, other in zip(parts, after, strict=True))
    return parts if is_same else after
