"""Places moments from left to right: in their order, about to scale, with room for labels. Pure.

Two moments never change their order. A stretch of time is as wide as its share of the whole, but
no narrower than a gap that can be seen and no wider than one that wastes no room, and an
operation is at least as wide as its label. The unit is whatever the caller measures labels in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Span:
    """An operation on the axis: `stop_ns` is None where it has no end. `width` is its label's."""

    start_ns: int
    stop_ns: int | None
    width: float


@dataclass(frozen=True, slots=True)
class Scale:
    """How stretches become widths: the sum of all that is to scale, and both limits of each."""

    total: float
    gap_min: float
    gap_max: float


@dataclass(frozen=True, slots=True)
class Axis:
    """Where each moment stands; `end` is behind the last one, with room for open ends."""

    places: dict[int, float]
    squeezed: tuple[tuple[float, int], ...]
    end: float


def place(spans: Sequence[Span], scale: Scale, left: float = 0.0) -> Axis:
    """Place all moments at which a span starts or stops.

    At one moment calls stand before returns (intervals are closed), so a return needs a place
    of its own there: `Axis.places` has 2 * time for a call and 2 * time + 1 for a return.
    """
    moments = sorted(
        {2 * span.start_ns for span in spans}
        | {2 * span.stop_ns + 1 for span in spans if span.stop_ns is not None}
    )
    assert moments, "an axis needs a moment"
    whole = max(1, moments[-1] - moments[0])
    widest: dict[int, list[tuple[int, float]]] = {}
    for span in spans:
        if span.stop_ns is not None:
            ends = widest.setdefault(2 * span.stop_ns + 1, [])
            ends.append((2 * span.start_ns, span.width))
    places = {moments[0]: left}
    squeezed = []
    for before, now in pairwise(moments):
        to_scale = scale.total * (now - before) / whole
        gap = min(max(to_scale, scale.gap_min), scale.gap_max)
        at = places[before] + gap
        for start, width in widest.get(now, ()):
            at = max(at, places[start] + width)
        if to_scale > scale.gap_max and at == places[before] + gap:
            squeezed.append((places[before] + gap / 2, (now - before) // 2))
        places[now] = at
    last = places[moments[-1]]
    open_ends = [places[2 * s.start_ns] + s.width for s in spans if s.stop_ns is None]
    end = max([last, *open_ends]) + scale.gap_min * (2 if open_ends else 0)
    return Axis(places, tuple(squeezed), end)
