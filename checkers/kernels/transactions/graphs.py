"""Graphs of transactions: shortest cycles, what is reached from where, and real time reduced."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shaketable.harness.compiled import bare, compiled

# Shortest cycles, breadth first.

_NO_EDGE = -1


class Graph(NamedTuple):
    """Edges by number, with their ends; the component of each node.

    `ids`: the edges of paths: from node n lead ids[starts[n]:starts[n + 1]].
    """

    source: Any
    target: Any
    component: Any
    starts: Any
    ids: Any


@bare
def _path(graph: Any, start: int, goal: int, longest: int, seen: Any, stamp: int, by: Any,
          waiting: Any) -> Any:  # fmt: skip
    """Return how long a shortest path is, -1 if there is none that short, and the edges tried.

    `by` receives the edge by which each node was reached, `seen` the stamp of this search.
    """
    starts, ids, targets, component = graph
    seen[start], by[start] = stamp, _NO_EDGE
    waiting[0] = start
    first, stop, level_end, depth, work = 0, 1, 1, 0, 0
    while first < stop:
        if seen[goal] == stamp:
            return depth, work
        if depth >= longest:
            return -1, work
        depth += 1
        while first < level_end:
            node = waiting[first]
            first += 1
            for place in range(starts[node], starts[node + 1]):
                work += 1
                target = targets[ids[place]]
                if seen[target] != stamp and component[target] == component[node]:
                    seen[target], by[target] = stamp, ids[place]
                    waiting[stop] = target
                    stop += 1
        level_end = stop
    return (depth if seen[goal] == stamp else -1), work


@compiled
def shortest_cycles(graph: Graph, candidates: Any, candidate_starts: Any, limits: Any,
                    cycles: Any, is_cut: Any) -> Any:  # fmt: skip
    """Find for each component a shortest cycle of one candidate and the edges of paths.

    Args:
        graph: the graph.
        candidates: the edges to start with, by component.
        candidate_starts: component c has the candidates from candidate_starts[c] on.
        limits: the candidates after which a found cycle will do, and the edges that are looked at
            for one component at the most.
        cycles: receives the edges, the candidate first; room for as many as there are nodes.
        is_cut: receives for each component whether the second limit ended the search.

    Returns:
        Where each component's cycle starts in `cycles`.
    """
    sources, targets, starts = graph.source, graph.target, graph.starts
    cycle_starts = np.zeros(len(candidate_starts), np.int64)
    nodes = len(starts) - 1
    seen = np.full(nodes, -1, np.int64)
    by = np.empty(nodes, np.int64)
    waiting = np.empty(nodes, np.int64)
    filled = 0
    paths = (starts, graph.ids, targets, graph.component)
    for part in range(len(candidate_starts) - 1):
        best, tried, work = 0, 0, 0
        cycle_starts[part] = filled
        for place in range(candidate_starts[part], candidate_starts[part + 1]):
            edge = candidates[place]
            longest = best - 2 if best else nodes
            size, more = _path(
                paths, targets[edge], sources[edge], longest, seen, edge, by, waiting
            )
            tried, work = tried + 1, work + more
            if size >= 0:
                best = size + 1
                cycles[filled] = edge
                node = sources[edge]
                for at in range(size):
                    cycles[filled + size - at] = by[node]
                    node = sources[by[node]]
            if best == 2 or (best and tried >= limits[0]):
                break
            if work > limits[1]:
                is_cut[part] = True
                break
        filled += best
    cycle_starts[len(candidate_starts) - 1] = filled
    return cycle_starts


# Which nodes of a graph without cycles reach which: a row of bits for each node.

_BITS = 64
_ONE = np.uint64(1)


@compiled
def reachable(sources: Any, targets: Any, nodes: int, order: Any) -> Any:
    """Return the bits: node v is reached from u if bit v % 64 of word [u, v // 64] is set.

    `order`: the nodes, each after all that lead to it.
    """
    starts = np.zeros(nodes + 2, np.int64)
    for source in sources:
        starts[source + 2] += 1
    for node in range(nodes):
        starts[node + 2] += starts[node + 1]
    after = np.empty(len(sources), np.int64)
    for edge in range(len(sources)):
        after[starts[sources[edge] + 1]] = targets[edge]
        starts[sources[edge] + 1] += 1
    found = np.zeros((nodes, (nodes + _BITS - 1) // _BITS), np.uint64)
    for place in range(nodes - 1, -1, -1):
        node = order[place]
        for at in range(starts[node], starts[node + 1]):
            target = after[at]
            for word in range(found.shape[1]):
                found[node, word] |= found[target, word]
            found[node, target // _BITS] |= _ONE << np.uint64(target % _BITS)
    return found


@compiled
def closing(found: Any, sources: Any, targets: Any, closes: Any) -> None:
    """Say of each edge whether it would close a cycle: its target reaches its source."""
    for edge in range(len(sources)):
        source = sources[edge]
        bit = _ONE << np.uint64(source % _BITS)
        closes[edge] = found[targets[edge], source // _BITS] & bit != 0


# The order of transactions in real time, reduced: each edge that others imply is left out.
#
# Source: the sweep of Elle's realtime graph (Elle, VLDB 2020).

_NONE = -1


@compiled
def frontier_edges(txns: Any, is_end: Any, count: int) -> Any:
    """Sweep over calls and ends in time; return the edges, source and target.

    The frontier holds the transactions that ended, and that no other one which ended was called
    after. It is a list in the order of their ends; those that leave it first are the oldest.

    Args:
        txns: the transaction of each event, in the order of time.
        is_end: whether it is an end.
        count: how many transactions there are.
    """
    found = np.empty((1024, 2), np.int64)
    filled = 0
    frontier = np.empty(count, np.int64)  # by end; what left it is before `oldest`
    place_of = np.full(count, _NONE, np.int64)
    seen = np.zeros(count, np.int64)  # how many had entered the frontier at a transaction's call
    oldest = entered = 0
    for event in range(len(txns)):
        txn = txns[event]
        if not is_end[event]:
            seen[txn] = entered
            while filled + entered - oldest > len(found):
                larger = np.empty((2 * len(found), 2), np.int64)
                larger[:filled] = found[:filled]
                found = larger
            for place in range(oldest, entered):
                found[filled, 0], found[filled, 1] = frontier[place], txn
                filled += 1
        else:
            # All that had ended before its call leave: they are the first in the order of ends.
            oldest = max(oldest, seen[txn])
            frontier[entered] = txn
            place_of[txn] = entered
            entered += 1
    return found[:filled]
