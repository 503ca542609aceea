"""Assigning generators to clients: one for each, for some only, or for groups with their own keys.

Also workloads that are defined by generators; see `contracts.plugins.Workload`.

Source: jepsen.generator (each-thread, on-threads, reserve), jepsen.independent
(concurrent-generator).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final, Protocol, runtime_checkable

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Json, Operation, Workload
from shaketable.harness.generators.generator import (
    PENDING,
    Completion,
    Context,
    Due,
    Generator,
    NextOp,
    Wait,
    alone,
    any_of,
    operations,
    sooner,
)

Held = Mapping[int, Generator | None]
"""Generators by client, or by the first client of a group; None: exhausted."""


def each_client(make: Callable[[int], Generator]) -> Generator:
    """Give each client its own generator, made by `make` from the client's number."""
    return _Each(make, {})


def on_clients(belongs: Callable[[int], bool], generator: Generator) -> Generator:
    """Restrict a generator to some of the clients."""
    return _OnClients(belongs, generator)


def reserve(counts: Mapping[int, Generator], default: Generator) -> Generator:
    """Reserve the lowest-numbered clients for generators of their own; the others get the default.

    Args:
        counts: upper bound (exclusive) of client numbers -> generator, in ascending order.
        default: the generator of all other clients.
    """
    bounds = list(counts)
    assert bounds == sorted(set(bounds)), "bounds rise"
    low, parts = 0, []
    for high, generator in counts.items():
        parts.append(on_clients(_Between(low, high), generator))
        low = high
    return any_of(*parts, on_clients(_Between(low, None), default))


def side_by_side(parts: Iterable[tuple[range, Generator]]) -> Generator:
    """Give disjoint ranges of clients their own generators, which number their clients from 0.

    Unlike with `reserve`, no part has priority: if two have an operation now, the one whose client
    has waited longest is taken.

    Args:
        parts: ranges of clients and their generators; no client is in two of them.
    """
    return _SideBySide(tuple(parts))


def per_key(width: int, clients: int, make: Callable[[int], Generator]) -> Generator:
    """Let groups of clients work on keys of their own, one key after another.

    The clients of a worker form groups of `width`; the last group may be smaller. A group runs the
    generator of its first key, then that of its next key, forever. Keys are numbers, and no two
    groups of any worker share one.

    Args:
        width: how many clients work on a key at a time.
        clients: number of clients in all workers.
        make: returns the generator for a key, which has to be finite.
    """
    assert width > 0, "at least one client has to work on a key"
    return _PerKey(width, clients, make, {})


@dataclass(frozen=True, slots=True)
class _Between:
    low: int
    high: int | None

    def __call__(self, client: int) -> bool:
        return client >= self.low and (self.high is None or client < self.high)


@dataclass(frozen=True, slots=True)
class _Each:
    make: Callable[[int], Generator]
    held: Held

    def next_op(self, context: Context) -> NextOp:
        now_ns, held = context.now_ns, self.held
        changed: dict[int, Generator | None] = {}
        best: tuple[Due, Generator] | None = None
        wait: Wait | None = None
        for client in context.free:
            mine = held[client] if client in held else self.make(client)
            if mine is None:
                continue
            given = mine.next_op(Context(now_ns, (client,), (client,)))
            if given is None:
                changed[client] = None
                continue
            step, after = given
            if isinstance(step, Wait):
                wait = sooner(step, wait)
                changed[client] = after
            elif best is None or step.at_ns < best[0].at_ns:
                best = step, after
        if best is not None:
            due, after = best
            return due, _Each(self.make, {**held, **changed, due.client: after})
        held = {**held, **changed}
        if all(client in held and held[client] is None for client in context.clients):
            return None
        return wait or PENDING, _Each(self.make, held)

    def update(self, completion: Completion) -> Generator:
        mine = self.held.get(completion.client)
        if mine is None:
            return self
        after = mine.update(completion)
        if after is mine:
            return self
        return _Each(self.make, {**self.held, completion.client: after})


@dataclass(frozen=True, slots=True)
class _OnClients:
    belongs: Callable[[int], bool]
    inner: Generator

    def next_op(self, context: Context) -> NextOp:
        free = tuple(filter(self.belongs, context.free))
        clients = tuple(filter(self.belongs, context.clients))
        if not clients:
            return None  # none of its clients is in this worker
        if not free:
            return PENDING, self
        given = self.inner.next_op(Context(context.now_ns, free, clients))
        return None if given is None else (given[0], _OnClients(self.belongs, given[1]))

    def update(self, completion: Completion) -> Generator:
        if not self.belongs(completion.client):
            return self
        inner = self.inner.update(completion)
        return self if inner is self.inner else _OnClients(self.belongs, inner)


@dataclass(frozen=True, slots=True)
class _SideBySide:
    parts: tuple[tuple[range, Generator], ...]

    def next_op(self, context: Context) -> NextOp:
        waiting = dict.fromkeys(
            place
            for client in context.free
            for place, (clients, _) in enumerate(self.parts)
            if client in clients
        )
        left = dict(enumerate(self.parts))
        best: tuple[int, Due, Generator] | None = None
        wait: Wait | None = None
        for place in waiting:
            clients, inner = self.parts[place]
            given = inner.next_op(_numbered_from_0(context, clients))
            if given is None:
                del left[place]
            elif isinstance(given[0], Wait):
                wait = sooner(given[0], wait)
                left[place] = clients, given[1]
            elif best is None or given[0].at_ns < best[1].at_ns:
                best = place, given[0], given[1]
        if best is not None:
            place, due, after = best
            clients = self.parts[place][0]
            left[place] = clients, after
            due = due._replace(client=due.client + clients.start)
            return due, _SideBySide(tuple(left.values()))
        # A part without a free client, or without any client in this worker, stays as it is.
        here = (set(clients).intersection(context.clients) for clients, _ in left.values())
        return (wait or PENDING, _SideBySide(tuple(left.values()))) if any(here) else None

    def update(self, completion: Completion) -> Generator:
        for place, (clients, inner) in enumerate(self.parts):
            if completion.client in clients:
                after = inner.update(completion._replace(client=completion.client - clients.start))
                if after is inner:
                    return self
                parts = (*self.parts[:place], (clients, after), *self.parts[place + 1 :])
                return _SideBySide(parts)
        return self


def _numbered_from_0(context: Context, clients: range) -> Context:
    free = tuple(client - clients.start for client in context.free if client in clients)
    mine = tuple(client - clients.start for client in context.clients if client in clients)
    return Context(context.now_ns, free, mine)


KEYS_TRIED_MAX: Final = 1000
"""Limit on consecutive keys whose generators are empty."""


@dataclass(frozen=True, slots=True)
class _PerKey:
    width: int
    clients: int
    make: Callable[[int], Generator]
    groups: Mapping[tuple[int, ...], tuple[int, Generator]]  # members -> current key, generator

    def next_op(self, context: Context) -> NextOp:
        wait: Wait | None = None
        groups = dict(self.groups)
        for members in self._groups_of(context):
            free = tuple(client for client in context.free if client in members)
            step, key, after = self._next_op(members, Context(context.now_ns, free, members))
            groups[members] = key, after
            if isinstance(step, Due):
                return step, _PerKey(self.width, self.clients, self.make, groups)
            wait = sooner(step, wait)
        return wait or PENDING, _PerKey(self.width, self.clients, self.make, groups)

    def update(self, completion: Completion) -> Generator:
        for members, (key, generator) in self.groups.items():
            if completion.client in members:
                after = generator.update(completion)
                if after is generator:
                    return self
                groups = {**self.groups, members: (key, after)}
                return _PerKey(self.width, self.clients, self.make, groups)
        return self

    def _next_op(
        self, members: tuple[int, ...], context: Context
    ) -> tuple[Due | Wait, int, Generator]:
        """Ask the group's generator, or that of its next key if it is exhausted."""
        key, generator = self.groups.get(members) or (members[0], self.make(members[0]))
        for _ in range(KEYS_TRIED_MAX):
            given = generator.next_op(context)
            if given is not None:
                return given[0], key, given[1]
            key += self.clients
            generator = self.make(key)
        raise ValueError(f"per_key: {KEYS_TRIED_MAX} keys before key {key} have nothing to do")

    def _groups_of(self, context: Context) -> list[tuple[int, ...]]:
        """Return the groups with a free client, ordered by who has waited longest."""
        found = []
        for client in context.free:
            at = context.clients.index(client) // self.width * self.width
            group = context.clients[at : at + self.width]
            if group not in found:
                found.append(group)
        return found


# How operations are spread over keys: hot keys, and few clients for a key.
#
# Source: YCSB's Zipfian request distribution; jepsen.independent for clients with keys of their
# own.


KEYS_MAX: Final = 1_000
"""Most lists, registers or accounts that transactions are about."""


def number_of_keys(workload: str, options: Json, default: int, least: int = 1) -> int:
    """Return options["queues"]: how many keys the transactions of a workload are about.

    Raises:
        UsageError: that is no such number.
    """
    keys = options.get("queues", default)
    if not isinstance(keys, int) or isinstance(keys, bool) or not least <= keys <= KEYS_MAX:
        raise UsageError(f"workload {workload}: queues is {keys!r}, not {least} to {KEYS_MAX}")
    return keys


@dataclass(frozen=True, slots=True)
class KeySpread:
    """How operations are spread over keys, which are numbers from 0.

    Attributes:
        keys: number of keys.
        skew: Zipf exponent: the n-th key is chosen 1/n**skew as often as the first; 0: uniform.
        clients_per_key: groups of this many clients share out the keys, so that each key is used by
            one group alone; 0: all clients use all keys.
    """

    keys: int
    skew: float = 0.0
    clients_per_key: int = 0

    @classmethod
    def of_options(cls, workload: str, options: Json, keys: int) -> KeySpread:
        """Return the spread for a campaign's options; `keys` is the workload's default number.

        Raises:
            UsageError: an option has an invalid value.
        """
        where = f"workload {workload}:"
        queues = options.get("queues", keys)
        if not isinstance(queues, int) or queues < 1:
            raise UsageError(f"{where} queues {queues!r}: expected a number from 1")
        skew = options.get("key_skew", 0.0)
        if not isinstance(skew, int | float) or skew < 0:
            raise UsageError(f"{where} key_skew {skew!r}: expected a number from 0")
        width, clients = width_of(workload, options), options.get("clients", 0)
        if width and groups_of(clients, width) > queues:
            groups = groups_of(clients, width)
            raise UsageError(
                f"{where} clients_per_key {width} of {clients} clients: {groups} groups need"
                f" {groups} queues, there are {queues}"
            )
        return cls(queues, float(skew), width)

    def of_client(self, client: int, clients: int) -> ClientKeys:
        """Return this client's keys, of `clients` clients in all."""
        keys = range(self.keys)
        if self.clients_per_key:
            groups = groups_of(clients, self.clients_per_key)
            group = client // self.clients_per_key
            keys = range(group, self.keys, groups) or range(group % self.keys, self.keys, self.keys)
        if not self.skew:
            return ClientKeys(keys)
        weights = [1 / (place + 1) ** self.skew for place in range(len(keys))]
        return ClientKeys(keys, tuple(accumulate(weights)))


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """The keys of one client; `sums` are cumulative weights, () for uniform."""

    keys: range
    sums: tuple[float, ...] = ()

    def choose(self, rng: Random) -> int:
        """Choose a key at random."""
        if not self.sums:
            return self.keys[rng.randrange(len(self.keys))]
        at = rng.random() * self.sums[-1]
        return self.keys[min(bisect_right(self.sums, at), len(self.keys) - 1)]


def width_of(workload: str, options: Json) -> int:
    """Return how many clients use a key, by a campaign's options; 0: all.

    Raises:
        UsageError: it is not a number of clients.
    """
    width = options.get("clients_per_key", 0)
    if not isinstance(width, int) or width < 0:
        raise UsageError(
            f"workload {workload}: clients_per_key {width!r}: expected a number from 0"
        )
    return width


def groups_of(clients: int, width: int) -> int:
    """Return the number of groups of `width` clients; the last may be smaller."""
    return -(-clients // width)


# Workloads that are defined by generators.


@runtime_checkable
class GeneratedWorkload(Workload, Protocol):
    """A workload whose operations come from one generator for all clients of a worker.

    Its per-client methods (`operations`, `final_operations`) are not used then. A class that
    derives from this has operations without offsets, unless it says otherwise.
    """

    def operations(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Generate the operations of a single client."""
        return alone(self.generator(seed, clients), client)

    def choose_offset(self, operation: Operation, end_seen: int) -> int | None:
        """Return None: there are no offsets."""
        return None

    def end_shown(self, operation: Operation, output: int | None, offset: int | None) -> int:
        """Return 0: there are no offsets."""
        return 0

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do until stopped; `clients` is their number in all workers."""
        ...

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Return what is done after the heal; `keys` are those with at least one ok operation.

        Each operation is retried by its client until it is ok.
        """
        ...


def generator_of(workload: Workload, seed: str, clients: int) -> Generator:
    """Return the generator of any workload."""
    if isinstance(workload, GeneratedWorkload):
        return workload.generator(seed, clients)
    return each_client(lambda client: operations(workload.operations(seed, client, clients)))


def final_generator_of(
    workload: Workload, seed: str, clients: int, keys: Sequence[str]
) -> Generator:
    """Return the generator of any workload's final operations, after the heal."""
    if isinstance(workload, GeneratedWorkload):
        return workload.final_generator(seed, clients, keys)
    return each_client(lambda client: operations(workload.final_operations(client, clients)))
