"""Lay out a cycle of dependencies as a graph with labelled edges, and explain it. Pure.

Source: the drawings of anomalies in Elle (Alvaro & Kingsbury, VLDB 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shaketable.reports.plain_json import ID_MAX, is_whole, listed

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
LABEL_MAX: Final = 27

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
        nodes.append(CycleNode(x, y, op, _cut(label, LABEL_MAX), _cut(who, LABEL_MAX)))
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
