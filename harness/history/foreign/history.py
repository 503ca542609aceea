"""What a reader of a foreign history returns, and what it says about damage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from shaketable.harness.history.foreign.faults import FaultSpan

PROBLEMS_TOLD_MAX: Final = 3
"""Damaged places that a message names; the others are counted."""


@dataclass(frozen=True, slots=True)
class History:
    """A recorded history as operations.

    Attributes:
        path: where it was read from.
        format: what it was recognised as, in words.
        operations: OPERATIONS, by (key, call_ns).
        events: how many events or operations the recording holds, the nemesis' included.
        cut: where its end is missing, in one line; None if it is whole. What there is is all that
            happened up to some moment: a violation in it is one, its absence proves nothing.
        hole: where it lacks events before its end, in one line: then nothing in it proves
            anything, since what is missing may explain every answer.
        notes: what a reader should know and what harms no verdict.
        faults: what its nemesis did, in the order of time.
        is_timed: False if it has no times: then they count its events, 1 ns each.
    """

    path: Path
    format: str
    operations: pa.Table
    events: int
    cut: str | None = None
    hole: str | None = None
    notes: tuple[str, ...] = ()
    is_timed: bool = True
    faults: tuple[FaultSpan, ...] = ()

    @property
    def incomplete(self) -> str | None:
        """Why it is known to lack events; None if it is not."""
        return self.hole or self.cut


@dataclass(frozen=True, slots=True)
class Damage:
    """A place that could not be read."""

    line: int
    byte: int
    why: str


def told(path: Path, damage: Sequence[Damage]) -> str | None:
    """Say in one line which places could not be read; None if there are none."""
    if not damage:
        return None
    first = damage[0]
    text = f"{path.name}, line {first.line} (byte {first.byte}): {first.why}"
    if len(damage) > 1:
        lines = [str(each.line) for each in damage[1 : PROBLEMS_TOLD_MAX + 1]]
        more = len(damage) - 1 - len(lines)
        rest = f" and {more} more" if more > 0 else ""
        text += f"; unreadable as well: line {', '.join(lines)}{rest}"
    return text
