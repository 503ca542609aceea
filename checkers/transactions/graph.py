"""Graphs of transactions whose edges have reasons, and their shortest cycles."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shaketable.checkers.kernels.components import components

SO, RT, WR, WW, RW, CO, FIRST = "so", "rt", "wr", "ww", "rw", "co", "first"
STARTS_MAX: Final = 50
"""Nodes of a component from which a shortest cycle is sought."""


class Edge(NamedTuple):
    """One transaction comes before another.

    `kind`: so, the session's order; rt, real time; wr, the other read it; ww, the other wrote the
    next version of `key`; rw, the other wrote the version after the one that it read; co, the
    other must come later because `via` read `key` from it, although it had seen the first, which
    wrote that key as well; first, what keys hold at first was there before.
    """

    source: int
    target: int
    kind: str
    key: Any = None
    via: int = -1


def cycles(nodes: int, edges: Sequence[Edge]) -> list[list[Edge]]:
    """Return a shortest cycle of each component that has one, by the first node in it."""
    return [cycle for part in cyclic_parts(nodes, edges) if (cycle := shortest(part)) is not None]


def cyclic_parts(nodes: int, edges: Sequence[Edge]) -> list[list[Edge]]:
    """Return the edges inside each strongly connected component that has some."""
    if not edges:
        return []
    sources = np.array([edge.source for edge in edges], dtype=np.int64)
    targets = np.array([edge.target for edge in edges], dtype=np.int64)
    of = components(nodes, sources, targets)
    inside = np.flatnonzero(of[sources] == of[targets])
    parts: dict[int, list[Edge]] = {}
    for place in inside.tolist():
        parts.setdefault(int(of[sources[place]]), []).append(edges[place])
    return sorted(parts.values(), key=lambda part: min(edge.source for edge in part))


def shortest(
    part: Sequence[Edge], among: Callable[[Edge], bool] | None = None
) -> list[Edge] | None:
    """Return a shortest cycle of some edges that has an edge of `among` (any edge by default)."""
    after: dict[int, list[Edge]] = {}
    for edge in part:
        after.setdefault(edge.source, []).append(edge)
    best: list[Edge] | None = None
    tried = 0
    for edge in part:
        if among is not None and not among(edge):
            continue
        tried += 1
        path = path_to(after, edge.target, edge.source, len(best or part))
        if path is not None and (best is None or len(path) + 1 < len(best)):
            best = [edge, *path]
        if tried >= STARTS_MAX and best is not None:
            break
    return best


def path_to(after: dict[int, list[Edge]], start: int, goal: int, longest: int) -> list[Edge] | None:
    """Return a shortest path, breadth first; None if there is none, or none that short."""
    by: dict[int, Edge | None] = {start: None}
    depth = {start: 0}
    waiting = deque((start,))
    while waiting and goal not in by:
        node = waiting.popleft()
        if depth[node] >= longest:
            return None
        for edge in after.get(node, ()):
            if edge.target not in by:
                by[edge.target] = edge
                depth[edge.target] = depth[node] + 1
                waiting.append(edge.target)
    if goal not in by:
        return None
    path: list[Edge] = []
    node = goal
    while (edge_by := by[node]) is not None:
        path.append(edge_by)
        node = edge_by.source
    return path[::-1]


def distinct(edges: Iterable[Edge]) -> list[Edge]:
    """Return the edges without loops and with one of each source, target and kind."""
    seen: dict[tuple[int, int, str], Edge] = {}
    for edge in edges:
        if edge.source != edge.target:
            seen.setdefault((edge.source, edge.target, edge.kind), edge)
    return list(seen.values())
