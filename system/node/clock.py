"""The node's injected clock (DESIGN.md decision 9). Only this file reads the machine's clocks.

All of a node's timers use this clock, so a clock that runs fast, slow or jumps affects all of them.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Protocol

import trio


class Clock(Protocol):
    """A node's source of time."""

    def now_ms(self) -> float:
        """Monotonic milliseconds."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970: store times, delays and expiry use it, consensus does not."""
        ...

    def move_on_at(self, due_ms: float) -> AbstractContextManager[trio.CancelScope]:
        """Cancel the `with` body when this clock shows `due_ms` (monotonic milliseconds)."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> float:
        """Monotonic milliseconds."""
        return time.monotonic_ns() / 1e6

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def move_on_at(self, due_ms: float) -> AbstractContextManager[trio.CancelScope]:
        """Cancel the `with` body when this clock shows `due_ms`."""
        return trio.move_on_after(max(0.0, due_ms - self.now_ms()) / 1000)


async def sleep(clock: Clock, pause_ms: float) -> None:
    """Sleep for `pause_ms` of that clock."""
    with clock.move_on_at(clock.now_ms() + pause_ms):
        await trio.sleep_forever()
