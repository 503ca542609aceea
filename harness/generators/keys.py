"""Which keys a client works on, and how often it chooses each: hot keys, few clients for a key.

Source: YCSB's Zipfian request distribution; jepsen.independent for clients with keys of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Json


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
