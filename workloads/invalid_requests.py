"""The order in which clients of a process try invalid requests."""

from __future__ import annotations

from random import Random


class Untried:
    """The invalid requests that no client of this process has tried yet in this round.

    Independent random choices would leave some untried in a short run: with 23 of them and 50
    tries, each is left out in one run of nine.
    """

    def __init__(self) -> None:
        self._left: list[int] = []

    def take(self, count: int, aim: float) -> int:
        """Take an untried request below `count`; when all are tried, start a new round.

        `aim` sets the order of the new round. `count` differs between clients: one that has read a
        broker's limits knows of more requests.
        """
        known = [number for number in self._left if number < count]
        if not known:
            known = Random(aim).sample(range(count), count)
            self._left += known
        self._left.remove(known[-1])
        return known[-1]
