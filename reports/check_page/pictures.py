"""The pictures of what fails: a part of a history, and a cycle of dependencies. Pure.

The failing part of a history is laid out as a picture, and as lines of text. Clients are rows, real
time goes to the right. Only the relevant operations are drawn: the one that cannot be placed, those
open with it, and the end of the linearizable prefix. Circles joined by a line are the linearization
points of that prefix.

A cycle is laid out as a graph with labelled edges, and explained.

The template draws what is laid out here (and escapes the text).

Source: Lamport's space-time diagrams; porcupine's visualisation for the line of the order; the
drawings of anomalies in Elle (Alvaro & Kingsbury, VLDB 2020).
"""

from __future__ import annotations

import math
import textwrap
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

from shaketable.reports.check_page.checked_history import FailingPart, PartOperation
from shaketable.reports.plain_json import ID_MAX, is_whole, listed

OPERATIONS_MAX: Final = 24
"""Operations in a picture; the table below it has the whole part."""
LEFT: Final = 12
NAMES: Final = 104
"""Width of the column with the clients' names, which does not scroll."""
RIGHT: Final = 44
TOP: Final = 26
LANE: Final = 46
BAR: Final = 20
BAR_DOWN: Final = 20
"""How far below the top of its lane a bar is drawn: the linearization points are above it."""
CHARACTER: Final = 6.9
LABEL_MAX: Final = 26
WIDTH_MIN: Final = 240.0
TO_SCALE: Final = 560.0
GAP_MIN: Final = 9.0
GAP_MAX: Final = 150.0
POINT_GAP: Final = 15.0
POINT_GAP_MIN: Final = 4.0
TICK_ROOM: Final = 92.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One operation.

    `role` is stuck, accused (together with it), blocked, placed (in the prefix) or other.
    """

    x: float
    y: float
    width: float
    role: str
    outcome: str
    is_open: bool
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Point:
    """The linearization point of the `number`-th operation of the prefix."""

    x: float
    y: float
    number: int
    title: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that the template draws, in the units of its view box."""

    width: float
    height: float
    lanes: tuple[tuple[float, str], ...]
    bars: tuple[Bar, ...]
    points: tuple[Point, ...]
    line: str
    ticks: tuple[tuple[float, str], ...]
    deadline: float | None
    deadline_label: str
    deadline_label_x: float
    title: str
    left_out: int
    bands: tuple[Band, ...] = ()


def lay_out(part: FailingPart, *, is_timed: bool, faults: Sequence[Fault] = ()) -> Picture:
    """Lay out a part of at least one operation, and the faults active during it."""
    shown = part.focus(OPERATIONS_MAX)
    spans = [
        Span(each.call_ns, each.return_ns, CHARACTER * (len(_short(each.call)) + 1) + 10)
        for each in shown
    ]
    axis = place(spans, Scale(TO_SCALE, GAP_MIN, GAP_MAX), LEFT)
    width = max(WIDTH_MIN, axis.end + RIGHT)
    processes = sorted({each.process for each in shown})
    bands = lay_out_bands(faults, axis, width - RIGHT)
    top = TOP + BAND * len({band.row for band in bands})
    lanes = {process: float(top + n * LANE) for n, process in enumerate(processes)}
    bars = _bars(part, shown, lanes, axis, width - RIGHT)
    points = _points(part, shown, lanes, axis)
    stuck = None if part.stuck is None else part.by_id(part.stuck)
    label = "open at this return" if part.undecided else "no order gets past this return"
    deadline = None
    if stuck is not None and stuck.return_ns is not None:
        deadline = round(axis.places[2 * stuck.return_ns + 1], 1)
    return Picture(
        width=round(width, 1),
        height=top + len(processes) * LANE + 24.0,
        lanes=tuple((y, f"client {process}") for process, y in lanes.items()),
        bars=bars,
        points=points,
        line=" ".join(f"{point.x},{point.y}" for point in points),
        ticks=_ticks(axis, width, is_timed=is_timed),
        deadline=deadline,
        deadline_label=label,
        # Text-anchor is the end; where the label would start outside the picture, move it right.
        deadline_label_x=max(deadline or 0.0, round(CHARACTER * len(label), 1)),
        title=f"{len(shown)} operations of {len(processes)} clients",
        left_out=len(part.operations) - len(shown),
        bands=bands,
    )


def role_of(op: int, part: FailingPart) -> str:
    """Return the role of an operation in the part."""
    if op == part.stuck:
        return "stuck"
    if op in part.accused:
        return "accused"
    if any(op == each for each, _ in part.could_not):
        return "blocked"
    return "placed" if any(op == each for each, _ in part.prefix) else "other"


def _bars(
    part: FailingPart,
    shown: Sequence[PartOperation],
    lanes: Mapping[int, float],
    axis: Axis,
    edge: float,
) -> tuple[Bar, ...]:
    following: dict[int, float] = {}  # process -> x where its next operation starts
    bars = []
    for each in reversed(shown):
        x = axis.places[2 * each.call_ns]
        if each.return_ns is None:
            end = min(edge, following.get(each.process, edge + 4) - 4)
        else:
            end = axis.places[2 * each.return_ns + 1]
        following[each.process] = x
        ended = "its outcome stayed unknown" if each.return_ns is None else each.outcome
        bars.append(
            Bar(
                x=round(x, 1),
                y=lanes[each.process] + BAR_DOWN,
                width=round(max(4.0, end - x), 1),
                role=role_of(each.op, part),
                outcome=each.outcome,
                is_open=each.return_ns is None,
                label=_short(each.call),
                title=f"{each.call}, client {each.process}, operation {each.op}: {ended}",
            )
        )
    return tuple(reversed(bars))


def _points(
    part: FailingPart, shown: Sequence[PartOperation], lanes: Mapping[int, float], axis: Axis
) -> tuple[Point, ...]:
    """Place the linearization points: each inside its operation and after the one before it."""
    by_id = {each.op: each for each in shown}
    order = [
        (number, by_id[op], state)
        for number, (op, state) in enumerate(part.prefix, 1)
        if op in by_id
    ]
    points: list[Point] = []
    latest = _latest(part, [each for _, each, _ in order], axis)
    at = 0.0
    for (number, each, state), end in zip(order, latest, strict=True):
        start = axis.places[2 * each.call_ns] + 8
        at = min(max(start, at + POINT_GAP if points else start), end)
        title = f"{number}. {each.call} takes effect: {state}"
        points.append(Point(round(at, 1), lanes[each.process] + 10, number, title))
    return tuple(points)


def _latest(part: FailingPart, order: Sequence[PartOperation], axis: Axis) -> list[float]:
    """Return how far to the right each linearization point may be.

    It lies inside its operation, before the points that follow, and before the return that no order
    gets past: by then, all of them must have taken effect.
    """
    stuck = None if part.stuck is None else part.by_id(part.stuck)
    end = axis.end
    if stuck is not None and stuck.return_ns is not None and 2 * stuck.return_ns + 1 in axis.places:
        end = axis.places[2 * stuck.return_ns + 1]
    latest = []
    for each in reversed(order):
        if each.return_ns is not None:
            end = min(end, axis.places[2 * each.return_ns + 1])
        end = max(end - POINT_GAP_MIN, axis.places[2 * each.call_ns])
        latest.append(end)
    return latest[::-1]


def _ticks(axis: Axis, width: float, *, is_timed: bool) -> tuple[tuple[float, str], ...]:
    ticks: list[tuple[float, str]] = []
    start = min(axis.places) // 2
    for moment, x in axis.places.items():
        has_room = x + TICK_ROOM <= width and (not ticks or x - ticks[-1][0] >= TICK_ROOM)
        if has_room or not ticks:
            text = _after(moment // 2 - start) if is_timed else f"event {moment // 2}"
            ticks.append((round(x, 1), text))
    return tuple(ticks)


def _after(length_ns: int) -> str:
    """Print a time since the part's start in a fitting unit."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if length_ns >= size:
            return f"+{length_ns / size:.3g} {unit}"
    return f"+{length_ns} ns"


def _short(text: str) -> str:
    return text if len(text) <= LABEL_MAX else text[: LABEL_MAX - 1] + "…"


# The faults of a history as bands behind the picture of its failing part. Pure.

Fault: TypeAlias = tuple[str, int, int | None]
"""Name, start_ns, and stop_ns if something ended it."""

BANDS_MAX: Final = 6
"""Faults in a picture: the last ones to start in its time."""
BAND: Final = 15.0
"""Height of a fault's name above the lanes."""
BAND_WIDTH_MIN: Final = 3.0
NAME_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Band:
    """One fault; `row` counts from 0, one row for each name. `title` gives its start and end."""

    x: float
    width: float
    row: int
    label: str
    title: str
    has_start: bool


def lay_out_bands(faults: Sequence[Fault], axis: Axis, edge: float) -> tuple[Band, ...]:
    """Place the faults that were active between the first and last moment of the axis."""
    first, last = min(axis.places) // 2, max(axis.places) // 2
    inside = [
        (name, start, stop)
        for name, start, stop in faults
        if start <= last and (stop is None or stop >= first)
    ][-BANDS_MAX:]
    rows = {name: row for row, name in enumerate(dict.fromkeys(name for name, _, _ in inside))}
    bands = []
    for name, start, stop in inside:
        left = place_of(start, axis)
        right = edge if stop is None or stop > last else place_of(stop, axis)
        shown = name if len(name) <= NAME_MAX else name[: NAME_MAX - 1] + "…"
        until = "until something that is not recorded" if stop is None else f"until {stop:,} ns"
        bands.append(
            Band(
                x=round(left, 1),
                width=round(max(BAND_WIDTH_MIN, right - left), 1),
                row=rows[name],
                label=shown,
                title=f"{name}, from {start:,} ns {until}",
                has_start=start >= first,
            )
        )
    return tuple(bands)


def place_of(time_ns: int, axis: Axis) -> float:
    """Return the place of any time, interpolated between the moments of the axis."""
    moments = sorted(axis.places)
    after = bisect_right(moments, 2 * time_ns)
    if after == 0:
        return axis.places[moments[0]]
    if after == len(moments):
        return axis.places[moments[-1]]
    before, then = moments[after - 1], moments[after]
    share = (2 * time_ns - before) / (then - before)
    return axis.places[before] + share * (axis.places[then] - axis.places[before])


# A time axis with all moments in order, roughly to scale, and with room for labels. Pure.
#
# Two moments never change their order. A stretch is as wide as its share of the total time, but at
# least `gap_min` (visible) and at most `gap_max` (saves room), and an operation is at least as wide
# as its label. The unit is the one in which the caller measures labels.


@dataclass(frozen=True, slots=True)
class Span:
    """An operation on the axis: `stop_ns` is None if it has no end. `width` is its label's."""

    start_ns: int
    stop_ns: int | None
    width: float


@dataclass(frozen=True, slots=True)
class Scale:
    """How times become widths: the total width to scale, and the limits of each gap."""

    total: float
    gap_min: float
    gap_max: float


@dataclass(frozen=True, slots=True)
class Axis:
    """The place of each moment; `end` is past the last one, with room for open ends."""

    places: dict[int, float]
    squeezed: tuple[tuple[float, int], ...]
    end: float


def place(spans: Sequence[Span], scale: Scale, left: float = 0.0) -> Axis:
    """Place all moments at which a span starts or stops.

    Intervals are closed: at the same time, calls come before returns. So a return needs a place of
    its own: `Axis.places` has the key 2 * time for a call and 2 * time + 1 for a return.
    """
    moments = sorted(
        {2 * span.start_ns for span in spans}
        | {2 * span.stop_ns + 1 for span in spans if span.stop_ns is not None}
    )
    assert moments, "an axis needs a moment"
    whole = max(1, moments[-1] - moments[0])
    widest: dict[int, list[tuple[int, float]]] = {}
    for span in spans:
        if span.stop_ns is not None:
            ends = widest.setdefault(2 * span.stop_ns + 1, [])
            ends.append((2 * span.start_ns, span.width))
    places = {moments[0]: left}
    squeezed = []
    for before, now in pairwise(moments):
        to_scale = scale.total * (now - before) / whole
        gap = min(max(to_scale, scale.gap_min), scale.gap_max)
        at = places[before] + gap
        for start, width in widest.get(now, ()):
            at = max(at, places[start] + width)
        if to_scale > scale.gap_max and at == places[before] + gap:
            squeezed.append((places[before] + gap / 2, (now - before) // 2))
        places[now] = at
    last = places[moments[-1]]
    open_ends = [places[2 * s.start_ns] + s.width for s in spans if s.stop_ns is None]
    end = max([last, *open_ends]) + scale.gap_min * (2 if open_ends else 0)
    return Axis(places, tuple(squeezed), end)


# The failing part of a history as lines of text: clients as rows, time to the right. Pure.
#
# client 0  |-1 write 3-|
# client 1      |-2 write 4---|
# client 2                       |X read 3---|

TEXT_OPERATIONS_MAX: Final = 16
"""Operations that are drawn; fewer in a narrow terminal."""
OPERATIONS_MIN: Final = 4
STATES_SHOWN_MAX: Final = 5
EVIDENCE_SHOWN_MAX: Final = 4
COULD_NOT_SHOWN_MAX: Final = 4
TEXT_LABEL_MAX: Final = 28
STUCK: Final = "X"
OPEN: Final = "...?"


def text_lines(part: FailingPart, width: int, said: str = "") -> list[str]:
    """Draw a failing part, at most `width` columns wide if possible.

    `said` is the finding's message, shown before: a reason that it gives is not given again.
    """
    count = TEXT_OPERATIONS_MAX
    while True:
        drawn = _drawing(part, count)
        if count <= OPERATIONS_MIN or max(map(len, drawn)) <= width:
            break
        count -= 1
    left_out = len(part.operations) - min(count, len(part.operations))
    if left_out:
        drawn.append(f"({left_out} more operations of this part are not drawn)")
    return drawn + _sentences(part, width, said)


def _drawing(part: FailingPart, count: int) -> list[str]:
    shown = part.focus(count)
    numbers = numbering(part)
    spans = [
        Span(each.call_ns, each.return_ns, len(_label(each, part, numbers)) + 1) for each in shown
    ]
    axis = place(spans, Scale(0, 1, 1))
    rows: dict[int, list[str]] = {}
    order: dict[int, list[PartOperation]] = {}
    for each in shown:
        order.setdefault(each.process, []).append(each)
    names = {process: f"client {process}" for process in sorted(order)}
    left = max(map(len, names.values())) + 2
    for process, operations in sorted(order.items()):
        row = rows.setdefault(process, [])
        for each in operations:
            _put(row, each, _label(each, part, numbers), axis)
    return [f"{names[process]:{left}}{''.join(row)}".rstrip() for process, row in rows.items()]


def numbering(part: FailingPart) -> Mapping[int, int]:
    """Number the operations of the prefix in its order, from 1."""
    return {op: number for number, (op, _) in enumerate(part.prefix, 1)}


def _label(each: PartOperation, part: FailingPart, numbers: Mapping[int, int]) -> str:
    call = each.call if len(each.call) <= TEXT_LABEL_MAX else each.call[: TEXT_LABEL_MAX - 1] + "…"
    if each.op == part.stuck or each.op in part.accused:
        call = f"{STUCK} {call}"
    elif each.op in numbers:
        call = f"{numbers[each.op]} {call}"
    return f"|-{call}-{OPEN if each.return_ns is None else ''}"


def _put(row: list[str], each: PartOperation, label: str, axis: Axis) -> None:
    start = int(axis.places[2 * each.call_ns])
    stop = None if each.return_ns is None else int(axis.places[2 * each.return_ns + 1])
    text = label if stop is None else label.ljust(stop - start, "-") + "|"
    row.extend(" " * (start - len(row)))
    del row[start:]  # cut an operation of unknown outcome where its client continues
    row.extend(text)


def _sentences(part: FailingPart, width: int, said: str) -> list[str]:
    sentences: list[str] = []
    if part.stuck is None and not part.prefix:
        return sentences
    if part.before:
        sentences.append(f"{part.before:,} operations had returned before.")
    if part.states:
        sentences.append(f"Then it held {_either(part.states)}.")
    if part.prefix:
        more = len(part.prefix) - STATES_SHOWN_MAX
        numbers = numbering(part)
        steps = [f"{numbers[op]}: {state}" for op, state in part.prefix[-STATES_SHOWN_MAX:]]
        ellipsis = "... " if more > 0 else ""
        sentences.append(f"The longest order that works leaves {ellipsis}{', '.join(steps)}.")
    elif not part.is_accusation and not part.undecided:
        sentences.append("No operation can come first.")
    could_not = [(op, why) for op, why in part.could_not if why.removesuffix(".") not in said]
    for op, why in could_not[:COULD_NOT_SHOWN_MAX]:
        each = part.by_id(op)
        what = f"operation {op}" if each is None else f"{each.call} by client {each.process}"
        sentences.append(f"Next cannot be {what}: {why}.")
    if len(could_not) > COULD_NOT_SHOWN_MAX:
        sentences.append(f"Nor can {len(could_not) - COULD_NOT_SHOWN_MAX} others.")
    evidence = part.evidence[:EVIDENCE_SHOWN_MAX]
    sentences += [f"Indeterminate: {sentence}" for sentence in evidence]
    if len(part.evidence) > EVIDENCE_SHOWN_MAX:
        sentences.append(
            f"So are {len(part.evidence) - EVIDENCE_SHOWN_MAX} others; --json has them."
        )
    if part.undecided:
        sentences.append(f"Undecided: the budget of {part.undecided} was used up.")
    return ["", *_wrapped(sentences, width)]


def _either(states: Sequence[str]) -> str:
    shown = list(states[:STATES_SHOWN_MAX])
    return " or ".join(shown) + (" or more" if len(states) > len(shown) else "")


def _wrapped(sentences: Sequence[str], width: int) -> list[str]:
    return [line for text in sentences for line in textwrap.wrap(text, max(40, width))]


# A cycle of dependencies.

WIDTH: Final = 760
NODE_WIDTH: Final = 190
NODE_HEIGHT: Final = 46
MARGIN: Final = 30
RISE: Final = 92
"""Vertical distance between the middles of two boxes in a column."""
LINKS_MAX: Final = 12
"""Edges that are drawn; a longer cycle is only listed."""
EDGES_TOLD_MAX: Final = 60
TEXT_MAX: Final = 300
NODE_LABEL_MAX: Final = 27

EDGES: Final[Mapping[str, str]] = {
    "ww": "the log has the first one's value before the second one's",
    "wr": "the second one was given the value that the first one had put there",
    "rw": "the first one did not see yet what the second one put there",
    "co": "a third one, which had seen the first one, read an older value by the second one",
    "process": "one client did them in this order",
    "realtime": "the first one had returned before the second one was called",
}
"""The meaning of an edge, by its kind."""


@dataclass(frozen=True, slots=True)
class CycleNode:
    """An operation of a cycle, as a box."""

    x: float
    y: float
    op: int
    label: str
    who: str


@dataclass(frozen=True, slots=True)
class CycleEdge:
    """An edge: its path from box to box, where its kind is written, and its evidence."""

    path: str
    x: float
    y: float
    kind: str
    number: int
    source: int
    target: int
    meaning: str
    why: str


@dataclass(frozen=True, slots=True)
class CycleGraph:
    """A cycle: listed edge by edge, and drawn if it is short enough (then it has `nodes`)."""

    nodes: tuple[CycleNode, ...]
    edges: tuple[CycleEdge, ...]
    width: int
    height: int
    conclusion: str
    left_out: int = 0


def cycle_graph_of(
    details: Mapping[str, Any], describe: Callable[[int], tuple[str, str]]
) -> CycleGraph | None:
    """Read the cycle in a finding's details ("cycle"); None if there is none.

    Args:
        details: of the finding.
        describe: returns for an operation's id what it did, and which client did it when.
    """
    links = [link for link in map(_link, listed(details.get("cycle"))) if link is not None]
    if not links:
        return None
    ops = [source for source, _, _, _ in links]
    is_drawn = len(links) <= LINKS_MAX
    centres, height = _places(len(ops)) if is_drawn else ([], 0)
    edges = []
    for number, (source, target, kind, why) in enumerate(links[:EDGES_TOLD_MAX]):
        path, x, y = _path(number, centres) if is_drawn else ("", 0.0, 0.0)
        meaning = EDGES.get(kind, kind)
        edges.append(CycleEdge(path, x, y, kind, number + 1, source, target, meaning, why))
    nodes = []
    for op, (x, y) in zip(ops, centres, strict=False):
        label, who = describe(op)
        nodes.append(CycleNode(x, y, op, _cut(label, NODE_LABEL_MAX), _cut(who, NODE_LABEL_MAX)))
    return CycleGraph(
        tuple(nodes),
        tuple(edges),
        WIDTH,
        height,
        _conclusion(links),
        max(0, len(links) - EDGES_TOLD_MAX),
    )


def _conclusion(links: Sequence[tuple[int, int, str, str]]) -> str:
    first = links[0][0]
    steps = f"{len(links)} steps" if len(links) != 1 else "one step"
    return (
        f"Each arrow means that one operation must come before another. Following them from"
        f" op {first} leads back to op {first} in {steps}: it would have to come before itself,"
        f" so no order of these operations fits all of them."
    )


def _link(link: object) -> tuple[int, int, str, str] | None:
    if not isinstance(link, Mapping):
        return None
    source, target = link.get("from"), link.get("to")
    if not is_whole(source) or not is_whole(target) or max(abs(source), abs(target)) > ID_MAX:
        return None
    return source, target, _cut(str(link.get("edge")), 20), _cut(str(link.get("why")), TEXT_MAX)


def _places(count: int) -> tuple[list[tuple[float, float]], int]:
    """Place boxes in two columns: down the left one, then up the right one."""
    down = (count + 1) // 2
    height = 2 * MARGIN + NODE_HEIGHT + max(1, down - 1) * RISE
    left = MARGIN + NODE_WIDTH / 2
    heights = [*_spread(down, height), *reversed(_spread(count - down, height))]
    columns = [left] * down + [WIDTH - left] * (count - down)
    return list(zip(columns, heights, strict=True)), height


def _spread(count: int, height: int) -> list[float]:
    """Return the middles of `count` boxes in a column, from top to bottom."""
    top, bottom = MARGIN + NODE_HEIGHT / 2, height - MARGIN - NODE_HEIGHT / 2
    if count == 1:
        return [(top + bottom) / 2]
    return [round(top + n * (bottom - top) / (count - 1), 1) for n in range(count)]


def _path(number: int, centres: Sequence[tuple[float, float]]) -> tuple[str, float, float]:
    """Return the curve of an edge to the next box, and the place of its label."""
    (x1, y1), (x2, y2) = centres[number], centres[(number + 1) % len(centres)]
    if len(centres) == 1:
        top = y1 - NODE_HEIGHT / 2
        loop = f"M {x1 - 20} {top} C {x1 - 60} {top - 50} {x1 + 60} {top - 50} {x1 + 20} {top}"
        return loop, x1, top - 42
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    # Bend to one side, so that the two edges between two boxes do not overlap.
    bend = 34 if len(centres) == 2 else 12
    out_x, out_y = (y2 - y1) / length * bend, -(x2 - x1) / length * bend
    control = ((x1 + x2) / 2 + 2 * out_x, (y1 + y2) / 2 + 2 * out_y)
    start = _border((x1, y1), control)
    end = _border((x2, y2), control)
    path = f"M {start[0]} {start[1]} Q {control[0]:.1f} {control[1]:.1f} {end[0]} {end[1]}"
    label_x = (start[0] + 2 * control[0] + end[0]) / 4
    label_y = (start[1] + 2 * control[1] + end[1]) / 4
    return path, round(label_x, 1), round(label_y + 4, 1)


def _border(box: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """Return where the line from a box's middle to a point leaves the box."""
    dx, dy = towards[0] - box[0], towards[1] - box[1]
    shares = [
        half / abs(step)
        for half, step in ((NODE_WIDTH / 2 + 3, dx), (NODE_HEIGHT / 2 + 3, dy))
        if step
    ]
    share = min([*shares, 1.0])
    return round(box[0] + dx * share, 1), round(box[1] + dy * share, 1)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
