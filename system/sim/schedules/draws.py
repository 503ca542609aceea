"""Random draws of a simulated world: one stream for each link, node and purpose.

A stream is keyed by (seed, name), and its n-th draw depends on nothing else. So a fault that
is removed from a schedule shifts no draw of another stream: that is what lets a failing run
shrink. Names are hashed by blake2b, never by Python's own hash.

Source: SIMULATION.md, section Hypothesis.
"""

from __future__ import annotations

import hashlib
import random


def stream_seed(seed: int, name: str) -> int:
    """Return the number that starts stream `name` of a world with this seed."""
    digest = hashlib.blake2b(name.encode(), digest_size=8, key=b"%d" % seed).digest()
    return int.from_bytes(digest, "big")


class Stream(random.Random):
    """One stream of draws, from its number. `random()` is the cheapest of them."""

    def chance(self, probability: float) -> bool:
        """Return True with that probability; draws once."""
        return self.random() < probability

    def exponential(self, mean: float, largest: float) -> float:
        """Return a number from 0 to `largest`, exponentially distributed; draws once."""
        return min(self.expovariate(1.0 / mean), largest)


def open_stream(seed: int, name: str) -> Stream:
    """Return the stream of that name, from its start."""
    return Stream(stream_seed(seed, name))


class Draws:
    """The streams of one seed, each made when it is first asked for."""

    __slots__ = ("_streams", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, Stream] = {}

    def stream(self, name: str) -> Stream:
        """Return the stream of that name; the same one, further on, when asked again."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = open_stream(self.seed, name)
        return found
