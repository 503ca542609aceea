"""Who: each client its own, some clients only, groups of clients with keys of their own.

Source: jepsen.generator (each-thread, on-threads, reserve), jepsen.independent
(concurrent-generator).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.generators.choices import any_of
from shaketable.harness.generators.generator import (
    NOTHING_NOW,
    Context,
    Due,
    Ended,
    Generator,
    Given,
    Wait,
    sooner,
)

Held = Mapping[int, Generator | None]
"""Generators by client, or by the first client of a group; None: it has no more."""


def each_client(make: Callable[[int], Generator]) -> Generator:
    """Give each client what its own generator gives: `make` is called with its number."""
    return _Each(make, {})


def on_clients(belongs: Callable[[int], bool], generator: Generator) -> Generator:
    """Give a generator's operations to some of the clients alone."""
    return _OnClients(belongs, generator)


def reserve(counts: Mapping[int, Generator], default: Generator) -> Generator:
    """Give the clients with the lowest numbers generators of their own, the others the default.

    Args:
        counts: up to which number (exclusive) clients have which generator, in rising order.
        default: what all others have.
    """
    bounds = list(counts)
    assert bounds == sorted(set(bounds)), "bounds rise"
    low, parts = 0, []
    for high, generator in counts.items():
        parts.append(on_clients(_Between(low, high), generator))
        low = high
    return any_of(*parts, on_clients(_Between(low, None), default))


def side_by_side(parts: Iterable[tuple[range, Generator]]) -> Generator:
    """Give neighbouring clients a generator of their own, which knows them by numbers from 0.

    Unlike with `reserve`, no part comes before another: of two that have something now, the one
    whose client has waited longest is asked.

    Args:
        parts: which clients, and their generator; no client is in two of them.
    """
    return _SideBySide(tuple(parts))


def per_key(width: int, clients: int, make: Callable[[int], Generator]) -> Generator:
    """Let groups of clients work on keys of their own, one key after another.

    The clients of a worker form groups of `width`, the last of what is left. Each group does what
    `make` gives for its first key, then for its next one, without end. Keys are numbers; no two
    groups have the same, in whichever worker.

    Args:
        width: how many clients work on a key at a time.
        clients: how many there are in all workers.
        make: returns what is done with the key of that number, which has to come to an end.
    """
    assert width > 0, "somebody has to work on a key"
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

    def ask(self, context: Context) -> Given:
        now_ns, held = context.now_ns, self.held
        changed: dict[int, Generator | None] = {}
        best: tuple[Due, Generator] | None = None
        wait: Wait | None = None
        for client in context.free:
            mine = held[client] if client in held else self.make(client)
            if mine is None:
                continue
            given = mine.ask(Context(now_ns, (client,), (client,)))
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
        return wait or NOTHING_NOW, _Each(self.make, held)

    def update(self, ended: Ended) -> Generator:
        mine = self.held.get(ended.client)
        if mine is None:
            return self
        after = mine.update(ended)
        if after is mine:
            return self
        return _Each(self.make, {**self.held, ended.client: after})


@dataclass(frozen=True, slots=True)
class _OnClients:
    belongs: Callable[[int], bool]
    inner: Generator

    def ask(self, context: Context) -> Given:
        free = tuple(filter(self.belongs, context.free))
        clients = tuple(filter(self.belongs, context.clients))
        if not clients:
            return None  # none of them is in this worker
        if not free:
            return NOTHING_NOW, self
        given = self.inner.ask(Context(context.now_ns, free, clients))
        return None if given is None else (given[0], _OnClients(self.belongs, given[1]))

    def update(self, ended: Ended) -> Generator:
        if not self.belongs(ended.client):
            return self
        inner = self.inner.update(ended)
        return self if inner is self.inner else _OnClients(self.belongs, inner)


@dataclass(frozen=True, slots=True)
class _SideBySide:
    parts: tuple[tuple[range, Generator], ...]

    def ask(self, context: Context) -> Given:
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
            given = inner.ask(_numbered_from_0(context, clients))
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
        # A part of which nobody is free, or is in this worker, is asked another time.
        here = (set(clients).intersection(context.clients) for clients, _ in left.values())
        return (wait or NOTHING_NOW, _SideBySide(tuple(left.values()))) if any(here) else None

    def update(self, ended: Ended) -> Generator:
        for place, (clients, inner) in enumerate(self.parts):
            if ended.client in clients:
                after = inner.update(ended._replace(client=ended.client - clients.start))
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
"""So many keys in a row may turn out to have nothing to do."""


@dataclass(frozen=True, slots=True)
class _PerKey:
    width: int
    clients: int
    make: Callable[[int], Generator]
    groups: Mapping[tuple[int, ...], tuple[int, Generator]]  # its members: its key, what it does

    def ask(self, context: Context) -> Given:
        wait: Wait | None = None
        groups = dict(self.groups)
        for members in self._groups_of(context):
            free = tuple(client for client in context.free if client in members)
            step, key, after = self._ask(members, Context(context.now_ns, free, members))
            groups[members] = key, after
            if isinstance(step, Due):
                return step, _PerKey(self.width, self.clients, self.make, groups)
            wait = sooner(step, wait)
        return wait or NOTHING_NOW, _PerKey(self.width, self.clients, self.make, groups)

    def update(self, ended: Ended) -> Generator:
        for members, (key, generator) in self.groups.items():
            if ended.client in members:
                after = generator.update(ended)
                if after is generator:
                    return self
                groups = {**self.groups, members: (key, after)}
                return _PerKey(self.width, self.clients, self.make, groups)
        return self

    def _ask(self, members: tuple[int, ...], context: Context) -> tuple[Due | Wait, int, Generator]:
        """Ask a group's generator, or that of its next key where one is done."""
        key, generator = self.groups.get(members) or (members[0], self.make(members[0]))
        for _ in range(KEYS_TRIED_MAX):
            given = generator.ask(context)
            if given is not None:
                return given[0], key, given[1]
            key += self.clients
            generator = self.make(key)
        raise ValueError(f"per_key: {KEYS_TRIED_MAX} keys before key {key} have nothing to do")

    def _groups_of(self, context: Context) -> list[tuple[int, ...]]:
        """Return the groups that have a free client, the one that waited longest first."""
        found = []
        for client in context.free:
            at = context.clients.index(client) // self.width * self.width
            group = context.clients[at : at + self.width]
            if group not in found:
                found.append(group)
        return found


# Which keys a client works on, and how often it chooses each: hot keys, few clients for a key.
#
# Source: YCSB's Zipfian request distribution; jepsen.independent for clients with keys of their
# own.


@dataclass(frozen=True, slots=True)
class KeySpread:
    """How operations are spread over keys, which are numbers from 0.

    `skew` says how hot the first keys are: the n-th is chosen 1/n**skew as often as the first;
    0: all alike. With `clients_per_key` each key is used by so many clients alone: groups of
    clients share out the keys. 0: all clients use all keys.
    """

    keys: int
    skew: float = 0.0
    clients_per_key: int = 0

    @classmethod
    def of_options(cls, workload: str, options: Json, keys: int) -> KeySpread:
        """Return the spread that a campaign's options ask for; `keys` are a workload's own.

        Raises:
            UsageError: an option has a value that no workload can take.
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
        """Return which keys are this client's among so many clients in all."""
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
    """The keys of one client; `sums` of the weights by which it chooses, () for all alike."""

    keys: range
    sums: tuple[float, ...] = ()

    def choose(self, rng: Random) -> int:
        """Draw a key."""
        if not self.sums:
            return self.keys[rng.randrange(len(self.keys))]
        at = rng.random() * self.sums[-1]
        return self.keys[min(bisect_right(self.sums, at), len(self.keys) - 1)]


def width_of(workload: str, options: Json) -> int:
    """Return how many clients are to use a key, as a campaign's options say; 0: all.

    Raises:
        UsageError: that is no number of clients.
    """
    width = options.get("clients_per_key", 0)
    if not isinstance(width, int) or width < 0:
        raise UsageError(
            f"workload {workload}: clients_per_key {width!r}: expected a number from 0"
        )
    return width


def groups_of(clients: int, width: int) -> int:
    """Return into how many groups of `width` so many clients fall, the last one smaller."""
    return -(-clients // width)
