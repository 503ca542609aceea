"""Checks clients' answers while they work for what no linearizable log could return.

Pure, incremental, in bounded memory. It finds less than the checkers, which decide the verdict. But
a sighting is certain from the events that it cites, in whatever order events arrive, and even if
some are missing. A claim that needs all events (that no client ever appended a value) waits until
everything recorded before has been read.

The operations are those of the workload "log": append, read, end. Source: the anomalies
inconsistent-offsets, G1a, phantom-read and unseen of docs/anomalies.md.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from shaketable.harness.history.segments import Event

PLACES_MAX: Final = 100_000
"""Offsets whose value is remembered; the oldest are forgotten."""
VALUES_MAX: Final = 200_000
"""Appended values that are remembered; with more, no value is reported as never appended."""
ENDS_MAX: Final = 256
"""Per queue: the times at which its end was known to be at least so far."""
ASKED_MAX: Final = 64
"""Per queue: answers to `end` that are kept, for acknowledgements that are read later."""
DOUBTED_MAX: Final = 1_000
QUEUES_MAX: Final = 10_000
OPEN_MAX: Final = 100_000

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Sighting:
    """An answer that no linearizable log gives; `at_ns` is when the client received it."""

    kind: str
    text: str
    at_ns: int


@dataclass(slots=True)
class _Queue:
    """What is known of the end of one queue.

    `ends` are (time of acknowledgement, end that it proves); `base` summarizes the forgotten ones.
    `asked` are (invocation time, largest end answered, time of the answer, description).
    """

    ends: list[tuple[int, int]] = field(default_factory=list)
    base: tuple[int, int] = (0, 0)
    asked: deque[tuple[int, int, int, str]] = field(default_factory=lambda: deque(maxlen=ASKED_MAX))

    def shows(self, at_ns: int, end: int) -> None:
        """Record that the queue has an end of at least `end` from `at_ns` on."""
        insort(self.ends, (at_ns, end))
        if len(self.ends) > ENDS_MAX:
            first_ns, first = self.ends.pop(0)
            self.base = (max(self.base[0], first_ns), max(self.base[1], first))

    def end_before(self, call_ns: int) -> int:
        """Return the end that was known before `call_ns`; 0 if none was."""
        known = self.base[1] if self.base[0] < call_ns else 0
        return max([known, *(end for at_ns, end in self.ends if at_ns < call_ns)])


class OnlineCheck:
    """Takes the events of a run, round by round; returns what cannot be."""

    def __init__(self) -> None:
        self._open: dict[int, Event] = {}
        self._queues: OrderedDict[str, _Queue] = OrderedDict()
        self._places: OrderedDict[tuple[str, int], tuple[int, str]] = OrderedDict()
        self._appended: set[tuple[str, int]] = set()
        self._failed: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._knows_all = True
        self._doubted: list[tuple[int, str, int, Sighting]] = []
        self._round = 0

    def see(self, events: Iterable[Event], *, is_all: bool) -> list[Sighting]:
        """Take the next events of clients, ordered by time as far as possible.

        Args:
            events: each is passed once; those of one process in their order.
            is_all: everything has been passed that had been recorded when this round started to
                read.
        """
        self._round += 1
        seen: list[Sighting] = []
        for event in events:
            if event.process < 0 or event.key is None:
                continue
            if event.type == "invoke":
                self._invoked(event)
            else:
                invoked = self._open.pop(event.process, None)
                if invoked is not None and invoked.f == event.f and invoked.key == event.key:
                    seen += self._ended(event.key, invoked, event)
        return seen + (self._settle() if is_all else [])

    def _invoked(self, event: Event) -> None:
        if len(self._open) >= OPEN_MAX:
            self._open.clear()
            self._knows_all = False
        self._open[event.process] = event
        if event.f == "append" and event.input is not None and self._knows_all:
            if len(self._appended) >= VALUES_MAX:
                self._appended.clear()
                self._knows_all = False
            else:
                self._appended.add((str(event.key), event.input))

    def _ended(self, key: str, invoked: Event, event: Event) -> list[Sighting]:
        """Take the end of an operation."""
        value, at_ns = invoked.input, event.time_ns
        if event.type == "fail" and event.f == "append" and value is not None:
            _remember(self._failed, (key, value), None, PLACES_MAX)
        if event.type != "ok":
            return []
        if event.f == "append" and event.offset is not None and value is not None:
            found = self._stands(key, event.offset, value, "acknowledged", at_ns)
            return found + self._shown(key, at_ns, event.offset + 1)
        offset = event.offset if event.offset is not None else invoked.offset
        if event.f == "read" and offset is not None:
            if event.output is None:
                detail = f"a read of offset {offset} found nothing there"
                return self._asked(key, invoked.time_ns, offset, at_ns, detail)
            found = self._stands(key, offset, event.output, "read", at_ns)
            found += self._known(key, offset, event.output, at_ns)
            return found + self._shown(key, at_ns, offset + 1)
        if event.f == "end" and event.output is not None:
            detail = f"the end was reported to be {event.output}"
            found = self._asked(key, invoked.time_ns, event.output, at_ns, detail)
            return found + self._shown(key, at_ns, event.output)
        return []

    def _stands(self, key: str, offset: int, value: int, how: str, at_ns: int) -> list[Sighting]:
        """Record that an offset holds a value: no other value may be there."""
        there = self._places.get((key, offset))
        if there is None:
            _remember(self._places, (key, offset), (value, how), PLACES_MAX)
            return []
        before, how_before = there
        if before == value:
            return []
        text = f"{key} offset {offset}: {before} was {how_before} there, and {value} was {how} too"
        kind = "offset-given-twice" if how == how_before == "acknowledged" else "inconsistent-read"
        return [Sighting(kind, text, at_ns)]

    def _known(self, key: str, offset: int, value: int, at_ns: int) -> list[Sighting]:
        """Record that a value was read: a client must have appended it, and not failed."""
        where = f"{key} offset {offset}: {value} was read"
        if (key, value) in self._failed:
            return [Sighting("aborted-read", f"{where}, and its append had failed", at_ns)]
        is_doubted = self._knows_all and (key, value) not in self._appended
        if is_doubted and len(self._doubted) < DOUBTED_MAX:
            text = f"{where}, and no client had appended it"
            doubt = Sighting("phantom-read", text, at_ns)
            self._doubted.append((self._round, key, value, doubt))
        return []

    def _settle(self) -> list[Sighting]:
        """Resolve doubts of earlier rounds: everything recorded before has been read."""
        ripe = [doubt for doubt in self._doubted if doubt[0] < self._round]
        self._doubted = [doubt for doubt in self._doubted if doubt[0] >= self._round]
        if not self._knows_all:
            return []
        return [detail for _, key, value, detail in ripe if (key, value) not in self._appended]

    def _queue(self, key: str) -> _Queue:
        queue = self._queues.get(key)
        if queue is None:
            queue = _Queue()
            _remember(self._queues, key, queue, QUEUES_MAX)
        return queue

    def _asked(self, key: str, call_ns: int, end: int, at_ns: int, detail: str) -> list[Sighting]:
        """Check an answer that a queue ends at `end` at most, invoked at `call_ns`."""
        queue = self._queue(key)
        queue.asked.append((call_ns, end, at_ns, detail))
        known = queue.end_before(call_ns)
        return [_stale(key, known, detail, at_ns)] if end < known else []

    def _shown(self, key: str, at_ns: int, end: int) -> list[Sighting]:
        """Record that a queue ends at `end` or later from `at_ns` on; find contrary answers."""
        queue = self._queue(key)
        queue.shows(at_ns, end)
        # Real-time order: an operation that was invoked after the proof returned must see it.
        return [
            _stale(key, end, detail, heard_ns)
            for call_ns, answered_end, heard_ns, detail in queue.asked
            if at_ns < call_ns and answered_end < end
        ]


def _stale(key: str, end: int, detail: str, at_ns: int) -> Sighting:
    text = f"{key}: {detail}, requested after it was known to end at {end} at least"
    return Sighting("stale-read", text, at_ns)


def _remember(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Insert, and evict the oldest if there are more than `most`."""
    kept[key] = value
    if len(kept) > most:
        kept.popitem(last=False)
