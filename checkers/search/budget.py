"""What a search may spend: memory, counted to the byte and kept below a limit, and time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

GROWTH = (2.0, 1.5, 1.2)
"""By how much an array grows: the first factor that fits the budget."""


class MemorySpentError(Exception):
    """The search needs more bytes than it may hold."""


class TimeSpentError(Exception):
    """The time for the search is over."""


class Memory:
    """Counts the bytes of arrays that are held, the old one beside the new one as well."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._held = 0
        self.bytes_max = 0

    def take(self, count: int) -> None:
        """Count more bytes as held.

        Raises:
            MemorySpentError: they do not fit.
        """
        if count > self._left - self._held:
            raise MemorySpentError
        self._held += count
        self.bytes_max = max(self.bytes_max, self._held)

    def take_all(self, arrays: Iterable[npt.NDArray[np.generic]]) -> None:
        """Count arrays as held."""
        self.take(sum(array.nbytes for array in arrays))

    def give_back(self, arrays: Iterable[npt.NDArray[np.generic]]) -> None:
        """Count arrays as held no more."""
        self._held -= sum(array.nbytes for array in arrays)

    def larger(self, size: int, element_bytes: int) -> int:
        """Return how many elements fit after growing; they are not taken yet.

        Raises:
            MemorySpentError: not even the smallest growth fits.
        """
        for factor in GROWTH:
            grown = int(size * factor) + 1
            if grown * element_bytes <= self._left - self._held:
                return grown
        raise MemorySpentError


@dataclass(frozen=True, slots=True)
class Limits:
    """What an algorithm may spend that allocates by itself, in a few large passes.

    Attributes:
        is_over: says whether the time is over.
        memory_bytes_max: how much it may hold; None for as much as it wants.
    """

    is_over: Callable[[], bool]
    memory_bytes_max: int | None = None

    def begin(self, memory_bytes: int) -> None:
        """Ask for all the memory that the algorithm is going to need at a time.

        Raises:
            MemorySpentError: that is more than it may hold.
            TimeSpentError: the time is over.
        """
        if self.memory_bytes_max is not None and memory_bytes > self.memory_bytes_max:
            raise MemorySpentError
        self.look()

    def look(self) -> None:
        """Look at the clock, between two passes.

        Raises:
            TimeSpentError: the time is over.
        """
        if self.is_over():
            raise TimeSpentError


def _never() -> bool:
    return False


UNLIMITED = Limits(_never)
