"""Grudges: which directed links a partition takes away. Pure; built on networkx graphs.

A shape of partition is a directed graph of the links that stay; its grudge is what the
complete graph has and it has not. Everything is ordered by the given nodes, so that the
same draw gives the same JSON.

Source: jepsen.nemesis (`complete-grudge`, `bridge`, `majorities-ring`), where a grudge maps
a node to those whose packets it drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import networkx as nx

Link = tuple[str, str]

BRIDGE_NODES_MIN = 3
RING_NODES_MIN = 4
"""With three nodes each majority ring is the complete graph: nothing would be cut."""


def grudge(nodes: Sequence[str], allowed: nx.DiGraph) -> tuple[Link, ...]:
    """Return the directed links among `nodes` that `allowed` lacks, in the nodes' order."""
    return tuple(link for link in permutations(nodes, 2) if not allowed.has_edge(*link))


def components(nodes: Sequence[str], parts: Sequence[Sequence[str]]) -> tuple[Link, ...]:
    """Cut the group into parts that cannot talk to each other, each complete in itself."""
    allowed = nx.DiGraph()
    for part in parts:
        allowed.add_edges_from(permutations(part, 2))
    return grudge(nodes, allowed)


def bridge(
    nodes: Sequence[str], left: Sequence[str], middle: str, right: Sequence[str]
) -> tuple[Link, ...]:
    """Cut left from right; `middle` still talks to both."""
    allowed = nx.DiGraph()
    for side in (left, right):
        allowed.add_edges_from(permutations([*side, middle], 2))
    return grudge(nodes, allowed)


def majorities_ring(nodes: Sequence[str], ring: Sequence[str]) -> tuple[Link, ...]:
    """Let each node see a majority, no two the same: its nearest ones on the `ring`.

    Links stay two-way, so with an even majority (7 nodes) each sees one node more than
    it needs.

    Raises:
        ValueError: fewer than `RING_NODES_MIN` nodes.
    """
    if len(ring) < RING_NODES_MIN:
        raise ValueError(f"a majorities ring needs {RING_NODES_MIN} nodes, not {len(ring)}")
    majority = len(ring) // 2 + 1
    circle = nx.circulant_graph(len(ring), range(1, majority // 2 + 1))
    named = nx.relabel_nodes(circle, dict(enumerate(ring)))
    return grudge(nodes, named.to_directed())


def deaf(nodes: Sequence[str], node: str) -> tuple[Link, ...]:
    """Let `node` send to all and hear from none."""
    allowed = nx.complete_graph(nodes, nx.DiGraph)
    allowed.remove_edges_from(list(allowed.in_edges(node)))
    return grudge(nodes, allowed)


def mute(nodes: Sequence[str], node: str) -> tuple[Link, ...]:
    """Let `node` hear all and reach none."""
    allowed = nx.complete_graph(nodes, nx.DiGraph)
    allowed.remove_edges_from(list(allowed.out_edges(node)))
    return grudge(nodes, allowed)
