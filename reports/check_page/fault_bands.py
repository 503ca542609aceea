"""The faults of a history as bands behind the picture of its failing part. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from shaketable.reports.check_page.time_layout import Axis

Fault: TypeAlias = tuple[str, int, int | None]
"""Name, start_ns, and stop_ns where something ended it."""

BANDS_MAX: Final = 6
"""Faults that a picture shows: the last ones that begin in its time."""
BAND: Final = 15.0
"""Height of a fault's name above the lanes."""
BAND_WIDTH_MIN: Final = 3.0
NAME_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Band:
    """One fault; `row` counts from 0, a row for each name. `title` says when it lasted."""

    x: float
    width: float
    row: int
    label: str
    title: str
    has_begin: bool


def lay_out_bands(faults: Sequence[Fault], axis: Axis, edge: float) -> tuple[Band, ...]:
    """Place the faults that lasted between the first and the last moment of the axis."""
    begin, end = min(axis.places) // 2, max(axis.places) // 2
    inside = [
        (name, start, stop)
        for name, start, stop in faults
        if start <= end and (stop is None or stop >= begin)
    ][-BANDS_MAX:]
    rows = {name: row for row, name in enumerate(dict.fromkeys(name for name, _, _ in inside))}
    bands = []
    for name, start, stop in inside:
        left = place_of(start, axis)
        right = edge if stop is None or stop > end else place_of(stop, axis)
        shown = name if len(name) <= NAME_MAX else name[: NAME_MAX - 1] + "…"
        until = "until something that is not recorded" if stop is None else f"until {stop:,} ns"
        bands.append(
            Band(
                x=round(left, 1),
                width=round(max(BAND_WIDTH_MIN, right - left), 1),
                row=rows[name],
                label=shown,
                title=f"{name}, from {start:,} ns {until}",
                has_begin=start >= begin,
            )
        )
    return tuple(bands)


def place_of(time_ns: int, axis: Axis) -> float:
    """Return where a moment stands that need be none of the axis, between those that are."""
    moments = sorted(axis.places)
    after = bisect_right(moments, 2 * time_ns)
    if after == 0:
        return axis.places[moments[0]]
    if after == len(moments):
        return axis.places[moments[-1]]
    before, then = moments[after - 1], moments[after]
    share = (2 * time_ns - before) / (then - before)
    return axis.places[before] + share * (axis.places[then] - axis.places[before])
