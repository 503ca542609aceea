"""A time axis that squeezes idle stretches, with its ticks and with how much was squeezed.

So an append and the read that contradicts it a minute later both stay readable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

BREAK_WIDTH = 34
"""Width of a squeezed stretch of time."""

BREAK_BUSY = 3
BREAK_MEDIAN = 8
"""A gap is squeezed if it is longer than this many times the time in which operations ran,
and than this many times the median gap: sparse operations are no reason to squeeze."""

TICKS_MAX = 8
LABEL_WIDTH = 7.0
"""Width of one character of a label, roughly."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """A piecewise linear map from time to x: busy stretches to scale, idle ones squeezed."""

    times: tuple[int, ...]
    xs: tuple[float, ...]

    def x(self, time_ns: int) -> float:
        """Place a moment, clamped to the axis."""
        if time_ns <= self.times[0]:
            return self.xs[0]
        for n in range(1, len(self.times)):
            if time_ns <= self.times[n]:
                share = (time_ns - self.times[n - 1]) / (self.times[n] - self.times[n - 1])
                return self.xs[n - 1] + share * (self.xs[n] - self.xs[n - 1])
        return self.xs[-1]


def time_axis(
    spans: Iterable[tuple[int, int]], left: float, right: float, squeezed_max: int = 0
) -> TimeAxis:
    """Fit the spans of time (start, stop) between two x.

    Args:
        spans: at least one, in ns.
        left: where the first one begins.
        right: where the last one ends.
        squeezed_max: squeeze so many of the longest gaps, be they as sparse as they may: where
            operations are few, what they were matters more than how far apart they are.
    """
    merged: list[list[int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    assert merged
    busy = sum(stop - start for start, stop in merged) or 1_000_000
    gaps = sorted(after[0] - before[1] for before, after in pairwise(merged))
    median = gaps[(len(gaps) - 1) // 2] if len(gaps) > 1 else 0
    squeezed = max(BREAK_BUSY * busy, BREAK_MEDIAN * median)
    if squeezed_max:
        squeezed = max(BREAK_BUSY * busy, gaps[-squeezed_max - 1] if gaps[squeezed_max:] else 0)
    pieces: list[list[int]] = [merged[0]]
    for start, stop in merged[1:]:
        if start - pieces[-1][1] <= squeezed:
            pieces[-1][1] = stop
        else:
            pieces.append([start, stop])
    # A piece that is a single moment still needs some width.
    pieces = [[start, max(stop, start + max(1, busy // 50))] for start, stop in pieces]
    shown = sum(stop - start for start, stop in pieces)
    scale = (right - left - BREAK_WIDTH * (len(pieces) - 1)) / shown
    times: list[int] = []
    xs: list[float] = []
    x = left
    for start, stop in pieces:
        times.append(start)
        xs.append(x)
        x += (stop - start) * scale
        times.append(stop)
        xs.append(x)
        x += BREAK_WIDTH
    return TimeAxis(tuple(times), tuple(xs))


def ticks(axis: TimeAxis, width: float) -> tuple[tuple[float, str], ...]:
    """Mark round moments of each stretch, its start where it has none, as far as there is room."""
    pieces = list(zip(axis.times[::2], axis.times[1::2], strict=True))
    step = _round_step(sum(stop - start for start, stop in pieces) // TICKS_MAX)
    marks: list[tuple[float, str]] = []
    for start, stop in pieces:
        for time_ns in list(range(-(-start // step) * step, stop + 1, step)) or [start]:
            x = axis.x(time_ns)
            label = seconds(time_ns, step)
            room = LABEL_WIDTH * (len(label) + 1)
            if x + room <= width and (not marks or x - marks[-1][0] >= room):
                marks.append((round(x, 1), label))
    return tuple(marks)


def _round_step(at_least_ns: int) -> int:
    """Return the next of 1, 2, 5, 10, ... us."""
    scale = 1000
    while True:
        for factor in (1, 2, 5):
            if factor * scale >= at_least_ns:
                return factor * scale
        scale *= 10


def breaks(axis: TimeAxis) -> tuple[tuple[float, str], ...]:
    """Say at each squeezed stretch how much later it goes on, as far as there is room."""
    found: list[tuple[float, str]] = []
    labelled_to = 0.0
    for n in range(1, len(axis.times) - 1, 2):
        x = (axis.xs[n] + axis.xs[n + 1]) / 2
        length_ns = axis.times[n + 1] - axis.times[n]
        label = f"+{seconds(length_ns, length_ns // 20)}"
        half = LABEL_WIDTH * (len(label) + 1) / 2
        if x - half < labelled_to:
            label = ""
        else:
            labelled_to = x + half
        found.append((round(x, 1), label))
    return tuple(found)


def seconds(time_ns: int, resolution_ns: int) -> str:
    """Print a time in seconds, with the digits that a step of `resolution_ns` needs."""
    digits = 0
    while digits < 6 and resolution_ns < 10 ** (9 - digits):
        digits += 1
    return f"{time_ns / 1e9:.{digits}f} s"
