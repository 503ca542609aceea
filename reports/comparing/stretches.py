"""Cuts the time of a run into conditions (calm, under this or that fault) and these into windows.

Runs with other faults, other times of faults and other lengths are compared condition by
condition, so that a longer fault does not look like a slower group. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

CALM: Final = "calm"
"""Steady phase, and what of the chaos phase lies outside of faults and their aftermath."""
WINDOW_NS: Final = 1_000_000_000
WINDOWS_MAX: Final = 100_000
"""Of a run; those of one that lasted longer than so many seconds are longer."""
SETTLE_NS: Final = WINDOW_NS
"""How long after a fault's undo (or the recovery, if that is later) it is not yet calm."""
LOADED: Final = ("steady", "chaos")
"""The phases in which clients put the load on that the campaign asks for."""


@dataclass(frozen=True, slots=True)
class Shaken:
    """A stretch of time in which a fault was at work, its aftermath included."""

    name: str
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of one condition, `WINDOW_NS` long or a little less or more.

    `piece` numbers the stretches of that condition: windows of one piece hang together.
    """

    start_ns: int
    stop_ns: int
    piece: int = 0


def windows(
    loaded: Iterable[tuple[int, int]], shaken: Sequence[Shaken]
) -> dict[str, tuple[Window, ...]]:
    """Return the windows of each condition, by time.

    Args:
        loaded: stretches (start_ns, stop_ns) in which clients were at work.
        shaken: the faults, which may overlap: such time is a condition of its own
            ("kill + pause").
    """
    found: dict[str, list[Window]] = {}
    loaded = list(loaded)
    window_ns = max(WINDOW_NS, -(-sum(stop - start for start, stop in loaded) // WINDOWS_MAX))
    for start, stop in loaded:
        for name, begin, end in _conditions(start, stop, shaken):
            cut = found.setdefault(name, [])
            cut += _cut(begin, end, window_ns, piece=cut[-1].piece + 1 if cut else 0)
    return {name: tuple(cut) for name, cut in found.items() if cut}


def _conditions(start: int, stop: int, shaken: Sequence[Shaken]) -> list[tuple[str, int, int]]:
    """Cut [start, stop) where a fault begins or ends; neighbours of one condition are joined."""
    edges = {start, stop}
    for fault in shaken:
        edges |= {edge for edge in (fault.start_ns, fault.stop_ns) if start < edge < stop}
    pieces: list[tuple[str, int, int]] = []
    for begin, end in pairwise(sorted(edges)):
        on = {fault.name for fault in shaken if fault.start_ns <= begin and fault.stop_ns >= end}
        name = " + ".join(sorted(on)) or CALM
        if pieces and pieces[-1][0] == name:
            pieces[-1] = (name, pieces[-1][1], end)
        else:
            pieces.append((name, begin, end))
    return pieces


def _cut(start: int, stop: int, window_ns: int, piece: int) -> list[Window]:
    """Cut a stretch into equal windows of about `window_ns`; none if it is too short.

    A rest of less than half of that makes no window of its own: too few operations fall into it.
    """
    length, rest_min = stop - start, window_ns // 2
    if length < rest_min:
        return []
    count = max(1, (length + rest_min) // window_ns)
    edges = [start + length * number // count for number in range(count + 1)]
    return [Window(begin, end, piece) for begin, end in pairwise(edges)]
