"""The node's clock, injected (DESIGN.md decision 9). Only this file reads the machine's."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a node knows of time."""

    def now_ms(self) -> float:
        """Monotonic milliseconds."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for what messages carry; nothing rests on it."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> float:
        """Monotonic milliseconds."""
        return time.monotonic_ns() / 1e6

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000
