"""In which order the clients of a process ask for what must be refused."""

from __future__ import annotations

from random import Random


class Unasked:
    """What no client of this process has asked for yet, in this round.

    In a short run a die for each leaves some out: with 23 of them and 50 throws, each in one run of
    nine.
    """

    def __init__(self) -> None:
        self._left: list[int] = []

    def draw(self, count: int, aim: float) -> int:
        """Take one of `count` that is left; where none is, all come back in an order by `aim`.

        A client may know of more than others do, of brokers whose limits it has read.
        """
        known = [number for number in self._left if number < count]
        if not known:
            known = Random(aim).sample(range(count), count)
            self._left += known
        self._left.remove(known[-1])
        return known[-1]
