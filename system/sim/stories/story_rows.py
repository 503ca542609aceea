"""What mattered in a run, moment by moment: the rows of both diagrams and of the text.

Of thousands of messages only those that carried something new are kept: votes, entries,
acknowledgements, snapshots, clients' requests and replies. What happens at one node at one instant
is one row, so that a row shows cause and effect together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shaketable.system.sim.history import APPEND, OK, PULL, UNKNOWN, Operation
from shaketable.system.sim.stories.story_arrows import Arrow, choose_arrows, client_lane, numbers
from shaketable.system.sim.stories.watch import Event, Kind, Watched

ROWS_MAX = 80
WORLD = ""
"""The lane of events that concern the whole world."""

_WEIGHTS = {
    Kind.BROKEN: 100,
    Kind.CRASH: 90,
    Kind.FAULT: 90,
    Kind.START: 90,
    Kind.TRUNCATE: 85,
    Kind.INSTALL: 85,
    Kind.FAULT_ENDED: 70,
    Kind.ROLE: 70,
    Kind.COMPACT: 60,
    Kind.ANSWER: 55,
    Kind.ASK: 50,
    Kind.APPEND: 45,
    Kind.COMMIT: 40,
    Kind.VOTE: 35,
    Kind.DURABLE: 30,
}
"""Priorities of events where there is no room for all."""
_ARROW_WEIGHT = 25
_LEADING = "leads"


@dataclass(slots=True)
class Row:
    """One moment on one lane: what arrived, what happened, what was sent."""

    at_ms: float
    lane: str
    events: list[Event] = field(default_factory=list)
    got: list[Arrow] = field(default_factory=list)
    sent: list[Arrow] = field(default_factory=list)

    @property
    def weight(self) -> int:
        """The highest weight in the row."""
        weights = [_WEIGHTS[event.kind] for event in self.events]
        return max(weights + [_ARROW_WEIGHT] * bool(self.got or self.sent))

    @property
    def is_broken(self) -> bool:
        """Whether the violation is in the row."""
        return any(event.kind is Kind.BROKEN for event in self.events)

    def has(self, kind: Kind) -> bool:
        """Return whether the row has an event of that kind."""
        return any(event.kind is kind for event in self.events)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows in order of time, their lanes, and how many were left out."""

    lanes: tuple[str, ...]
    rows: tuple[Row, ...]
    arrows: tuple[Arrow, ...]
    left_out: int


def build_rows(seen: Watched) -> Rows:
    """Choose what mattered in a run, in order of time."""
    events = _significant(seen, [*seen.events, *_client_events(seen)])
    arrows = choose_arrows(seen)
    table: dict[tuple[float, str], Row] = {}

    def row_at(at_ms: float, lane: str) -> Row:
        # Rounded, since float sums of the same times may differ.
        return table.setdefault((round(at_ms, 6), lane), Row(at_ms, lane))

    for arrow in arrows:
        row_at(arrow.sent_ms, arrow.source).sent.append(arrow)
        if arrow.arrives_ms is not None:
            row_at(arrow.arrives_ms, arrow.target).got.append(arrow)
    for event in events:
        row_at(event.at_ms, event.node).events.append(event)
    _join_starts(table)
    rows = sorted(table.values(), key=_row_order)
    kept = _heaviest(rows)
    for number, row in enumerate(kept):
        for arrow in row.sent:
            arrow.row = number
        for arrow in row.got:
            arrow.end_row = number
    # Arrows that start or end in a row that was left out are dropped.
    drawn = [a for a in arrows if a.row >= 0 and (a.arrives_ms is None or a.end_row >= 0)]
    busy = {row.lane for row in kept} | {arrow.target for arrow in drawn}
    clients = sorted({operation.client for operation in seen.history})
    lanes = [*seen.members, *(lane for lane in map(client_lane, clients) if lane in busy)]
    return Rows(tuple(lanes), tuple(kept), tuple(drawn), len(rows) - len(kept))


def _join_starts(table: dict[tuple[float, str], Row]) -> None:
    """Join members that start alike at the same time into one row."""
    alike: dict[tuple[float, str], list[tuple[float, str]]] = {}
    for key, row in table.items():
        if len(row.events) == 1 and row.has(Kind.START) and not (row.got or row.sent):
            alike.setdefault((key[0], row.events[0].text), []).append(key)
    for (at_ms, _), keys in alike.items():
        if len(keys) > 1 and (at_ms, WORLD) not in table:
            together = Row(at_ms, WORLD)
            together.events = [table.pop(key).events[0] for key in keys]
            table[at_ms, WORLD] = together


def _row_order(row: Row) -> tuple[float, bool]:
    return row.at_ms, row.is_broken


def _heaviest(rows: Sequence[Row]) -> list[Row]:
    """Keep at most ROWS_MAX rows: the heaviest, and of equal ones the latest."""
    ranked = sorted(rows, key=lambda row: (row.weight, row.at_ms), reverse=True)
    return sorted(ranked[:ROWS_MAX], key=_row_order)


def _significant(seen: Watched, events: Iterable[Event]) -> Iterable[Event]:
    """Drop repetitions: who follows whom, and commits that another member reported before."""
    leading: set[str] = set()
    started: dict[str, str] = {}
    committed = -1
    broken_ms = seen.violation.at_ms if seen.violation else -1.0
    for event in sorted(events, key=_time):
        if event.kind is Kind.CRASH:
            leading.discard(event.node)
            started.pop(event.node, None)
        elif event.kind is Kind.START:
            if started.get(event.node) == event.text:
                continue  # repeated attempts to start
            started[event.node] = event.text
        if event.kind is Kind.COMMIT:
            if event.index > committed or event.at_ms == broken_ms:
                committed = max(committed, event.index)
                yield event
        elif event.kind is not Kind.ROLE:
            yield event
        elif event.text.startswith(_LEADING):
            leading.add(event.node)
            yield event
        elif event.node in leading:
            leading.discard(event.node)
            text = f"no longer leads, {event.text}"
            yield Event(event.at_ms, event.node, Kind.ROLE, text, term=event.term)


def _time(event: Event) -> float:
    return event.at_ms


def _client_events(seen: Watched) -> Iterable[Event]:
    """Yield the outcomes of the clients' operations; those that ended together as one event."""
    ended: dict[tuple[float, int, str, str], list[Operation]] = {}
    for operation in seen.history:
        if operation.end_ms != float("inf"):
            key = (operation.end_ms, operation.client, operation.kind, operation.outcome)
            ended.setdefault(key, []).append(operation)
    for (end_ms, client, _, outcome), together in ended.items():
        text = _outcome(together, outcome)
        yield Event(end_ms, client_lane(client), Kind.ANSWER, text)


def _outcome(together: Sequence[Operation], outcome: str) -> str:
    first, last = together[0], together[-1]
    if first.kind == APPEND:
        what = numbers("message", [operation.number for operation in together])
        if outcome == OK:
            at = (
                f"offset {first.offset}"
                if first is last
                else f"offsets {first.offset}..{last.offset}"
            )
            verb = "is" if first is last else "are"
            return f"is told that {what} {verb} stored at {at} of queue {first.queue}"
        return f"{'does not learn what became of' if outcome == UNKNOWN else 'is refused'} {what}"
    if outcome != OK:
        return "gets no answer to its read"
    if first.kind == PULL:
        return f"reads {first.count} messages from offset {first.offset} of queue {first.queue}"
    return f"is told that queue {first.queue} ends at {first.end}"
