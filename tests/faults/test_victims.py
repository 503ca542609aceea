"""Victims are a parameter of every fault of nodes: roles, numbers of nodes, nodes by name."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness.faults.victims import (
    VICTIMS,
    choose_variants,
    describe_victims,
    pick_victims,
    plan_victims,
    without,
)

FIVE = ("n0", "n1", "n2", "n3", "n4")


@pytest.mark.parametrize(
    ("victim", "struck"),
    [
        ("leader", {1}),
        ("one", {1}),
        ("minority", {2}),
        ("minority-third", {1}),
        ("majority", {3}),
        ("all", {5}),
        ("followers", {4}),
        ("n3", {1}),
        ("n0+n4", {2}),
    ],
)
def test_so_many_of_five_nodes_are_struck(victim, struck):
    options = {"victims": [victim], "nodes": list(FIVE)}
    variants = choose_variants("kill", ("leader",), options)
    plans = [plan_victims(Random(seed), FIVE, variants, seed) for seed in range(20)]
    aimed = [pick_victims(plan, FIVE, "n2") for plan in plans]
    assert {len(plan["victims"]) for plan in aimed} == struck
    if victim == "leader":
        assert all(plan["victims"] == ["n2"] for plan in aimed)
    if victim == "followers":
        assert all("n2" not in plan["victims"] for plan in aimed)
    if victim.startswith("n"):
        assert all(set(plan["victims"]) == set(victim.split("+")) for plan in aimed)


@given(
    variant=st.sampled_from(VICTIMS),
    size=st.integers(1, 9),
    seed=st.integers(),
    has_leader=st.booleans(),
)
def test_somebody_is_always_struck_and_only_nodes(variant, size, seed, has_leader):
    nodes = tuple(f"n{number}" for number in range(size))
    plan = plan_victims(Random(seed), nodes, (variant,), 1)
    aimed = pick_victims(plan, nodes, nodes[-1] if has_leader else None)
    assert aimed["victims"]
    assert len(set(aimed["victims"])) == len(aimed["victims"])
    assert set(aimed["victims"]) <= set(nodes)
    assert describe_victims("kill", aimed).startswith("kill ")


def test_who_is_spared_is_left_out_and_told_so():
    plan = pick_victims({"variant": "all", "order": list(FIVE)}, FIVE, "n0")
    assert describe_victims("kill", plan) == "kill all nodes"
    fewer = without(plan, {"n0", "n3"})
    assert fewer is not None
    assert fewer["victims"] == ["n1", "n2", "n4"]
    assert describe_victims("kill", fewer) == "kill n1, n2, n4"
    assert without(plan, FIVE) is None


def test_masters_are_leaders():
    assert choose_variants("kill", ("one",), {"victims": ["masters"]}) == ("leader",)
