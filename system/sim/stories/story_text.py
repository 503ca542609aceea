"""A story in plain text: a sentence for each row, beside a space-time diagram.

A sentence says what arrived, what happened and what was sent; the page has the same ones.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from shaketable.system.sim.stories.story_rows import WORLD, Arrow, Row, Rows, in_series
from shaketable.system.sim.stories.watch import Event, Kind, entries


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
