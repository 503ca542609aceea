"""Virtual time: a heap of what is to happen when. Equal times keep the order they were given in."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[..., None]
Event = tuple[float, int, Action, tuple[Any, ...]]


class EventHeap:
    """Events to come, in milliseconds of virtual time. `now_ms` is that of the last one taken."""

    __slots__ = ("_events", "_number", "now_ms", "taken")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._number = 0
        self.now_ms = 0.0
        self.taken = 0

    def __len__(self) -> int:
        return len(self._events)

    def push(self, at_ms: float, action: Action, *args: Any) -> None:
        """Let `action(*args)` happen at `at_ms`, which is not in the past."""
        assert at_ms >= self.now_ms, f"{at_ms} is before {self.now_ms}"
        self._number += 1
        heappush(self._events, (at_ms, self._number, action, args))

    def pop(self, until_ms: float) -> tuple[Action, tuple[Any, ...]] | None:
        """Take the next event and move time to it; None if none is due by `until_ms`."""
        events = self._events
        if not events or events[0][0] > until_ms:
            return None
        self.now_ms, _, action, args = heappop(events)
        self.taken += 1
        return action, args
