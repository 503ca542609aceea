"""How long the group took to serve again after each fault: pure functions of Arrow tables.

Source: the recovery time (RTO) of OpenChaos, sharpened: only an append that was *invoked*
after the fault's effect counts, since one that was on its way proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from harness.plugins import FaultWindow


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of time without an acknowledged append."""

    start_ns: int
    stop_ns: int

    @property
    def length_ns(self) -> int:
        """How long it was."""
        return self.stop_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Recovery:
    """How the group recovered from one fault.

    `recovery_ns`: from the fault's effect (its window's start) to the first acknowledgement
    of an append that was invoked after it; None if there was none.
    `asked`: appends that were invoked after the effect, up to `until_ns`; with 0 of them
    the absence of a recovery says nothing.
    `gap`: the longest stretch without an acknowledged append from the effect to `until_ns`,
    which is the next fault's start or the last append's invocation; None if nobody asked.
    """

    fault: int
    recovery_ns: int | None
    gap: Gap | None
    asked: int
    until_ns: int


def recovery_times(operations: pa.Table, windows: Sequence[FaultWindow]) -> list[Recovery]:
    """Return one `Recovery` for each window, in the order of `windows`."""
    raise NotImplementedError
