"""Grudges: the directed links that a partition removes. Pure; built on networkx graphs.

A partition's shape is a directed graph of the links that stay; its grudge is the complement.
Everything is ordered by the given nodes, so that the same draw gives the same JSON.

Source: jepsen.nemesis (`complete-grudge`, `bridge`, `majorities-ring`), where a grudge maps a node
to those whose packets it drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import networkx as nx

Link = tuple[str, str]

SHAPES = (
    "isolate-leader",
    "isolate-one",
    "minority-with-leader",
    "minority-third",
    "primaries",
    "shattered",
    "halves",
    "majorities-ring",
    "bridge",
    "leader-deaf",
    "leader-mute",
    "one-way",
)
BRIDGE_NODES_MIN = 3
MINORITY_NODES_MIN = 5
"""In a smaller group, a minority with the leader is the leader alone."""
THIRD_NODES_MIN = 4
"""In a group of three, less than a third is no node."""
RING_NODES_MIN = 4
"""With three nodes each majorities ring is the complete graph: nothing would be cut."""


def grudge(nodes: Sequence[str], allowed: nx.DiGraph) -> tuple[Link, ...]:
    """Return the directed links among `nodes` that `allowed` lacks, in the nodes' order."""
    return tuple(link for link in permutations(nodes, 2) if not allowed.has_edge(*link))


def components(nodes: Sequence[str], parts: Sequence[Sequence[str]]) -> tuple[Link, ...]:
    """Split the group into parts that cannot talk to each other; each part is complete."""
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
    """Let each node see a majority, no two the same: its neighbours on the `ring`.

    Links stay two-way, so with an even majority (7 nodes) each node sees one more than it needs.

    Raises:
        ValueError: fewer than `RING_NODES_MIN` nodes.
    """
    if len(ring) < RING_NODES_MIN:
        raise ValueError(f"a majorities ring needs {RING_NODES_MIN} nodes, not {len(ring)}")
    majority = len(ring) // 2 + 1
    # Each node is linked to the same number of neighbours on both sides: with itself
    # at least a majority.
    cycle = nx.circulant_graph(len(ring), range(1, majority // 2 + 1))
    named = nx.relabel_nodes(cycle, dict(enumerate(ring)))
    return grudge(nodes, named.to_directed())


def each_alone(nodes: Sequence[str], alone: Sequence[str]) -> tuple[Link, ...]:
    """Isolate each node of `alone` from all others, and leave the others connected."""
    rest = [node for node in nodes if node not in alone]
    return components(nodes, [*([node] for node in alone), rest])


def parted(nodes: Sequence[str], cut: Sequence[Link]) -> tuple[str, ...]:
    """Return the nodes outside the largest set whose members all reach each other directly.

    A path through a third node does not count: votes and entries are not relayed.
    """
    # Undirected: a link that is cut in one direction is no edge. So a clique is a set of nodes
    # that can elect a leader and replicate among themselves, and the largest one counts.
    graph = nx.complete_graph(nodes)
    graph.remove_edges_from(cut)
    places = {node: place for place, node in enumerate(nodes)}
    cliques = (sorted(places[node] for node in clique) for clique in nx.find_cliques(graph))
    whole = min(cliques, key=lambda clique: (-len(clique), clique))
    return tuple(node for node, place in places.items() if place not in whole)


def deaf(nodes: Sequence[str], node: str) -> tuple[Link, ...]:
    """Let `node` send to all and receive from none."""
    allowed = nx.complete_graph(nodes, nx.DiGraph)
    allowed.remove_edges_from(list(allowed.in_edges(node)))
    return grudge(nodes, allowed)


def mute(nodes: Sequence[str], node: str) -> tuple[Link, ...]:
    """Let `node` receive from all and reach none."""
    allowed = nx.complete_graph(nodes, nx.DiGraph)
    allowed.remove_edges_from(list(allowed.out_edges(node)))
    return grudge(nodes, allowed)


def shapes_for(node_count: int) -> list[str]:
    """Return the shapes that cut something in a group of this size."""
    needs = {
        "minority-with-leader": MINORITY_NODES_MIN,
        "halves": BRIDGE_NODES_MIN,
        "minority-third": THIRD_NODES_MIN,
        "shattered": BRIDGE_NODES_MIN,
        "majorities-ring": RING_NODES_MIN,
        "bridge": BRIDGE_NODES_MIN,
    }
    return [shape for shape in SHAPES if node_count >= needs.get(shape, 2)]


def aim_shape(
    shape: str, nodes: Sequence[str], order: list[str], target: str, role: str
) -> tuple[str, tuple[Link, ...]]:
    """Return a label of the shape, and its grudge."""
    others = [node for node in order if node != target]
    match shape:
        case "isolate-leader" | "isolate-one":
            one, who = (target, role) if shape == "isolate-leader" else (order[0], order[0])
            return f"isolate {who}", each_alone(nodes, [one])
        case "minority-with-leader" | "halves" | "minority-third":
            front = [target, *others] if shape == "minority-with-leader" else order
            size = max(1, (len(nodes) - 1) // (3 if shape == "minority-third" else 2))
            parts = front[:size], front[size:]
            return f"partition {_names(parts)}", components(nodes, parts)
        case "primaries":
            return f"isolate each primary, {role} first", each_alone(nodes, [target])
        case "shattered":
            return "isolate all from all", each_alone(nodes, nodes)
        case "majorities-ring":
            return f"majorities ring {' '.join(order)}", majorities_ring(nodes, order)
        case "bridge":
            # Followers talk only to the leader: with it in the middle nothing would be cut.
            half = (len(order) - 1) // 2
            if order[half] == target:
                order = [order[half], *order[1:half], order[0], *order[half + 1 :]]
            left, middle, right = order[:half], order[half], order[half + 1 :]
            label = f"bridge {_names((left, [middle], right))}"
            return label, bridge(nodes, left, middle, right)
        case _:
            return _aim_one_way(shape, nodes, order, target, role)


def _aim_one_way(
    shape: str, nodes: Sequence[str], order: list[str], target: str, role: str
) -> tuple[str, tuple[Link, ...]]:
    match shape:
        case "leader-deaf":
            return f"{role} deaf (can send, cannot hear)", deaf(nodes, target)
        case "leader-mute":
            return f"{role} mute (can hear, cannot send)", mute(nodes, target)
        case "one-way":
            # For the same reason the leader is one of the pair.
            a, b = order[:2] if target in order[:2] else (order[0], target)
            return f"one-way cut {a} -> {b}", ((a, b),)
    raise ValueError(f"partition: unknown shape {shape!r}")


def _names(parts: Sequence[Sequence[str]]) -> str:
    return " | ".join(" ".join(part) for part in parts)
