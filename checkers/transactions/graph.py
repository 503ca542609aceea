"""Graphs of transactions as arrays of edges that have reasons, and their shortest cycles.

With the edges of real time: one transaction returned before another was called.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.components import components
from shaketable.checkers.kernels.transactions.graphs import Graph, frontier_edges, shortest_cycles
from shaketable.checkers.transactions.history import NEVER, Transactions

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


# The order in real time.


def has_order(txns: Transactions, among: Bools) -> bool:
    """Return whether any of some transactions returned before another of them was called."""
    if not among.any():
        return False
    return bool(txns.end_ns[among].min() < txns.call_ns[among].max())


def moments(txns: Transactions, among: Bools, first: int) -> tuple[Edges, int]:
    """Return the order by way of moments, in about three edges for each transaction.

    Each end of a transaction is a node of its own, from `first` on. It comes after that
    transaction, before the next end, and before the transactions that are called next. Also
    returns how many such nodes there are.
    """
    number = np.flatnonzero(among)
    ended = number[txns.end_ns[number] != NEVER]
    ends, of_end = np.unique(txns.end_ns[ended], return_inverse=True)
    node = first + np.arange(len(ends))
    before = np.searchsorted(ends, txns.call_ns[number])  # ends before the call
    is_after = before > 0
    return Edges.joined(
        Edges.of(RT, ended, node[of_end]),
        Edges.of(RT, node[:-1], node[1:]),
        Edges.of(RT, node[before[is_after] - 1], number[is_after]),
    ), len(ends)


def reduced(txns: Transactions, among: Bools) -> Edges:
    """Return the order between some transactions without the edges that others imply."""
    number = np.flatnonzero(among)
    ended = number[txns.end_ns[number] != NEVER]
    time = np.concatenate((txns.call_ns[number], txns.end_ns[ended]))
    is_end = np.arange(len(time)) >= len(number)
    txn = np.concatenate((number, ended))
    order = np.lexsort((txn, is_end, time))  # at one moment calls come first
    found = frontier_edges(txn[order], is_end[order], len(txns))
    return Edges.of(RT, found[:, 0], found[:, 1])
