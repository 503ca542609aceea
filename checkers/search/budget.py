"""The budgets of a search: time, and memory that is counted to the byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

GROWTH = (2.0, 1.5, 1.2)
"""Factors by which an array grows: the first one that fits the budget."""


class MemorySpentError(Exception):
    """The search needs more memory than it may hold."""


class TimeSpentError(Exception):
    """The time for the search is over."""


class Memory:
    """Counts the bytes of the arrays that are held, also of an old one while it is copied."""

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
        """Count arrays as released."""
        self._held -= sum(array.nbytes for array in arrays)

    def larger(self, size: int, element_bytes: int) -> int:
        """Return to how many elements an array may grow; they are not counted yet.

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
    """The budget of an algorithm that allocates by itself, in a few large passes.

    Attributes:
        is_over: returns whether the time is over.
        memory_bytes_max: how much it may hold; None for no limit.
    """

    is_over: Callable[[], bool]
    memory_bytes_max: int | None = None

    def require_memory(self, memory_bytes: int) -> None:
        """Check that the peak memory that the algorithm is going to need is within the limit.

        Raises:
            MemorySpentError: that is more than it may hold.
            TimeSpentError: the time is over.
        """
        if self.memory_bytes_max is not None and memory_bytes > self.memory_bytes_max:
            raise MemorySpentError
        self.check_time()

    def check_time(self) -> None:
        """Check the clock, between two passes.

        Raises:
            TimeSpentError: the time is over.
        """
        if self.is_over():
            raise TimeSpentError


def _never() -> bool:
    return False


UNLIMITED = Limits(_never)
