"""Grudges: what each shape of partition promises of the links that stay, for any group size."""

from itertools import permutations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness.faults import grudges

GROUPS = st.integers(2, 9).flatmap(lambda n: st.permutations([f"n{i}" for i in range(n)]))


def sorted_nodes(order: list[str]) -> list[str]:
    return sorted(order)


def allowed(order: list[str], cut: tuple[grudges.Link, ...]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(order)
    graph.add_edges_from(set(permutations(order, 2)) - set(cut))
    return graph


def sees(graph: nx.DiGraph, node: str) -> frozenset[str]:
    return frozenset([node, *graph.predecessors(node)])


@given(order=GROUPS, data=st.data())
def test_components_are_complete_inside_and_cut_outside(order: list[str], data: st.DataObject):
    size = data.draw(st.integers(1, len(order) - 1))
    parts = order[:size], order[size:]
    graph = allowed(order, grudges.components(sorted_nodes(order), parts))
    found = {frozenset(part) for part in nx.strongly_connected_components(graph)}
    assert found == {frozenset(part) for part in parts}
    assert {frozenset(part) for part in nx.weakly_connected_components(graph)} == found
    for part in parts:
        assert all(graph.has_edge(*link) for link in permutations(part, 2))


@given(order=GROUPS.filter(lambda order: len(order) >= grudges.BRIDGE_NODES_MIN))
def test_bridge_hangs_on_its_middle(order: list[str]):
    half = (len(order) - 1) // 2
    left, middle, right = order[:half], order[half], order[half + 1 :]
    graph = allowed(order, grudges.bridge(sorted_nodes(order), left, middle, right))
    assert sees(graph, middle) == frozenset(order)
    assert nx.is_strongly_connected(graph)
    graph.remove_node(middle)
    assert not any(nx.has_path(graph, a, b) for a in left for b in right)
    assert not any(nx.has_path(graph, b, a) for a in left for b in right)


def check_majorities_ring(order: list[str], cut: tuple[grudges.Link, ...]) -> None:
    graph = allowed(order, cut)
    seen = [sees(graph, node) for node in order]
    assert all(len(majority) > len(order) / 2 for majority in seen), "someone sees a minority"
    assert len(set(seen)) == len(order), "two nodes see the same majority"
    assert all(graph.has_edge(b, a) for a, b in graph.edges), "a one-way link"


RINGS = GROUPS.filter(lambda order: len(order) >= grudges.RING_NODES_MIN)


@given(order=RINGS)
def test_majorities_ring_shows_each_node_a_majority_of_its_own(order: list[str]):
    cut = grudges.majorities_ring(sorted_nodes(order), order)
    assert cut
    check_majorities_ring(order, cut)


@pytest.mark.parametrize("reach", [1, 3], ids=["too few links", "too many"])
def test_planted_wrong_rings_are_caught(reach: int):
    order = [f"n{i}" for i in range(7)]
    circle = nx.circulant_graph(7, range(1, reach + 1))
    wrong = nx.relabel_nodes(circle, dict(enumerate(order))).to_directed()
    with pytest.raises(AssertionError, match=r"minority|same majority"):
        check_majorities_ring(order, grudges.grudge(order, wrong))


def test_a_ring_of_three_would_cut_nothing_and_is_refused():
    with pytest.raises(ValueError, match="needs 4 nodes, not 3"):
        grudges.majorities_ring(["n0", "n1", "n2"], ["n0", "n1", "n2"])


@given(order=GROUPS)
def test_deaf_hears_nobody_and_mute_reaches_nobody(order: list[str]):
    nodes, target, others = sorted_nodes(order), order[0], sorted(order[1:])
    assert grudges.deaf(nodes, target) == tuple((other, target) for other in others)
    assert grudges.mute(nodes, target) == tuple((target, other) for other in others)
