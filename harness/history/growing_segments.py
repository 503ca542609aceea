"""The recordings of a run while its clients still write them, as one history in time order.

A recording alone does not tell how far it is complete: a client that does nothing leaves no trace.
So the processes that record say up to which time they have recorded all (their watermark), and an
event is given once no recording can get an earlier one. No event comes late, whatever stalls.

The order, and so the number of each operation, is that of the export (`rounds`, `order_kernels`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from shaketable.harness.history.segments import (
    MAGIC,
    PAYLOAD_BYTES_MAX,
    Event,
    is_closing,
    whole_events,
)

STEP_BYTES: Final = 256 << 10
"""Read of a recording at once; and so much of it is decoded and waits for the others at most."""
FRAME_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 64
"""More than any frame has: where a step holds no whole frame, so much is read."""


@dataclass(slots=True)
class _Source:
    """One recording: how far it was read, and what of it waits for the others.

    Attributes:
        until_ns: what was recorded before has been written; inf once the recording is complete.
        bound_ns: no event before this time can come, beside those that wait.
        is_read: at the last look there was no further whole event.
        damage: where the complete recording cannot be read; None if all of it can.
    """

    path: Path
    number: int
    until_ns: float = -inf
    bound_ns: float = -inf
    place: int = len(MAGIC)
    count: int = 0
    is_read: bool = False
    damage: str | None = None
    waiting: deque[Event] = field(default_factory=deque)
    file: int | None = None

    def read(self) -> None:
        """Read a step, if nothing of the last one waits. `until_ns` is from before."""
        if self.waiting or self.damage is not None:
            return
        if not self._is_open():
            if self.until_ns == inf:  # its process ended before it began
                self.bound_ns, self.is_read = inf, True
            return
        assert self.file is not None
        for step in (STEP_BYTES, FRAME_BYTES_MAX):
            data = os.pread(self.file, step, self.place)
            events, read, is_readable = whole_events(data)
            if events or not is_readable or len(data) < step:
                break
        self.waiting.extend(events)
        self.place += read
        self.count += len(events)
        after_ns = events[-1].time_ns + 1 if events else self.bound_ns
        self.is_read = len(data) < step if is_readable else self._is_closed(self.file)
        self.bound_ns = max(after_ns, self.until_ns) if self.is_read else after_ns
        # A frame that cannot be read may be one that is just being written.
        if not is_readable and not self.is_read and self.until_ns == inf:
            self.damage = f"{self.path.name} cannot be read after byte {self.place:,}"

    def _is_closed(self, file: int) -> bool:
        return is_closing(os.pread(file, FRAME_BYTES_MAX, self.place), self.count)

    def _is_open(self) -> bool:
        if self.file is None:
            try:
                self.file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return False
        return True


class GrowingSegments:
    """The events of a run, from its start, in the order that they have in its history.

    Attributes:
        hole: where a recording is damaged; what comes after it is not given. None if none is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources: dict[str, _Source] = {}
        self._count = 0
        self.hole: str | None = None

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Close the files."""
        for source in self._sources.values():
            if source.file is not None:
                os.close(source.file)

    def note(self, recorded: Mapping[str, int | None]) -> None:
        """Take how far each recording is complete; the first note names all of them.

        Args:
            recorded: file name -> a time: what was recorded before it has been written; None: it
                will not grow any more. -1: nothing is known yet.
        """
        if not self._sources:
            for number, name in enumerate(sorted(recorded)):
                self._sources[name] = _Source(self._folder / name, number)
        for name, until_ns in recorded.items():
            source = self._sources[name]
            source.until_ns = max(source.until_ns, inf if until_ns is None else until_ns)

    def take(self) -> list[tuple[int, Event]]:
        """Return the next events with their numbers; none if nothing more is certain.

        Raises:
            OSError: a recording cannot be read.
        """
        if self.hole is not None:
            return []
        sources = self._sources.values()
        for source in sources:
            source.read()
        bound_ns = min((source.bound_ns for source in sources), default=-inf)
        ready = [
            ((event.time_ns, event.type != "invoke", source.number), event)
            for source in sources
            for event in _before(source.waiting, bound_ns)
        ]
        ready.sort(key=lambda each: each[0])
        self.hole = next((source.damage for source in sources if source.damage), None)
        first, self._count = self._count, self._count + len(ready)
        return [(first + n, event) for n, (_, event) in enumerate(ready)]

    @property
    def unread_bytes(self) -> int:
        """How much of the recordings was written and not read."""
        return sum(_size(source.path) - source.place for source in self._sources.values())

    @property
    def is_over(self) -> bool:
        """Whether all recordings are complete and their events were given."""
        return bool(self._sources) and all(
            source.bound_ns == inf and not source.waiting for source in self._sources.values()
        )


def _before(waiting: deque[Event], bound_ns: float) -> Iterator[Event]:
    """Yield and remove the events before a time."""
    while waiting and waiting[0].time_ns < bound_ns:
        yield waiting.popleft()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
