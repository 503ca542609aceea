"""Timing: rates, pauses, think time, time limits. Times are ns since the clients started.

Source: jepsen.generator (stagger, delay, sleep, time-limit); YCSB's target throughput for rates
that catch up after a delay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat as repeated
from random import Random
from typing import Final

from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators.combinators import Lazy
from shaketable.harness.generators.generator import (
    Completion,
    Context,
    Due,
    Generator,
    NextOp,
    Wait,
    sooner,
)

NS: Final = 1_000_000_000
CATCH_UP_MAX_NS: Final = NS
"""After a delay, operations that were missed are made up for: those of this time at most."""


def stagger(mean_s: float, generator: Generator, *, seed: str) -> Generator:
    """Space operations by random gaps, uniform from 0 to twice the mean, over all clients."""
    return _Staggered(generator, Lazy(_gaps(rng_for(seed, "stagger"), mean_s)))


def rate(hz: float, generator: Generator, *, seed: str) -> Generator:
    """Limit operations to `hz` per second on average; 0: as fast as the clients can."""
    return stagger(1 / hz, generator, seed=seed) if hz else generator


def delay(seconds: float, generator: Generator) -> Generator:
    """Space operations by exactly this time, over all clients."""
    return _Staggered(generator, Lazy(repeated(int(seconds * NS))))


def think_time(mean_s: float, generator: Generator, *, seed: str) -> Generator:
    """Let each client pause between the completion of an operation and its next one.

    Uniform from 0 to twice the mean; each client has its own random stream.
    """
    return _Thinking(generator, mean_s, seed, {}) if mean_s else generator


def sleep(seconds: float) -> Generator:
    """Emit nothing for this long, from the first call on."""
    return _Asleep(int(seconds * NS), None)


def time_limit(seconds: float, generator: Generator) -> Generator:
    """Emit only what is due within this time, from the first call on."""
    return _TimeLimit(generator, int(seconds * NS), None)


def _gaps(rng: Random, mean_s: float) -> Iterator[int]:
    while True:
        yield int(rng.uniform(0, 2 * mean_s) * NS)


@dataclass(frozen=True, slots=True)
class _Staggered:
    inner: Generator
    gaps: Lazy[int]
    next_ns: int | None = None

    def next_op(self, context: Context) -> NextOp:
        given = self.inner.next_op(context)
        if given is None:
            return None
        step, inner = given
        if isinstance(step, Wait):
            return step, replace(self, inner=inner)
        pair = self.gaps.next()
        assert pair is not None, "gaps have no end"
        gap_ns, gaps = pair
        next_ns = self.next_ns
        if next_ns is None:  # a random start, so that workers do not start in step
            next_ns = context.now_ns + gap_ns
        else:
            next_ns = max(next_ns, context.now_ns - CATCH_UP_MAX_NS) + gap_ns
        at_ns = max(step.at_ns, next_ns)
        return Due(step.operation, step.client, at_ns), _Staggered(inner, gaps, next_ns)

    def update(self, completion: Completion) -> Generator:
        inner = self.inner.update(completion)
        return self if inner is self.inner else _Staggered(inner, self.gaps, self.next_ns)


@dataclass(frozen=True, slots=True)
class _Thinking:
    inner: Generator
    mean_s: float
    seed: str
    thoughts: Mapping[int, tuple[int, Lazy[int]]]  # client -> end of its pause, remaining gaps

    def next_op(self, context: Context) -> NextOp:
        now_ns, thoughts = context.now_ns, self.thoughts
        ready = tuple(c for c in context.free if c not in thoughts or thoughts[c][0] <= now_ns)
        given = self.inner.next_op(context._replace(free=ready) if ready else context)
        if given is None:
            return None
        step, inner = given
        if isinstance(step, Due):
            if step.client in thoughts:
                step = step._replace(at_ns=max(step.at_ns, thoughts[step.client][0]))
        elif ready and len(ready) < len(context.free):  # ask again when the others are ready
            step = sooner(step, Wait(min(thoughts[c][0] for c in context.free if c not in ready)))
        return step, replace(self, inner=inner)

    def update(self, completion: Completion) -> Generator:
        client = completion.client
        left = self.thoughts[client][1] if client in self.thoughts else None
        pair = (left or Lazy(_gaps(rng_for(self.seed, "think", client), self.mean_s))).next()
        assert pair is not None, "gaps have no end"
        thought = completion.at_ns + pair[0], pair[1]
        inner = self.inner.update(completion)
        return replace(self, inner=inner, thoughts={**self.thoughts, client: thought})


@dataclass(frozen=True, slots=True)
class _Asleep:
    for_ns: int
    until_ns: int | None

    def next_op(self, context: Context) -> NextOp:
        until_ns = context.now_ns + self.for_ns if self.until_ns is None else self.until_ns
        if context.now_ns >= until_ns:
            return None
        return Wait(until_ns), _Asleep(self.for_ns, until_ns)

    def update(self, completion: Completion) -> Generator:
        return self


@dataclass(frozen=True, slots=True)
class _TimeLimit:
    inner: Generator
    for_ns: int
    until_ns: int | None

    def next_op(self, context: Context) -> NextOp:
        until_ns = context.now_ns + self.for_ns if self.until_ns is None else self.until_ns
        if context.now_ns >= until_ns:
            return None
        given = self.inner.next_op(context)
        if given is None:
            return None
        step, inner = given
        if isinstance(step, Due):
            if step.at_ns >= until_ns:
                return None
        elif step.until_ns is None or step.until_ns > until_ns:
            step = Wait(until_ns)
        return step, _TimeLimit(inner, self.for_ns, until_ns)

    def update(self, completion: Completion) -> Generator:
        inner = self.inner.update(completion)
        return self if inner is self.inner else replace(self, inner=inner)
