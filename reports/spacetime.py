"""Lay out the space-time diagram of a violation: clients as rows, time to the right.

Idle stretches are compressed, so that an append and a read that contradicts it a minute later are
both readable. The template draws what is laid out here (and escapes the text).

Source: Lamport's space-time diagrams, as in maelstrom's messages.svg and Jepsen's timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.reports.run_view import OperationRow, RoleSpan

WIDTH = 960
LEFT = 84
RIGHT = 28
TOP = 34
ROW = 30
BAR = 14
SQUEEZED_MAX = 9
"""Gaps that are compressed in a picture with few operations."""

BAR_WIDTH_MIN = 3.0
LABEL_GAP = 3.0
"""Minimum distance of two labels of one lane."""

CAS_ANSWERS = {0: ": not done", 1: ""}
"""The result of a compare-and-set: another value was found, or it took effect."""

ROLES_MAX = 300
"""Role spans that are drawn, the widest ones."""

OUTPUT_TEXT_MAX = 20
"""Characters of a non-numeric output in a label."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One operation: `open_ended` if its outcome stayed unknown. `number` is its table row."""

    x: float
    y: float
    width: float
    outcome: str
    marked: bool
    open_ended: bool
    number: int
    label: str
    label_x: float
    label_anchor: str
    show_number: bool
    title: str


@dataclass(frozen=True, slots=True)
class Band:
    """One fault behind the operations; `label` is "" where there is no room for one."""

    x: float
    width: float
    name: str
    title: str
    label: str
    label_x: float


@dataclass(frozen=True, slots=True)
class RoleBar:
    """A role span in a node's lane; `label` is its role and term, "" where there is no room."""

    x: float
    y: float
    width: float
    role: str
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that the template draws, in the units of its view box.

    `node_rows` and `roles` are the nodes' lanes below the clients', if any were given.
    """

    width: int
    height: int
    rows: tuple[tuple[float, str], ...]
    bands: tuple[Band, ...]
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]
    breaks: tuple[tuple[float, str], ...]
    title: str
    node_rows: tuple[tuple[float, str], ...] = ()
    roles: tuple[RoleBar, ...] = ()


def describe(row: OperationRow) -> str:
    """Describe an operation briefly, for its label: `append 17 → @120`."""
    at = "" if row.offset is None else f" @{row.offset}"
    given = "" if row.input is None else f" {row.input}"
    is_cas = row.f == "cas" and row.expected is not None
    if is_cas:
        given = f" {row.expected} → {row.input}"
    if row.request:
        given = f' "{row.request}"'
    if row.output_text and row.outcome == "ok":
        short = (
            row.output_text
            if len(row.output_text) <= OUTPUT_TEXT_MAX
            else row.output_text[: OUTPUT_TEXT_MAX - 1] + "…"
        )
        return f"{row.f}{given}{at}: {short}"
    if row.f in ("append", "send", "commit") or (
        given and row.output is None and row.outcome == "ok"
    ):
        return f"{row.f}{given}{at}"  # the only result is that it was done
    if row.f in ("assign", "seek", "subscribe", "unsubscribe"):
        return f"{row.f}{at}"
    if row.f == "poll" and row.outcome == "ok" and row.output is None:
        return f"poll{at}"  # its messages are a list, shown in the finding
    if is_cas and row.outcome == "ok" and row.output in CAS_ANSWERS:
        return f"{row.f}{given}{at}{CAS_ANSWERS[row.output]}"
    result = {"ok": "nothing" if row.output is None else str(row.output)}.get(
        row.outcome, row.outcome
    )
    return f"{row.f}{given}{at}: {result}"


def lay_out(
    rows: Sequence[OperationRow],
    windows: Sequence[FaultWindow],
    lanes: Sequence[RoleSpan] = (),
    moments: Sequence[int] = (),
    *,
    all_labels: bool = False,
) -> Picture:
    """Lay out operations, numbered as given, over the faults that overlap them.

    Args:
        rows: the operations; may be empty if there is a moment: the time before it is drawn then.
        windows: the faults.
        lanes: the nodes' roles over time; each node gets a lane below the clients'.
        moments: times (ns) that the picture must include.
        all_labels: label every operation for which there is room, not only the marked ones, and
            compress the longest gaps between them: for a picture with few operations.
    """
    processes = sorted({row.process for row in rows})
    of_clients = {process: TOP + n * ROW for n, process in enumerate(processes)}
    right = float(WIDTH - RIGHT)
    spans = [(row.call_ns, row.call_ns if row.return_ns is None else row.return_ns) for row in rows]
    spans += [(moment, moment) for moment in moments]
    if not rows:  # a moment alone shows nothing of who led, and of what they did since
        spans += [(max(0, moment - BEFORE_NS), moment) for moment in moments[:1]]
    axis = time_axis(spans, LEFT, right, SQUEEZED_MAX if all_labels else 0)
    nodes = sorted({span.node for span in lanes})
    of_nodes = {node: TOP + (len(processes) + n) * ROW for n, node in enumerate(nodes)}
    bottom = TOP + (len(processes) + len(nodes)) * ROW
    return Picture(
        width=WIDTH,
        height=bottom + 38,
        rows=tuple((y + ROW / 2, f"client {process}") for process, y in of_clients.items()),
        bands=_bands(windows, axis),
        bars=_bars(rows, of_clients, axis, right, all_labels=all_labels),
        ticks=ticks(axis, WIDTH),
        breaks=breaks(axis),
        title=f"{len(rows)} operations of {len(processes)} clients",
        node_rows=tuple((y + ROW / 2, node) for node, y in of_nodes.items()),
        roles=_roles(lanes, of_nodes, axis),
    )


def _roles(
    lanes: Sequence[RoleSpan], of_nodes: dict[str, int], axis: TimeAxis
) -> tuple[RoleBar, ...]:
    """Place the role spans that are within the time of the picture."""
    bars = []
    start, end = axis.times[0], axis.times[-1]
    for span in lanes:
        if span.stop_ns < start or span.start_ns > end:
            continue
        x, stop = axis.x(span.start_ns), axis.x(span.stop_ns)
        term = "" if span.term is None else f" {span.term}"
        full = f"{span.role}{term}"
        label = full if LABEL_WIDTH * (len(full) + 1) <= stop - x else ""
        when = f"{span.start_ns / 1e9:.3f} s to {span.stop_ns / 1e9:.3f} s"
        title = f"{span.node}: {span.role}{f' in term{term}' if term else ''}, {when}"
        bars.append(
            RoleBar(
                round(x, 1), of_nodes[span.node] + ROW - BAR - 2, round(max(1.0, stop - x), 1),
                span.role, label, title,
            )
        )  # fmt: skip
    if len(bars) > ROLES_MAX:  # in compressed stretches they are too narrow to be seen
        bars = sorted(bars, key=lambda bar: -bar.width)[:ROLES_MAX]
    return tuple(bars)


def _bars(
    rows: Sequence[OperationRow],
    lanes: dict[int, int],
    axis: TimeAxis,
    right: float,
    *,
    all_labels: bool = False,
) -> tuple[Bar, ...]:
    places = _label_places(rows, axis, right, all_labels=all_labels)
    bars = []
    for number, row in enumerate(rows, start=1):
        x = axis.x(row.call_ns)
        end = right if row.return_ns is None else axis.x(row.return_ns)
        place = places.get(number)
        bars.append(
            Bar(
                x=round(x, 1),
                y=lanes[row.process] + ROW - BAR - 2,
                width=round(max(BAR_WIDTH_MIN, end - x), 1),
                outcome=row.outcome,
                marked=row.marked,
                open_ended=row.return_ns is None,
                number=number,
                label=str(number) if place is None else place.text,
                label_x=round(x, 1),
                label_anchor="start" if place is None or place.from_x >= x else "end",
                show_number=place is not None,
                title=f"{number}: {describe(row)}, {row.outcome}"
                + (f", answered by {row.node}" if row.node else ""),
            )
        )
    return tuple(bars)


@dataclass(frozen=True, slots=True)
class _Place:
    """The horizontal place of a label in its lane."""

    text: str
    from_x: float
    to_x: float

    def hits(self, other: _Place) -> bool:
        """Return whether the two labels would overlap."""
        return self.from_x < other.to_x + LABEL_GAP and other.from_x < self.to_x + LABEL_GAP


def _label_places(
    rows: Sequence[OperationRow], axis: TimeAxis, right: float, *, all_labels: bool
) -> dict[int, _Place]:
    """Return labels for operations where there is room, by their number; marked ones first.

    A marked operation always has at least its number, even if that overlaps another label.
    """
    placed: dict[int, list[_Place]] = {}
    next_x = _next_starts(rows, axis)
    found: dict[int, _Place] = {}
    numbered = sorted(enumerate(rows, start=1), key=lambda each: (not each[1].marked, each[0]))
    for number, row in numbered:
        x = axis.x(row.call_ns)
        labels = [f"{number} {describe(row)}"] if row.marked or all_labels else []
        tries = [_Place(text, x, x + _width(text)) for text in (*labels, str(number))]
        if row.marked or all_labels:  # also try the left of its start
            left = [_Place(each.text, x - _width(each.text), x) for each in tries]
            tries = [each for pair in zip(tries, left, strict=True) for each in pair]
        beside = placed.setdefault(row.process, [])
        until = right if row.marked else next_x.get(number, right)
        free = (
            each
            for each in tries
            if each.from_x >= LEFT
            and (each.to_x <= right if each.text == str(number) else each.to_x <= until)
            and not any(map(each.hits, beside))
        )
        place = next(free, tries[-2] if row.marked else None)
        if place is not None:
            found[number] = place
            beside.append(place)
    return found


def _next_starts(rows: Sequence[OperationRow], axis: TimeAxis) -> dict[int, float]:
    """Return where each client's next operation starts, by number: the label must end before."""
    found: dict[int, float] = {}
    last: dict[int, int] = {}
    for number, row in enumerate(rows, start=1):
        if row.process in last:
            found[last[row.process]] = axis.x(row.call_ns)
        last[row.process] = number
    return found


def _width(text: str) -> float:
    return LABEL_WIDTH * len(text)


def _bands(windows: Sequence[FaultWindow], axis: TimeAxis) -> tuple[Band, ...]:
    bands = []
    starts = [axis.x(window.from_ns) for window in windows]
    labelled_to = 0.0
    for at, window in enumerate(windows):
        x, end = starts[at], axis.x(window.stop_ns)
        label_x = round(x + 3, 1)
        room = min((other for other in starts[at + 1 :] if other > x), default=WIDTH) - x
        label = f"{window.fault}: {window.description}"
        if _width(label) > room:
            label = str(window.fault)
        if label_x < labelled_to:
            label = ""
        labelled_to = max(labelled_to, label_x + _width(label) + LABEL_WIDTH if label else 0.0)
        title = f"{window.name} {window.fault}: {window.description}"
        bands.append(
            Band(round(x, 1), round(max(2.0, end - x), 1), window.name, title, label, label_x)
        )
    return tuple(bands)


# A time axis that compresses idle stretches, with its ticks and the lengths compressed.

BEFORE_NS = 3_000_000_000
"""How much is drawn of the time before the first moment, where no operation is shown."""
BREAK_WIDTH = 34
"""Width of a compressed stretch of time."""

BREAK_BUSY = 3
BREAK_MEDIAN = 8
"""A gap is compressed if it is longer than BREAK_BUSY times the time in which operations ran, and
than BREAK_MEDIAN times the median gap: evenly sparse operations are not compressed."""

TICKS_MAX = 8
LABEL_WIDTH = 7.0
"""Approximate width of one character of a label."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """A piecewise linear map from time to x: busy stretches to scale, idle ones compressed."""

    times: tuple[int, ...]
    xs: tuple[float, ...]

    def x(self, time_ns: int) -> float:
        """Return the x of a time, clamped to the axis."""
        if time_ns <= self.times[0]:
            return self.xs[0]
        for n in range(1, len(self.times)):
            if time_ns <= self.times[n]:
                share = (time_ns - self.times[n - 1]) / (self.times[n] - self.times[n - 1])
                return self.xs[n - 1] + share * (self.xs[n] - self.xs[n - 1])
        return self.xs[-1]


def time_axis(
    spans: Iterable[tuple[int, int]], left: float, right: float, squeezed_max: int = 0
) -> TimeAxis:
    """Fit the spans of time (start, stop) between two x.

    Args:
        spans: at least one, in ns.
        left: where the first one starts.
        right: where the last one ends.
        squeezed_max: compress this many of the longest gaps, however sparse the operations: with
            few operations, what they did matters more than how far apart they are.
    """
    merged: list[list[int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    assert merged
    busy = sum(stop - start for start, stop in merged) or 1_000_000
    gaps = sorted(after[0] - before[1] for before, after in pairwise(merged))
    median = gaps[(len(gaps) - 1) // 2] if len(gaps) > 1 else 0
    squeezed = max(BREAK_BUSY * busy, BREAK_MEDIAN * median)
    if squeezed_max:
        squeezed = max(BREAK_BUSY * busy, gaps[-squeezed_max - 1] if gaps[squeezed_max:] else 0)
    pieces: list[list[int]] = [merged[0]]
    for start, stop in merged[1:]:
        if start - pieces[-1][1] <= squeezed:
            pieces[-1][1] = stop
        else:
            pieces.append([start, stop])
    # A piece that is a single moment still needs some width.
    pieces = [[start, max(stop, start + max(1, busy // 50))] for start, stop in pieces]
    shown = sum(stop - start for start, stop in pieces)
    scale = (right - left - BREAK_WIDTH * (len(pieces) - 1)) / shown
    times: list[int] = []
    xs: list[float] = []
    x = left
    for start, stop in pieces:
        times.append(start)
        xs.append(x)
        x += (stop - start) * scale
        times.append(stop)
        xs.append(x)
        x += BREAK_WIDTH
    return TimeAxis(tuple(times), tuple(xs))


def ticks(axis: TimeAxis, width: float) -> tuple[tuple[float, str], ...]:
    """Return ticks at round times of each stretch, or at its start, as far as there is room."""
    pieces = list(zip(axis.times[::2], axis.times[1::2], strict=True))
    step = _round_step(sum(stop - start for start, stop in pieces) // TICKS_MAX)
    marks: list[tuple[float, str]] = []
    for start, stop in pieces:
        for time_ns in list(range(-(-start // step) * step, stop + 1, step)) or [start]:
            x = axis.x(time_ns)
            label = seconds(time_ns, step)
            room = LABEL_WIDTH * (len(label) + 1)
            if x + room <= width and (not marks or x - marks[-1][0] >= room):
                marks.append((round(x, 1), label))
    return tuple(marks)


def _round_step(at_least_ns: int) -> int:
    """Return the next round step of 1, 2, 5, 10, ... us."""
    scale = 1000
    while True:
        for factor in (1, 2, 5):
            if factor * scale >= at_least_ns:
                return factor * scale
        scale *= 10


def breaks(axis: TimeAxis) -> tuple[tuple[float, str], ...]:
    """Label each compressed stretch with its length, as far as there is room."""
    found: list[tuple[float, str]] = []
    labelled_to = 0.0
    for n in range(1, len(axis.times) - 1, 2):
        x = (axis.xs[n] + axis.xs[n + 1]) / 2
        length_ns = axis.times[n + 1] - axis.times[n]
        label = f"+{seconds(length_ns, length_ns // 20)}"
        half = LABEL_WIDTH * (len(label) + 1) / 2
        if x - half < labelled_to:
            label = ""
        else:
            labelled_to = x + half
        found.append((round(x, 1), label))
    return tuple(found)


def seconds(time_ns: int, resolution_ns: int) -> str:
    """Print a time in seconds, with the digits that a step of `resolution_ns` needs."""
    digits = 0
    while digits < 6 and resolution_ns < 10 ** (9 - digits):
        digits += 1
    return f"{time_ns / 1e9:.{digits}f} s"
