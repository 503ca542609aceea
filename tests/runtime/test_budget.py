"""Under the budget a quorum is left: faults strike fewer nodes, or wait for their turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness.faults import network, process
from shaketable.harness.faults.victims import VICTIMS, pick_victims
from shaketable.harness.plugin_calls import PlugInError
from shaketable.harness.runtime.nemesis import Budget

FIVE = ("n0", "n1", "n2", "n3", "n4")


def aimed(variant, order=FIVE, leader="n0"):
    return pick_victims({"variant": variant, "order": list(order)}, FIVE, leader)


def test_a_fault_of_all_nodes_strikes_a_minority():
    budget = Budget(FIVE, keeps_quorum=True)
    plan = budget.take(0, process.KILL, aimed("all"))
    assert plan is not None
    assert plan["victims"] == ["n0", "n1"]
    assert budget.out == {"n0", "n1"}
    assert budget.take(1, process.KILL, aimed("one", FIVE[::-1])) is None
    again = budget.take(2, process.KILL, aimed("leader"))
    assert again is not None, "who is out already costs nothing"
    budget.give_back(0)
    assert budget.out == {"n0"}
    budget.give_back(2)
    budget.give_back(2)
    assert budget.out == frozenset()


def test_without_a_budget_everything_is_granted():
    budget = Budget(FIVE, keeps_quorum=False)
    assert budget.take(0, process.KILL, aimed("all"))["victims"] == list(FIVE)
    assert budget.take(1, process.KILL, aimed("all"))["victims"] == list(FIVE)


def test_what_takes_nobody_out_costs_nothing():
    budget = Budget(FIVE, keeps_quorum=True)
    assert budget.take(0, process.KILL, aimed("minority")) is not None
    plan = {"order": list(FIVE), "to": "n3", "leader": "n0"}
    assert budget.take(1, process.TRANSFER, plan) == plan


@given(
    variants=st.lists(st.sampled_from(VICTIMS), max_size=6),
    orders=st.permutations(FIVE),
    given_back=st.sets(st.integers(0, 5)),
)
def test_never_more_than_a_minority_is_out(variants, orders, given_back):
    budget = Budget(FIVE, keeps_quorum=True)
    for number, variant in enumerate(variants):
        plan = budget.take(number, process.KILL, aimed(variant, orders))
        assert plan is None or plan["victims"]
        assert len(budget.out) <= 2
        if number in given_back:
            budget.give_back(number)


@pytest.mark.parametrize("size", [1, 2])
def test_a_group_that_can_spare_nobody_is_left_alone(size):
    nodes = FIVE[:size]
    budget = Budget(nodes, keeps_quorum=True)
    plan = pick_victims({"variant": "one", "order": list(nodes)}, nodes, None)
    assert budget.take(0, process.KILL, plan) is None


def test_a_plan_that_is_not_narrowed_enough_is_refused_and_costs_nothing():
    class Wide(process.Kill):
        def narrowed(self, plan, nodes, spare):
            return {**plan, "victims": plan["victims"][:3]}

    budget = Budget(FIVE, keeps_quorum=True)
    with pytest.raises(PlugInError, match="takes out n0, n1, n2: 2 more can be out"):
        budget.take(0, Wide(), aimed("all"))
    assert budget.out == frozenset()
    assert budget.take(1, process.KILL, aimed("leader", leader="n4")) is not None
    with pytest.raises(PlugInError):
        budget.take(2, Wide(), aimed("all"))
    assert budget.out == {"n4"}


@given(
    links=st.sets(st.permutations(FIVE).map(lambda order: tuple(order[:2])), max_size=20),
    out=st.sampled_from([(), ("n0",), ("n3",), ("n1", "n2")]),
)
def test_a_partition_is_narrowed_enough(links, out):
    budget = Budget(FIVE, keeps_quorum=True)
    for number, node in enumerate(out):
        assert budget.take(number, process.KILL, aimed("leader", leader=node)) is not None
    plan = {"links": [list(link) for link in sorted(links)], "label": "partition"}
    budget.take(9, network.PARTITION, plan)
    assert len(budget.out) <= 2
