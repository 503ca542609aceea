"""The dependency graph of one or several logs: its edges, and its shortest cycles.

Pure. Edges join invocations (ids of operations):

- **ww**, write-write: the next version, in the version order that offsets give.
- **wr**, write-read: the value of a write was read.
- **process**: the next invocation of the same process.
- **realtime**: one returned before the other was called.

Real time needs no edge for each pair: the moment of each return is a node, with an edge to the
next such moment; each operation has an edge to the moment of its return, and one from the last
moment before its call. Paths give the same order with three edges an operation.

Source: Adya 1999 (G0, G1c); Elle (Alvaro & Kingsbury, VLDB 2020) for process and real time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import networkx as nx
import numpy as np

from shaketable.checkers.anomalies.observations import NEVER, NOWHERE, Ints, Log, senders
from shaketable.checkers.kernels.components import components

WW, WR, PROCESS, REALTIME = "ww", "wr", "process", "realtime"
DEPENDENCIES: Final = (WW, WR)


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of one kind between invocations: their ids, and the rows of the log that show them.

    Both rows of a ww edge are sends; the second one of a wr edge is a read.
    """

    log: int
    kind: str
    sources: Ints
    targets: Ints
    from_rows: Ints
    to_rows: Ints


@dataclass(frozen=True, slots=True)
class Invocations:
    """The nodes of the graph, in the order of their ids. `end` is NEVER for unknown outcomes."""

    op: Ints
    process: Ints
    call: Ints
    end: Ints


def edges_of(logs: Sequence[Log]) -> list[Edges]:
    """Return the write-write and write-read edges of each log.

    Values that several sends may have put prove nothing and are left out. An offset that was seen
    with two values, or a value at two offsets, is not in the version order: that is an anomaly of
    its own.
    """
    found = []
    for number, log in enumerate(logs):
        for kind, sources, targets, from_rows, to_rows in (
            (WW, *_write_write(log)),
            (WR, *_write_read(log)),
        ):
            differs = sources != targets
            found.append(
                Edges(
                    number,
                    kind,
                    sources[differs],
                    targets[differs],
                    from_rows[differs],
                    to_rows[differs],
                )
            )
    return found


def invocations_of(logs: Sequence[Log], edges: Sequence[Edges]) -> Invocations:
    """Return the invocations that have an edge."""
    parts = [part for log in logs for part in (log.sends, log.reads)]
    op = np.concatenate([part.op for part in parts])
    process = np.concatenate([part.process for part in parts])
    call = np.concatenate([part.call for part in parts])
    end = np.concatenate([part.end for part in parts])
    named = np.sort(np.concatenate([ends for e in edges for ends in (e.sources, e.targets)]))
    named = named[np.append(True, named[1:] != named[:-1])]
    order = np.argsort(op, kind="stable")
    rows = order[np.searchsorted(op[order], named)]
    return Invocations(op[rows], process[rows], call[rows], end[rows])


def process_edges(nodes: Invocations) -> tuple[Ints, Ints]:
    """Return the edges from each invocation to its process's next one, as indices of `nodes`."""
    order = np.lexsort((nodes.op, nodes.process))
    follows = nodes.process[order][1:] == nodes.process[order][:-1]
    return order[:-1][follows], order[1:][follows]


def realtime_edges(nodes: Invocations) -> tuple[Ints, Ints]:
    """Return the edges of real time, as indices of `nodes`; moments are numbered after these."""
    done = np.flatnonzero(nodes.end != NEVER)
    done = done[np.argsort(nodes.end[done], kind="stable")]
    moments = len(nodes.op) + np.arange(len(done))
    # Intervals are closed: what is called when another returns is concurrent with it.
    last = np.searchsorted(nodes.end[done], nodes.call, side="left") - 1
    later = np.flatnonzero(last >= 0)
    sources = np.concatenate((done, moments[:-1], moments[last[later]]))
    targets = np.concatenate((moments, moments[1:], later))
    return sources, targets


def _write_write(log: Log) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (source, target, send, send) for consecutive versions."""
    rows, _ = placed_sends(log)
    before, after = rows[:-1], rows[1:]
    return log.sends.op[before], log.sends.op[after], before, after


def _write_read(log: Log) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (source, target, send, read) for every value that was read."""
    sends, reads = log.sends, log.reads
    writer = senders(log, _unique_sends(log), reads.value)
    read = np.flatnonzero(writer != NOWHERE)
    return sends.op[writer[read]], reads.op[read], writer[read], read


def placed_sends(log: Log) -> tuple[Ints, Ints]:
    """Return the version order: the sends with an undisputed offset, by offset, and the offsets."""
    sends, reads = log.sends, log.reads
    rows = _unique_sends(log)
    acked = rows[sends.is_ok[rows] & (sends.offset[rows] >= 0)]
    writer = senders(log, rows, reads.value)
    read = np.flatnonzero(writer != NOWHERE)
    row = np.concatenate((acked, writer[read]))
    offset = np.concatenate((sends.offset[acked], reads.offset[read]))
    # Any other value that was seen at an offset disputes it too.
    unknown = np.flatnonzero(writer == NOWHERE)
    order = np.lexsort((row, offset))
    is_new = np.ones(len(order), dtype=np.bool_)
    row, offset = row[order], offset[order]
    is_new[1:] = (row[1:] != row[:-1]) | (offset[1:] != offset[:-1])
    row, offset = row[is_new], offset[is_new]
    _, of_offset, offsets = np.unique(offset, return_inverse=True, return_counts=True)
    _, of_row, rows_seen = np.unique(row, return_inverse=True, return_counts=True)
    is_undisputed = (offsets[of_offset] == 1) & (rows_seen[of_row] == 1)
    is_undisputed &= ~np.isin(offset, reads.offset[unknown])
    return row[is_undisputed], offset[is_undisputed]


def _unique_sends(log: Log) -> Ints:
    may_have = ~log.sends.is_failed & ~np.isin(log.sends.value, log.repeated)
    return np.flatnonzero(may_have)


# The cycles: the shortest one of each strongly connected component.
#
# A kernel splits the whole graph into strongly connected components in linear time. A cycle
# lies within one component, so without a component of two or more invocations there is none. The
# components that are left are small, and are searched level by level, the worst anomaly first:
# cycles of dependencies alone, then with process order, then with real time.
#
# Source: Elle (Alvaro & Kingsbury, VLDB 2020), which names and ranks cycles in the same way.

LEVELS: Final = (
    ("G0", frozenset((WW,))),
    ("G1c", frozenset((WW, WR))),
    ("G0-process", frozenset((WW, PROCESS))),
    ("G1c-process", frozenset((WW, WR, PROCESS))),
    ("G0-realtime", frozenset((WW, PROCESS, REALTIME))),
    ("G1c-realtime", frozenset((WW, WR, PROCESS, REALTIME))),
)
"""The anomalies, and the kinds of edges that a cycle of each may have; the worst first."""

STEPS_MAX: Final = 300_000
"""Nodes that the search for a short cycle of one component may visit, roughly; then the shortest
cycle so far is reported."""

MEMBERS_MAX: Final = 10_000
"""Invocations among which a short cycle is searched; a larger component is searched in windows of
so many, by the time of their calls, each overlapping half of the one before."""

RANK: Final = {WW: 0, WR: 1, PROCESS: 2, REALTIME: 3}
"""Of several edges between the same two invocations the first in this order is reported."""
_KINDS: Final = {rank: kind for kind, rank in RANK.items()}

STEP: Final = 1000
"""The weight of a step; its rank is added, so that of equally short paths the plainest is taken."""


@dataclass(frozen=True, slots=True)
class Link:
    """One edge of a cycle: the ids of two invocations, and for dependencies the evidence."""

    kind: str
    source: int
    target: int
    log: int = -1
    from_row: int = -1
    to_row: int = -1


@dataclass(frozen=True, slots=True)
class Cycle:
    """A cycle, and the number of invocations in its component, of which `first` is one.

    Without links: no window of the component that was small enough to search had a cycle.
    """

    kind: str
    links: tuple[Link, ...]
    component: int
    first: int


@dataclass(frozen=True, slots=True)
class _Graph:
    """Nodes, and all edges between their indices, each with its kind and its origin."""

    nodes: Invocations
    source: Ints
    target: Ints
    rank: Ints  # of its kind
    part: Ints  # which of `parts`, -1 for none
    row: Ints  # which edge of that part
    parts: Sequence[Edges]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The cycles that were found, and the size of the graph."""

    cycles: tuple[Cycle, ...]
    invocations: int
    edges: int


def search(logs: Sequence[Log]) -> SearchResult:
    """Return the cycles of the logs' dependency graph: worst and shortest of each component."""
    parts = [part for part in edges_of(logs) if len(part.sources)]
    if not parts:
        return SearchResult((), 0, 0)
    graph = _graph(invocations_of(logs, parts), parts)
    cycles = [
        cycle
        for members in _components(graph, LEVELS[-1][1])
        for cycle in _worst_cycles(graph, members)
    ]
    return SearchResult(tuple(cycles), len(graph.nodes.op), len(graph.source))


def _graph(nodes: Invocations, parts: Sequence[Edges]) -> _Graph:
    before, after = process_edges(nodes)
    sources = [np.searchsorted(nodes.op, part.sources) for part in parts] + [before]
    targets = [np.searchsorted(nodes.op, part.targets) for part in parts] + [after]
    sizes = [len(each) for each in sources]
    ranks = [RANK[part.kind] for part in parts] + [RANK[PROCESS]]
    numbers = [*range(len(parts)), -1]
    return _Graph(
        nodes,
        np.concatenate(sources),
        np.concatenate(targets),
        np.repeat(np.array(ranks), sizes),
        np.repeat(np.array(numbers), sizes),
        np.concatenate([np.arange(size) for size in sizes]),
        parts,
    )


def _components(graph: _Graph, kinds: frozenset[str]) -> list[Ints]:
    """Return the components of two or more invocations, as node indices, ordered by first id."""
    size = len(graph.nodes.op)
    chosen = np.isin(graph.rank, [RANK[kind] for kind in kinds])
    sources, targets, count = graph.source[chosen], graph.target[chosen], size
    if REALTIME in kinds:
        before, after = realtime_edges(graph.nodes)
        count = size + len(before)
        sources, targets = np.concatenate((sources, before)), np.concatenate((targets, after))
    number = components(count, sources.astype(np.int64), targets.astype(np.int64))[:size]
    order = np.argsort(number, kind="stable")
    _, starts, counts = np.unique(number[order], return_index=True, return_counts=True)
    found = [order[b : b + n] for b, n in zip(starts, counts, strict=True) if n > 1]
    return sorted(found, key=lambda members: int(members[0]))


def _worst_cycles(graph: _Graph, members: Ints) -> Iterator[Cycle]:
    """Yield the cycles of a component at the worst level at which it has any."""
    part = _subgraph(graph, members)
    for kind, kinds in LEVELS:
        # Every strongly connected component of two or more nodes has a cycle of these edges.
        found = _components(part, kinds)
        if found:
            for inside in found:
                links = _links(_subgraph(part, inside), kinds)
                yield Cycle(kind, links, len(inside), int(part.nodes.op[inside[0]]))
            return


def _links(graph: _Graph, kinds: frozenset[str]) -> tuple[Link, ...]:
    """Return a cycle of a component: the shortest one if it is small enough to search."""
    if len(graph.nodes.op) <= MEMBERS_MAX:
        return _shortest(graph, kinds)
    if pair := _reversed_pair(graph, kinds):
        return pair
    small = _window(graph, kinds)
    return () if small is None else _shortest(small, kinds)


def _reversed_pair(graph: _Graph, kinds: frozenset[str]) -> tuple[Link, ...]:
    """Return a cycle of two sends of one log that process order or real time reverses, or none.

    In offset order, compare each send with the latest call before it (for processes: the last id
    of the same process): linear, whatever the distance between the two.
    """
    nodes = graph.nodes
    for number, part in enumerate(graph.parts):
        edges = np.flatnonzero((graph.part == number) & (graph.rank == RANK[WW]))
        if not len(edges):
            continue
        rows = graph.row[edges]
        at = np.append(graph.source[edges], graph.target[edges[-1]])
        sends = np.append(part.from_rows[rows], part.to_rows[rows[-1]])
        pairs: list[tuple[str, int, int]] = []
        if PROCESS in kinds:
            order = np.lexsort((np.arange(len(at)), nodes.process[at]))
            is_back = nodes.process[at[order]][1:] == nodes.process[at[order]][:-1]
            is_back &= nodes.op[at[order]][1:] < nodes.op[at[order]][:-1]
            pairs += [
                (PROCESS, int(order[n]), int(order[n + 1])) for n in np.flatnonzero(is_back)[:1]
            ]
        if REALTIME in kinds:
            calls = nodes.call[at]
            is_back = nodes.end[at][1:] < np.maximum.accumulate(calls)[:-1]
            last = [int(n) + 1 for n in np.flatnonzero(is_back)[:1]]
            pairs += [(REALTIME, int(np.argmax(calls[:n])), n) for n in last]
        for kind, first, second in pairs[:1]:
            ops = int(nodes.op[at[first]]), int(nodes.op[at[second]])
            ww = Link(WW, *ops, part.log, int(sends[first]), int(sends[second]))
            return ww, Link(kind, ops[1], ops[0])
    return ()


def _window(graph: _Graph, kinds: frozenset[str]) -> _Graph | None:
    """Return a component inside this one that is small enough to search; None if none is found."""
    size = len(graph.nodes.op)
    by_call = np.argsort(graph.nodes.call, kind="stable")
    for start in range(0, size - MEMBERS_MAX // 2, MEMBERS_MAX // 2):
        part = _subgraph(graph, np.sort(by_call[start : start + MEMBERS_MAX]))
        found = _components(part, kinds)
        if found:
            return _subgraph(part, found[0])
    return None


def _subgraph(graph: _Graph, members: Ints) -> _Graph:
    """Return the subgraph induced by `members` (node indices, ascending)."""
    place = np.full(len(graph.nodes.op), -1, dtype=np.int64)
    place[members] = np.arange(len(members))
    kept = (place[graph.source] >= 0) & (place[graph.target] >= 0)
    nodes = graph.nodes
    return _Graph(
        Invocations(
            nodes.op[members], nodes.process[members], nodes.call[members], nodes.end[members]
        ),
        place[graph.source[kept]],
        place[graph.target[kept]],
        graph.rank[kept],
        graph.part[kept],
        graph.row[kept],
        graph.parts,
    )


def _shortest(graph: _Graph, kinds: frozenset[str]) -> tuple[Link, ...]:
    """Return the shortest cycle of a component that is found within STEPS_MAX.

    Every cycle has a dependency, since process order and real time alone only lead forward in
    time. So find the shortest path back from each dependency's target to its source.
    """
    net = _OrderGraph(graph, kinds)
    is_dependency = graph.rank < RANK[PROCESS]
    is_dependency &= np.isin(graph.rank, [RANK[kind] for kind in kinds])
    tried = np.flatnonzero(is_dependency)
    if REALTIME in kinds:  # the most frequent case first: real time reverses the dependency
        is_reversed = graph.nodes.end[graph.target[tried]] < graph.nodes.call[graph.source[tried]]
        tried = np.concatenate((tried[is_reversed], tried[~is_reversed]))
    best: tuple[Link, ...] = ()
    for edge in tried[: max(1, STEPS_MAX // len(net.graph))].tolist():
        source, target = int(graph.source[edge]), int(graph.target[edge])
        _, back = nx.bidirectional_dijkstra(net.graph, target, source)
        links = _merge_links((net.link([source, target], edge), *net.links(back)))
        if not best or len(links) < len(best):
            best = links
        if len(best) == 2:  # no cycle is shorter
            break
    return best


def _merge_links(links: Sequence[Link]) -> tuple[Link, ...]:
    """Join consecutive write-write links of the same log into one."""
    merged: list[Link] = []
    for link in links:
        last = merged[-1] if merged else None
        goes_on = last is not None and last.kind == link.kind == WW and last.to_row == link.from_row
        if last is not None and goes_on and last.log == link.log:
            merged[-1] = replace(last, target=link.target, to_row=link.to_row)
        else:
            merged.append(link)
    return tuple(merged)


class _OrderGraph:
    """A component as a weighted graph in which any path along one order costs one step.

    Offsets, processes and real time are transitive orders: a far successor counts like the next
    one. So each edge of an order is a node of its own, joined to the next edge's node at weight 0;
    only entering that row of nodes costs a step.
    """

    def __init__(self, graph: _Graph, kinds: frozenset[str]) -> None:
        self._of = graph
        self._size = len(graph.nodes.op)
        self._edges = len(graph.source)
        self.graph = nx.DiGraph()
        self.graph.add_nodes_from(range(self._size))
        for edge in np.flatnonzero(np.isin(graph.rank, [RANK[kind] for kind in kinds])).tolist():
            weight = STEP + int(graph.rank[edge])
            node = self._size + edge
            self.graph.add_edge(int(graph.source[edge]), node, weight=weight)
            self.graph.add_edge(node, int(graph.target[edge]), weight=0)
        self._join(kinds)
        if REALTIME in kinds:
            before, after = realtime_edges(graph.nodes)
            moments = self._edges
            for source, target in zip(before.tolist(), after.tolist(), strict=True):
                is_entry = source < self._size
                self.graph.add_edge(
                    source if is_entry else source + moments,
                    target if target < self._size else target + moments,
                    weight=STEP + RANK[REALTIME] if is_entry else 0,
                )

    def _join(self, kinds: frozenset[str]) -> None:
        """Join the nodes of consecutive edges of the same order, at weight 0."""
        graph = self._of
        for edge in range(self._edges - 1):
            rank = graph.rank[edge]
            is_order = rank in (RANK[WW], RANK[PROCESS]) and _KINDS[rank] in kinds
            if (
                not is_order
                or rank != graph.rank[edge + 1]
                or graph.part[edge] != graph.part[edge + 1]
            ):
                continue
            if rank == RANK[PROCESS]:
                follows = graph.target[edge] == graph.source[edge + 1]
            else:
                part = graph.parts[graph.part[edge]]
                follows = part.to_rows[graph.row[edge]] == part.from_rows[graph.row[edge + 1]]
            if follows:
                self.graph.add_edge(self._size + edge, self._size + edge + 1, weight=0)

    def links(self, path: Sequence[int]) -> Iterator[Link]:
        """Yield the links of a path from one invocation to another."""
        stops = [n for n, node in enumerate(path) if node < self._size]
        for start, end in pairwise(stops):
            yield self.link(path[start : end + 1])

    def link(self, path: Sequence[int], edge: int | None = None) -> Link:
        """Return the link of a path with an invocation at either end and none in between."""
        graph = self._of
        ends = (int(graph.nodes.op[path[0]]), int(graph.nodes.op[path[-1]]))
        first = path[1] - self._size if edge is None else edge
        last = path[-2] - self._size if edge is None else edge
        if first >= self._edges:
            return Link(REALTIME, *ends)
        if graph.part[first] < 0:
            return Link(PROCESS, *ends)
        part = graph.parts[graph.part[first]]
        rows = (int(part.from_rows[graph.row[first]]), int(part.to_rows[graph.row[last]]))
        return Link(part.kind, *ends, part.log, *rows)
