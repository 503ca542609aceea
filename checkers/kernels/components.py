"""Strongly connected components of a directed graph, in time and memory linear in its edges.

Source: Tarjan 1972, with an explicit stack in place of recursion.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shaketable.harness.compiled import compiled

Ints = npt.NDArray[np.int64]


@compiled
def _adjacency(nodes: int, sources: Ints, targets: Ints) -> tuple[Ints, Ints]:
    """Return the graph as CSR: the targets of node n are after[start[n]:start[n + 1]]."""
    start = np.zeros(nodes + 2, dtype=np.int64)
    for source in sources:
        start[source + 2] += 1
    for node in range(nodes):
        start[node + 2] += start[node + 1]
    after = np.empty(len(targets), dtype=np.int64)
    # Counting sort: start[n + 1] moves from the start of n to its end, where n + 1 starts.
    for edge in range(len(sources)):
        source = sources[edge]
        after[start[source + 1]] = targets[edge]
        start[source + 1] += 1
    return start, after


@compiled
def components(nodes: int, sources: Ints, targets: Ints) -> Ints:
    """Return for each node 0 .. nodes - 1 the number of its component.

    `sources` and `targets` are the ends of the edges. Components are numbered from 0 as Tarjan
    completes them, that is in reverse topological order: edges between components lead to lower
    numbers only.
    """
    start, after = _adjacency(nodes, sources, targets)
    component = np.full(nodes, -1, dtype=np.int64)
    visited = np.full(nodes, -1, dtype=np.int64)  # when a node was first visited
    path = np.empty(nodes, dtype=np.int64)  # of the depth-first search, from its root
    edge_of = np.empty(nodes, dtype=np.int64)  # the next edge to follow
    open_nodes = np.empty(nodes, dtype=np.int64)  # Tarjan's stack: visited, no component yet
    low = np.empty(nodes, dtype=np.int64)  # the earliest open node known to be reached
    clock = found = opened = 0
    for root in range(nodes):
        if visited[root] != -1:
            continue
        depth = 0
        path[0] = root
        visited[root] = low[root] = clock
        clock += 1
        edge_of[root] = start[root]
        open_nodes[opened] = root
        opened += 1
        while depth >= 0:
            node = path[depth]
            if edge_of[node] < start[node + 1]:
                child = after[edge_of[node]]
                edge_of[node] += 1
                if visited[child] == -1:
                    visited[child] = low[child] = clock
                    clock += 1
                    edge_of[child] = start[child]
                    open_nodes[opened] = child
                    opened += 1
                    depth += 1
                    path[depth] = child
                elif component[child] == -1 and visited[child] < low[node]:
                    low[node] = visited[child]  # an open child reaches node, so they share a cycle
                continue
            depth -= 1
            if depth >= 0 and low[node] < low[path[depth]]:
                low[path[depth]] = low[node]
            # It reaches no earlier open node, so it is the root of a component: all that was
            # opened since.
            if low[node] == visited[node]:
                while True:
                    opened -= 1
                    component[open_nodes[opened]] = found
                    if open_nodes[opened] == node:
                        break
                found += 1
    return component
