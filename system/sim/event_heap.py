"""Virtual time: a heap of pending events. Events at equal times run in the order of pushing."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[..., None]
Event = tuple[float, int, Action, tuple[Any, ...]]


class EventHeap:
    """Pending events in virtual milliseconds. `now_ms` is the time of the last one popped."""

    __slots__ = ("_events", "_number", "now_ms")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._number = 0
        self.now_ms = 0.0

    @property
    def popped(self) -> int:
        """How many events were popped."""
        return self._number - len(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def push(self, at_ms: float, action: Action, *args: Any) -> None:
        """Schedule `action(*args)` at `at_ms`, which must not be in the past."""
        assert at_ms >= self.now_ms, f"{at_ms} is before {self.now_ms}"
        self._number += 1
        # The number breaks ties, so equal times keep their order and actions are never compared.
        heappush(self._events, (at_ms, self._number, action, args))

    def pop(self, until_ms: float) -> tuple[Action, tuple[Any, ...]] | None:
        """Pop the next event and move time to it; return None if none is due by `until_ms`."""
        events = self._events
        if not events or events[0][0] > until_ms:
            return None
        self.now_ms, _, action, args = heappop(events)
        return action, args
