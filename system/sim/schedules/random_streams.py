"""Random streams of a simulated world: one for each link, node and purpose.

A stream is keyed by (seed, name), and its n-th number depends on nothing else. So removing a fault
from a schedule changes no other stream, which is what lets a failing run shrink. Names are hashed
by blake2b, never by Python's hash, which differs between processes.

Source: SIMULATION.md, section Hypothesis.
"""

from __future__ import annotations

import hashlib
import random


def stream_seed(seed: int, name: str) -> int:
    """Return the number that seeds stream `name` of a world with this seed."""
    digest = hashlib.blake2b(name.encode(), digest_size=8, key=b"%d" % seed).digest()
    return int.from_bytes(digest, "big")


class RandomStream(random.Random):
    """One random stream. `random()` is its cheapest method."""

    def chance(self, probability: float) -> bool:
        """Return True with that probability; consumes one number."""
        return self.random() < probability

    def exponential(self, mean: float, largest: float) -> float:
        """Return an exponentially distributed number, at most `largest`; consumes one number."""
        return min(self.expovariate(1.0 / mean), largest)


def open_stream(seed: int, name: str) -> RandomStream:
    """Return the stream of that name, from its start."""
    return RandomStream(stream_seed(seed, name))


class RandomStreams:
    """The streams of one seed, each created on first use."""

    __slots__ = ("_streams", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, RandomStream] = {}

    def stream(self, name: str) -> RandomStream:
        """Return the stream of that name; later calls return the same, advanced stream."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = open_stream(self.seed, name)
        return found
