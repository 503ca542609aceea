"""Graphs of transactions as arrays of edges that have reasons, and their shortest cycles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.components import components
from shaketable.checkers.kernels.transactions.paths import Graph, shortest_cycles

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
SO, RT, WR, WW, RW, CO, FIRST = range(7)
KINDS: Final = ("so", "rt", "wr", "ww", "rw", "co", "first")
STARTS_MAX: Final = 50
"""Edges of a component from which a shortest cycle is sought, at the least."""
WORK_MAX: Final = 50_000_000
"""Edges of a component that are looked at for its shortest cycle; then the best so far counts."""
NO_KEY: Final = -1


class Edge(NamedTuple):
    """One transaction comes before another.

    `kind`: SO, the session's order; RT, real time; WR, the other read it; WW, the other wrote the
    next version of `key`; RW, the other wrote the version after the one that it read; CO, the
    other must come later because `via` read `key` from it, although it had seen the first, which
    wrote that key as well; FIRST, what keys hold at first was there before.
    """

    source: int
    target: int
    kind: int
    key: int = NO_KEY
    via: int = -1


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges by column; see Edge."""

    source: Ints
    target: Ints
    kind: npt.NDArray[np.int8]
    key: npt.NDArray[np.int32]
    via: npt.NDArray[np.int32]

    @classmethod
    def of(
        cls, kind: int, source: Ints, target: Ints, key: Ints | None = None, via: Ints | None = None
    ) -> Edges:
        """Return the edges of one kind, but for those that lead to where they start."""
        keep = source != target
        none = np.full(int(np.count_nonzero(keep)), NO_KEY, np.int32)
        return cls(
            source[keep],
            target[keep],
            np.full(len(none), kind, np.int8),
            none if key is None else key[keep].astype(np.int32),
            none if via is None else via[keep].astype(np.int32),
        )

    @classmethod
    def joined(cls, *parts: Edges) -> Edges:
        """Return the edges of all parts, in their order."""
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(*(np.concatenate(each) for each in columns))

    @property
    def columns(self) -> tuple[Any, ...]:
        """All columns, in their order."""
        return self.source, self.target, self.kind, self.key, self.via

    def __len__(self) -> int:
        return len(self.source)

    def only(self, which: Bools | Ints) -> Edges:
        """Return some of the edges."""
        return Edges(*(column[which] for column in self.columns))

    def edge(self, place: int) -> Edge:
        """Return one edge."""
        return Edge(*(int(column[place]) for column in self.columns))


def within(edges: Edges, part: Ints) -> Edges:
    """Return the edges inside components, which are numbered as `number_parts` does."""
    return edges.only((part[edges.source] >= 0) & (part[edges.source] == part[edges.target]))


@dataclass(frozen=True, slots=True)
class Cycle:
    """A shortest cycle of a component, and the component's number among those with cycles."""

    part: int
    edges: tuple[Edge, ...]


def number_parts(nodes: int, *parts: Edges) -> tuple[Ints, int]:
    """Number the strongly connected components that have edges; -1 for all other nodes.

    `parts`: the edges, all together. Returns the number of each node's component, and how many
    there are; they are numbered by the first of their nodes.
    """
    source = np.concatenate([part.source for part in parts])
    target = np.concatenate([part.target for part in parts])
    part = np.full(nodes, -1, np.int64)
    if not len(source):
        return part, 0
    of = components(nodes, source, target)
    if of.max() == nodes - 1:  # each is its own component
        return part, 0
    cyclic = np.unique(source[of[source] == of[target]])
    _, first, inverse = np.unique(of[cyclic], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    part[cyclic] = rank[inverse]
    return part, len(first)


def cycles(
    part: Ints,
    count: int,
    edges: Edges,
    among: Bools | None = None,
    through: Bools | None = None,
    *,
    starts_max: int = STARTS_MAX,
) -> tuple[list[Cycle], Bools]:
    """Return a shortest cycle of each component that has one, by the component's number.

    Args:
        part: components, as `number_parts` returns them, of these edges or of more.
        count: how many there are.
        edges: the edges.
        among: the edges of which a cycle must have one; all by default.
        through: the edges that all others must be of; all by default.
        starts_max: after so many starts a found cycle will do.

    Returns:
        The cycles, and for each component whether the search was ended by WORK_MAX.
    """
    is_cut = np.zeros(count, np.bool_)
    inside = (part[edges.source] >= 0) & (part[edges.source] == part[edges.target])
    if not inside.any():
        return [], is_cut
    edges = edges.only(inside)
    first = np.arange(len(edges)) if among is None else np.flatnonzero(among[inside])
    usable = np.arange(len(edges)) if through is None else np.flatnonzero(through[inside])
    usable = usable[np.argsort(edges.source[usable], kind="stable")]
    starts = np.searchsorted(edges.source[usable], np.arange(len(part) + 1))
    of = part[edges.source[first]]
    first = first[np.argsort(of, kind="stable")]
    first_starts = np.searchsorted(part[edges.source[first]], np.arange(count + 1))
    found = np.empty(int(np.count_nonzero(part >= 0)) + 1, np.int64)
    graph = Graph(edges.source, edges.target, part, starts, usable)
    limits = np.array((starts_max, WORK_MAX), np.int64)
    cycle_starts = shortest_cycles(graph, first, first_starts, limits, found, is_cut)
    return list(_cycles(cycle_starts, found, edges)), is_cut


def _cycles(starts: Ints, found: Ints, edges: Edges) -> Iterator[Cycle]:
    for number, start, stop in zip(range(len(starts) - 1), starts, starts[1:], strict=False):
        if stop > start:
            yield Cycle(number, tuple(edges.edge(int(place)) for place in found[start:stop]))
