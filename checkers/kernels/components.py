"""Strongly connected components of a directed graph, in time and memory linear in its edges.

Source: Tarjan 1972, with a stack of our own in place of recursion.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shaketable.harness.compiled import compiled

Ints = npt.NDArray[np.int64]


@compiled
def _adjacency(nodes: int, sources: Ints, targets: Ints) -> tuple[Ints, Ints]:
    """Sort the edges by their source: those of node n are begin[n] to begin[n + 1]."""
    begin = np.zeros(nodes + 2, dtype=np.int64)
    for source in sources:
        begin[source + 2] += 1
    for node in range(nodes):
        begin[node + 2] += begin[node + 1]
    after = np.empty(len(targets), dtype=np.int64)
    for edge in range(len(sources)):  # begin[n + 1] counts up to where n + 1 begins
        source = sources[edge]
        after[begin[source + 1]] = targets[edge]
        begin[source + 1] += 1
    return begin, after


@compiled
def components(nodes: int, sources: Ints, targets: Ints) -> Ints:
    """Return for each node 0 .. nodes - 1 the number of its component.

    `sources` and `targets` are the ends of the edges. Numbers count from 0, in the order in
    which the components are completed: none of them is reached from one with a lower number.
    """
    begin, after = _adjacency(nodes, sources, targets)
    component = np.full(nodes, -1, dtype=np.int64)
    visited = np.full(nodes, -1, dtype=np.int64)  # in which order; later: the lowest reached
    path = np.empty(nodes, dtype=np.int64)
    edge_of = np.empty(nodes, dtype=np.int64)
    open_nodes = np.empty(nodes, dtype=np.int64)
    low = np.empty(nodes, dtype=np.int64)
    clock = found = opened = 0
    for root in range(nodes):
        if visited[root] != -1:
            continue
        depth = 0
        path[0] = root
        visited[root] = low[root] = clock
        clock += 1
        edge_of[root] = begin[root]
        open_nodes[opened] = root
        opened += 1
        while depth >= 0:
            node = path[depth]
            if edge_of[node] < begin[node + 1]:
                child = after[edge_of[node]]
                edge_of[node] += 1
                if visited[child] == -1:
                    visited[child] = low[child] = clock
                    clock += 1
                    edge_of[child] = begin[child]
                    open_nodes[opened] = child
                    opened += 1
                    depth += 1
                    path[depth] = child
                elif component[child] == -1 and visited[child] < low[node]:
                    low[node] = visited[child]
                continue
            depth -= 1
            if depth >= 0 and low[node] < low[path[depth]]:
                low[path[depth]] = low[node]
            if low[node] == visited[node]:
                while True:
                    opened -= 1
                    component[open_nodes[opened]] = found
                    if open_nodes[opened] == node:
                        break
                found += 1
    return component
