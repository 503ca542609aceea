"""Every plug-in that is found keeps to its protocol, says what it is, and draws from its seed."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from shaketable.harness import discovery
from shaketable.harness.contracts.rng import rng_for

NODES = ("n0", "n1", "n2", "n3", "n4")
TURNS = range(12)
BESIDE_NODES = {"name-servers"}
"""Faults that strike no node: a leader is nothing to them."""


def plug_ins() -> Iterator[Any]:
    for kind in discovery.PACKAGES:
        for name, plugin in discovery.find(kind).items():
            yield pytest.param(kind, name, plugin, id=f"{kind}/{name}")


@pytest.mark.parametrize(("kind", "name", "plugin"), list(plug_ins()))
def test_it_is_found_by_its_name_and_says_what_it_is(kind: str, name: str, plugin: Any) -> None:
    assert discovery.get(kind, name) is plugin
    summary = discovery.summary(plugin)
    assert summary.endswith((".", ":", "?")), "the first line of a docstring, shown by `list`"


@pytest.mark.parametrize("name", sorted(discovery.find("faults")))
def test_a_fault_draws_json_from_its_seed_alone(name: str) -> None:
    fault = discovery.get("faults", name)
    for turn in TURNS:
        plan, again = (fault.plan(rng_for("7", name, turn), NODES, turn) for _ in range(2))
        assert plan == again
        assert json.loads(json.dumps(plan)) == plan
        for leader in (*NODES, None):
            before = json.dumps(plan)
            aimed = fault.aim(plan, NODES, leader)
            assert json.dumps(plan) == before, "aim is pure"
            assert json.loads(json.dumps(aimed)) == aimed
            assert fault.describe(aimed)


@pytest.mark.parametrize("name", sorted(discovery.find("faults").keys() - BESIDE_NODES))
def test_the_first_turns_of_a_fault_go_for_the_leader(name: str) -> None:
    fault = discovery.get("faults", name)
    plans = [fault.plan(rng_for("7", name, turn), NODES, turn) for turn in range(2)]
    assert any(fault.aim(plan, NODES, "n0") != fault.aim(plan, NODES, "n3") for plan in plans)


@pytest.mark.parametrize("name", sorted(discovery.find("workloads")))
def test_a_workload_draws_from_its_seed_alone(name: str) -> None:
    workload = discovery.get("workloads", name).configured({})
    one, again, other = (
        list(islice(workload.operations(seed, 1, 4), 100)) for seed in ("7", "7", "8")
    )
    assert one == again
    assert one != other
    for operation in [*one, *workload.final_operations(0, 1)]:
        offset = workload.choose_offset(operation, 50)
        assert offset is None or offset >= 0


@pytest.mark.parametrize("name", sorted(discovery.find("workloads")))
def test_the_checkers_of_a_workload_exist(name: str) -> None:
    workload = discovery.get("workloads", name)
    assert set(workload.checkers) <= set(discovery.find("checkers"))
