"""What mattered in a run, moment by moment: the rows of both diagrams, and the text of them.

Of thousands of messages only those that carried something new are kept: votes, entries,
acknowledgements, snapshots, clients' requests and replies. What happens at one node at one instant
is one row, so that a row shows cause and effect together.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shaketable.system.raft.protocol import (
    LeadershipTransfer,
    PushRequest,
    PushResponse,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from shaketable.system.sim.rules.client_history import (
    APPEND,
    COMMIT,
    FETCH,
    OK,
    PULL,
    UNKNOWN,
    Operation,
)
from shaketable.system.sim.schedules.faults import AnyFault, Pause
from shaketable.system.sim.stories.watch import Event, Kind, Sending, Watched, entries

# The messages of a run that carried something new, as arrows from lane to lane.
#
# Votes, entries, acknowledgements, snapshots, clients' requests and replies; heartbeats and
# repetitions are left out.

ARROWS_MAX = 60
_ENTRIES = "entries"
_ARROW_WEIGHTS = {"transfer": 6, "snapshot": 6, "vote": 5, "push": 4, "client": 3, "ack": 2}


@dataclass(slots=True)
class Arrow:
    """One message; `what` describes its content. `arrives_ms` is None if it did not arrive.

    `kind` is "vote", "push", "ack", "snapshot", "transfer" or "client". `waits`: its target is
    paused when it arrives. In a `series` (entries, or messages of a queue), `first` and `last` are
    what it carries. `row` and `end_row` are the rows where it starts and ends, -1 if none.
    """

    sent_ms: float
    source: str
    target: str
    kind: str
    what: str
    arrives_ms: float | None
    is_lost: bool = False
    waits: bool = False
    series: str = ""
    first: int = -1
    last: int = -1
    row: int = -1
    end_row: int = -1


def choose_arrows(seen: Watched) -> list[Arrow]:
    """Return the messages that mattered; of too many, the late and important ones."""
    arrows = [*_messages(seen.sendings), *_client_arrows(seen)]
    _apply_downtime(seen, arrows)
    arrows = _merge(arrows)
    arrows.sort(key=lambda arrow: (_ARROW_WEIGHTS[arrow.kind], arrow.sent_ms), reverse=True)
    return sorted(arrows[:ARROWS_MAX], key=lambda arrow: arrow.sent_ms)


def in_series(series: str, first: int, last: int) -> str:
    """Describe what an arrow of a series carries: `entries 3..5`, `message 7 for queue 0`."""
    if series == _ENTRIES:
        return entries(first, last)
    return f"{numbers('message', (first,) if first == last else (first, last))} {series}"


def _merge(arrows: Iterable[Arrow]) -> list[Arrow]:
    """Merge messages of a series that are sent at once into one arrow, from the first arrival."""
    found: dict[tuple[object, ...], Arrow] = {}
    for number, arrow in enumerate(arrows):
        key: tuple[object, ...] = (number,)
        if arrow.series:
            has_not_arrived = arrow.arrives_ms is None
            at_ms = round(arrow.sent_ms, 6)
            key = (at_ms, arrow.source, arrow.target, arrow.series, has_not_arrived, arrow.is_lost)
        one = found.setdefault(key, arrow)
        if one is not arrow:
            one.first, one.last = min(one.first, arrow.first), max(one.last, arrow.last)
            one.what = in_series(one.series, one.first, one.last)
            if one.arrives_ms is not None and arrow.arrives_ms is not None:
                one.arrives_ms = min(one.arrives_ms, arrow.arrives_ms)
    return list(found.values())


def _apply_downtime(seen: Watched, arrows: Iterable[Arrow]) -> None:
    """Mark arrows as lost whose target is down on arrival, and as waiting if it is paused."""
    down = _spans(seen, Kind.CRASH, Kind.START)
    paused = _spans(seen, Kind.FAULT, Kind.FAULT_ENDED, Pause)
    for arrow in arrows:
        at_ms = arrow.arrives_ms
        if at_ms is None:
            continue
        if any(node == arrow.target and start < at_ms < end for node, start, end in down):
            arrow.arrives_ms, arrow.is_lost = None, True
        arrow.waits = any(
            node == arrow.target and start <= at_ms < end for node, start, end in paused
        )


def _spans(
    seen: Watched, begins: Kind, ends: Kind, fault: type[AnyFault] | None = None
) -> list[tuple[str, float, float]]:
    """Return (node, from, until) of spans between two kinds of events, or of one kind of fault."""
    spans = []
    open_since: dict[tuple[str, int], float] = {}
    for event in sorted(seen.events, key=lambda event: event.at_ms):
        key = (event.node, event.index if fault else -1)
        if fault and not (
            event.kind in (begins, ends) and isinstance(seen.schedule.faults[event.index], fault)
        ):
            continue
        if event.kind is begins:
            open_since.setdefault(key, event.at_ms)
        elif event.kind is ends and key in open_since:
            spans.append((event.node, open_since.pop(key), event.at_ms))
    return spans + [(node, since, float("inf")) for (node, _), since in open_since.items()]


def client_lane(number: int) -> str:
    """Return the name of a client's lane."""
    return f"client {number}"


def numbers(noun: str, listed: Sequence[int]) -> str:
    """Describe things by number: `message 3` or `messages 3..5`."""
    if len(listed) == 1:
        return f"{noun} {listed[0]}"
    return f"{noun}s {listed[0]}..{listed[-1]}"


def _messages(sendings: Iterable[Sending]) -> Iterable[Arrow]:
    """Yield the messages between members that carried something new."""
    last_acks: dict[tuple[str, str], tuple[int, bool, int, int]] = {}
    for sending in sendings:
        message = sending.message
        kind = what = ""
        first = last = -1
        if isinstance(message, VoteRequest) and not message.pre_vote:
            kind, what = "vote", f"a request for a vote in term {message.term}"
        elif isinstance(message, VoteResponse) and not message.pre_vote and message.granted:
            kind, what = "vote", f"a vote in term {message.term}"
        elif isinstance(message, PushRequest) and message.batches:
            first, last = message.batches[0].first_index, message.batches[-1].last_index
            kind, what = "push", entries(first, last)
        elif isinstance(message, PushResponse):
            key = (message.follower, sending.target)
            ack = (message.term, message.success, message.match_index, message.prev_index)
            if last_acks.get(key) != ack and not message.success:
                kind, what = "ack", f"that the logs differ at entry {message.prev_index}"
            elif last_acks.get(key) != ack and message.match_index >= 0:
                kind, what = "ack", f"that it has everything up to entry {message.match_index}"
            last_acks[key] = ack
        elif isinstance(message, SnapshotRequest):
            kind, what = "snapshot", f"a snapshot up to entry {message.snapshot.end.index}"
        elif isinstance(message, LeadershipTransfer):
            kind, what = "transfer", "the request to lead"
        if kind:
            source, target = sending.source, sending.target
            arrives_ms, is_lost = sending.arrives_ms, sending.is_lost
            arrow = Arrow(sending.sent_ms, source, target, kind, what, arrives_ms, is_lost)
            if first >= 0:
                arrow.series, arrow.first, arrow.last = _ENTRIES, first, last
            yield arrow


def _client_arrows(seen: Watched) -> Iterable[Arrow]:
    delay_ms = seen.schedule.settings.client_delay_ms
    operations = {operation.number: operation for operation in seen.history}
    # Of a request that was refused and sent again, only the last attempt matters.
    asked_last = {
        (client, last): (at_ms, node, first) for at_ms, client, node, first, last in seen.asked
    }
    for (client, last), (at_ms, node, first) in asked_last.items():
        operation = operations[first]
        arrow = Arrow(at_ms - delay_ms, client_lane(client), node, "client", "", at_ms)
        if operation.kind == APPEND:
            arrow.series, arrow.first, arrow.last = f"for queue {operation.queue}", first, last
            arrow.what = in_series(arrow.series, first, last)
        elif operation.kind == PULL:
            arrow.what = f"a pull of queue {operation.queue} from offset {operation.offset}"
        elif operation.kind == COMMIT:
            arrow.what = f"the commit of offset {operation.end} by {_in_queue(operation)}"
        elif operation.kind == FETCH:
            arrow.what = f"the question what was committed by {_in_queue(operation)}"
        else:
            arrow.what = f"the question where queue {operation.queue} ends"
        yield arrow
    answered = {}
    for operation in seen.history:
        if operation.outcome == OK:
            answered[operation.end_ms, operation.client] = operation.node
    for (end_ms, client), node in answered.items():
        yield Arrow(end_ms - delay_ms, node, client_lane(client), "client", "the answer", end_ms)


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


def _in_queue(operation: Operation) -> str:
    return f"{operation.group} in queue {operation.queue}"


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
            return f"is answered that {what} {verb} stored at {at} of queue {first.queue}"
        return f"{'does not learn what became of' if outcome == UNKNOWN else 'is refused'} {what}"
    if first.kind == COMMIT:
        how = {OK: "has committed", UNKNOWN: "may have committed"}.get(outcome, "has not committed")
        return f"{how} offset {first.end} as {_in_queue(first)}"
    if outcome != OK:
        return "gets no answer to its read"
    if first.kind == FETCH:
        return f"is answered that {_in_queue(first)} has committed {first.end}"
    if first.kind == PULL:
        return f"reads {first.count} messages from offset {first.offset} of queue {first.queue}"
    return f"is answered that queue {first.queue} ends at {first.end}"


# A story in plain text: a sentence for each row, beside a space-time diagram.
#
# A sentence says what arrived, what happened and what was sent; the page has the same ones.


def sentence(row: Row) -> str:
    """Describe a row: `n1 gets entry 3 from n0; writes entry 3 of term 1`."""
    if row.lane == WORLD:
        return _world(row.events)
    faults = _faults([h for h in row.events if h.kind in (Kind.FAULT, Kind.FAULT_ENDED)])
    broken = [f"BREAKS {h.text}" for h in row.events if h.kind is Kind.BROKEN]
    parts = [*faults, *_got(row), *_happened(row), *_sent(row), *broken]
    return f"{row.lane} {'; '.join(parts)}"


def _world(events: Sequence[Event]) -> str:
    """Describe members that start alike, a network fault, or a violation of the whole group."""
    starts = [event for event in events if event.kind is Kind.START]
    if starts:
        names = _and([event.node for event in starts])
        state = starts[0].text.partition(": ")[2].replace("its log is", "their logs are")
        return f"{names} start: {state.replace('its log ends', 'their logs end')}"
    broken = [f"BREAKS {h.text}" for h in events if h.kind is Kind.BROKEN]
    return "; ".join([*_faults(h for h in events if h.kind is not Kind.BROKEN), *broken])


def _got(row: Row) -> list[str]:
    if row.has(Kind.ANSWER):  # the events have the client's answer
        return []
    parts = []
    for what, arrows in _alike(row.got):
        sources = _and(dict.fromkeys(arrow.source for arrow in arrows))
        if arrows[0].kind == "ack" and not arrows[0].waits:
            parts.append(f"learns from {sources} {what}")
        elif all(arrow.waits for arrow in arrows):
            parts.append(f"is paused while {what} from {sources} arrives")
        else:
            parts.append(f"gets {what} from {sources}")
    return parts


def _happened(row: Row) -> list[str]:
    parts = _written([h for h in row.events if h.kind is Kind.APPEND])
    for event in row.events:
        if event.kind is Kind.VOTE:
            parts.append(event.text.replace(f"for {row.lane} ", "for itself "))
        elif event.kind is Kind.CRASH:
            parts.append(event.text.replace("crash", "crashes", 1))
        elif event.kind not in (Kind.FAULT, Kind.FAULT_ENDED, Kind.BROKEN, Kind.APPEND):
            parts.append(event.text)
    return list(dict.fromkeys(parts))


def _written(appends: Iterable[Event]) -> list[str]:
    """Describe the batches of each term as one range of entries."""
    terms: dict[int, tuple[int, int]] = {}
    for append in appends:
        first, last = terms.get(append.term, (append.first, append.index))
        terms[append.term] = (min(first, append.first), max(last, append.index))
    return [f"writes {entries(*range_)} of term {term}" for term, range_ in terms.items()]


def _faults(events: Iterable[Event]) -> list[str]:
    return [
        f"FAULT {event.index + 1}: {event.text}"
        if event.kind is Kind.FAULT
        else f"fault {event.index + 1} ends: {event.text}"
        for event in events
    ]


def _sent(row: Row) -> list[str]:
    parts = []
    for what, arrows in _alike(row.sent):
        targets = _and(dict.fromkeys(arrow.target for arrow in arrows))
        verb = (
            f"tells {targets} {what}" if arrows[0].kind == "ack" else f"sends {what} to {targets}"
        )
        lost = [arrow.target for arrow in arrows if arrow.is_lost]
        late = [a.target for a in arrows if not a.is_lost and a.arrives_ms is None]
        if lost:
            verb += " (lost)" if len(lost) == len(arrows) else f" (lost on the way to {_and(lost)})"
        if late:
            verb += (
                " (still on its way at the end)"
                if len(late) == len(arrows)
                else (f" (still on its way to {_and(late)} at the end)")
            )
        parts.append(verb)
    return parts


def _alike(arrows: Sequence[Arrow]) -> Iterable[tuple[str, list[Arrow]]]:
    """Group arrows of equal text, and merge arrows of one series between the same pair."""
    found: dict[str, list[Arrow]] = {}
    series: dict[tuple[str, str, str], list[Arrow]] = {}
    for arrow in arrows:
        if arrow.series:
            series.setdefault((arrow.series, arrow.source, arrow.target), []).append(arrow)
        else:
            found.setdefault(arrow.what, []).append(arrow)
    for (name, _, _), together in series.items():
        first, last = min(a.first for a in together), max(a.last for a in together)
        found.setdefault(in_series(name, first, last), []).extend(together)
    return found.items()


def _and(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


# The space-time diagram: time runs downwards, with a column for each lane.
#
# Source: Lamport's space-time diagrams, turned so that each moment has a line for its text.

LEGEND = (
    "| up   # leads   : down   o something happens   * fsync   X crash   ! the violation\n"
    "o--> sent, arrives in a later line   o--x lost"
)
LANE_WIDTH = 5
CLIENT_WIDTH = 9
TIME_WIDTH = 10
TEXT_WIDTH_MIN = 36


def draw_text(rows: Rows, *, width: int = 120) -> str:
    """Return the diagram, about `width` characters wide at most."""
    columns = _columns(rows.lanes)
    picture_width = sum(_width(lane) for lane in rows.lanes)
    text_width = max(TEXT_WIDTH_MIN, width - TIME_WIDTH - picture_width - 2)
    header = " " * TIME_WIDTH + "".join(lane.center(_width(lane)) for lane in rows.lanes)
    lines = [header.rstrip()]
    states = dict.fromkeys(rows.lanes, "|")
    by_row: dict[int, list[Arrow]] = {}
    for arrow in rows.arrows:
        by_row.setdefault(arrow.row, []).append(arrow)
    for number, row in enumerate(rows.rows):
        before = dict(states)
        _update_states(states, row)
        cells = _lane_cells(rows.lanes, columns, before, picture_width)
        for arrow in by_row.get(number, ()):
            _draw_arrow(cells, columns, arrow)
        if row.lane in columns:
            cells[columns[row.lane]] = symbol(row)
        wrapped = textwrap.wrap(sentence(row), text_width, break_on_hyphens=False) or [""]
        lines.append(f"{row.at_ms:{TIME_WIDTH - 1}.1f} {''.join(cells)}  {wrapped[0]}".rstrip())
        below = "".join(_lane_cells(rows.lanes, columns, states, picture_width))
        lines += [f"{'':{TIME_WIDTH}}{below}  {text}" for text in wrapped[1:]]
    return "\n".join(lines)


def symbol(row: Row) -> str:
    """Return the character that marks a row on its lane."""
    if row.is_broken:
        return "!"
    if row.has(Kind.CRASH):
        return "X"
    return "*" if row.has(Kind.DURABLE) else "o"


def next_state(state: str, row: Row, lane: str) -> str:
    """Return a lane's state after a row: "|" up, "#" leading, ":" down."""
    for event in row.events:
        if event.node != lane:
            continue
        if event.kind is Kind.CRASH:
            state = ":"
        elif event.kind is Kind.START:
            state = "|"
        elif event.kind is Kind.ROLE:
            state = "#" if event.text.startswith("leads") else "|"
    return state


def _update_states(states: dict[str, str], row: Row) -> None:
    for lane, state in states.items():
        states[lane] = next_state(state, row, lane)


def _width(lane: str) -> int:
    return CLIENT_WIDTH if len(lane) >= LANE_WIDTH else LANE_WIDTH


def _columns(lanes: tuple[str, ...]) -> dict[str, int]:
    columns, at = {}, 0
    for lane in lanes:
        columns[lane] = at + _width(lane) // 2
        at += _width(lane)
    return columns


def _lane_cells(
    lanes: tuple[str, ...], columns: dict[str, int], states: dict[str, str], width: int
) -> list[str]:
    cells = [" "] * width
    for lane in lanes:
        cells[columns[lane]] = states[lane]
    return cells


def _draw_arrow(cells: list[str], columns: dict[str, int], arrow: Arrow) -> None:
    start, end = columns[arrow.source], columns[arrow.target]
    step = 1 if end > start else -1
    for at in range(start + step, end, step):
        if cells[at] == " ":
            cells[at] = "-"
    if arrow.is_lost:
        cells[start + step * max(2, (abs(end - start)) // 2)] = "x"
    else:
        cells[end - step] = ">" if step > 0 else "<"
