"""The generator protocol, and generators of operations and of other generators, by choice or time.

The protocol: contexts, steps and completions. Combinators go through generators in sequence or by
choice. Timing: rates, pauses, think time, time limits; times are ns since the clients started.

Source: jepsen.generator: its protocol (op, update) and its contexts; sequences, concat, limit,
once, repeat, synchronize, phases, mix, any, until-ok; stagger, delay, sleep, time-limit. YCSB's
target throughput for rates that catch up after a delay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import accumulate
from itertools import repeat as repeated
from random import Random
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from shaketable.harness.contracts.plugins import Answer, Operation
from shaketable.harness.contracts.rng import rng_for


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


# Combinators.

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


# Timing.

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


# Play a generator without clients: what would be done when, for given operation times.
#
# For tests of generators, and to preview one before a campaign.
#
# Source: jepsen.generator.test (simulate, quick, perfect).

AT_ONCE = 0
STEPS_MAX = 1_000_000
"""A generator that has not ended after so many steps is taken to be endless."""


@dataclass(frozen=True, slots=True)
class Played:
    """An operation as played: its client, from when to when, its outcome and its answer."""

    operation: Operation
    client: int
    call_ns: int
    return_ns: int
    outcome: str
    answer: Answer


Life = Callable[[Due], tuple[int, str, Answer]]
"""How long an operation takes (ns), its outcome, and its answer."""


def well(due: Due) -> tuple[int, str, Answer]:
    """Let every operation take 1 ms and be ok."""
    return 1_000_000, "ok", Answer()


@dataclass(slots=True)
class _Stage:
    clients: tuple[int, ...]
    life: Life
    free: list[int]
    now_ns: int = 0
    open: list[tuple[int, int, Due, str, Answer]] = field(default_factory=list)  # a heap, by end


def play(
    generator: Generator,
    clients: int | tuple[int, ...],
    life: Life = well,
    *,
    operations_max: int = 10_000,
    until_ns: int | None = None,
) -> list[Played]:
    """Return the operations that a generator gives these clients, in the order of their calls.

    Args:
        generator: what to play; it is not changed.
        clients: number of clients, numbered from 0, or their numbers.
        life: how each operation goes.
        operations_max: stop after this many operations.
        until_ns: start nothing at this time or later.
    """
    who = tuple(range(clients)) if isinstance(clients, int) else clients
    stage = _Stage(who, life, list(who))
    played: list[Played] = []
    for _ in range(STEPS_MAX):
        if len(played) >= operations_max:
            break
        wait = Wait()
        if stage.free:
            given = generator.next_op(Context(stage.now_ns, tuple(stage.free), who))
            if given is None:
                break
            step, generator = given
            if isinstance(step, Due):
                assert step.client in stage.free, f"client {step.client} is busy"
                assert step.at_ns >= stage.now_ns, "nothing is due in the past"
                if until_ns is not None and step.at_ns >= until_ns:
                    stage.free.remove(step.client)  # this client is done
                else:
                    played.append(_begin(stage, step))
                continue
            wait = step
        if not stage.open and wait.until_ns is None:
            break  # deadlock: every client waits for another
        generator = _go_on(stage, wait, generator)
        if until_ns is not None and stage.now_ns >= until_ns:
            break
    else:
        raise ValueError(f"the generator is not through after {STEPS_MAX} questions")
    return sorted(played, key=lambda one: one.call_ns)


def alone(generator: Generator, client: int) -> Iterator[Operation]:
    """Return the operations of a single client whose every operation is ok at once."""
    now_ns = 0
    while (given := generator.next_op(Context(now_ns, (client,), (client,)))) is not None:
        step, generator = given
        if isinstance(step, Due):
            now_ns = step.at_ns
            yield step.operation
            generator = generator.update(Completion(client, step.operation, "ok", Answer(), now_ns))
        elif step.until_ns is None:
            return
        else:
            now_ns = max(now_ns, step.until_ns)


def _begin(stage: _Stage, due: Due) -> Played:
    took_ns, outcome, answer = stage.life(due)
    stage.free.remove(due.client)
    end_ns = due.at_ns + took_ns
    heappush(stage.open, (end_ns, due.client, due, outcome, answer))
    return Played(due.operation, due.client, due.at_ns, end_ns, outcome, answer)


def _go_on(stage: _Stage, wait: Wait, generator: Generator) -> Generator:
    """Advance time to the next completion, or to the end of the wait if that is sooner."""
    until_ns = wait.until_ns
    if not stage.open or (until_ns is not None and until_ns < stage.open[0][0]):
        assert until_ns is not None
        stage.now_ns = max(stage.now_ns, until_ns)
        return generator
    end_ns, client, due, outcome, answer = heappop(stage.open)
    stage.now_ns = max(stage.now_ns, end_ns)
    stage.free.append(client)
    return generator.update(Completion(client, due.operation, outcome, answer, end_ns))
