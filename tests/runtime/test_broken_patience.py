"""How long a run waits for its group, and for one that a node's own bug ended."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shaketable.harness.contracts.abilities import BROKE_RULE, ENDED_UNHARMED, FOUND_DAMAGE
from shaketable.harness.runtime.liveness import PATIENCE_S
from shaketable.harness.runtime.phases import BROKEN_PATIENCE_S, HEAL_TIMEOUT_S, patience_s
from shaketable.harness.runtime.processes.nodes import Exit
from shaketable.harness.runtime.rig import is_broken


def rig_with(*exits: Exit) -> SimpleNamespace:
    world = SimpleNamespace(exits=list(exits), awaited=frozenset)
    return SimpleNamespace(world=world, is_virtual=False, not_recovered=[])


def ended(cause: str = "", excuse: str = "") -> Exit:
    return Exit("n1", 3, 70, asked=False, last_line="", at_ns=0, cause=cause, excuse=excuse)


@pytest.mark.parametrize("cause", [BROKE_RULE, FOUND_DAMAGE])
def test_a_group_with_a_broken_rule_may_never_come_back(cause: str) -> None:
    rig = rig_with(ended(), ended(cause))
    assert is_broken(rig.world)  # type: ignore[arg-type]
    assert patience_s(rig, HEAL_TIMEOUT_S) == BROKEN_PATIENCE_S  # type: ignore[arg-type]
    assert patience_s(rig, 1.0) == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "exits", [(), (ended(),), (ended(FOUND_DAMAGE, "bytes of its log were damaged"),)]
)
def test_any_other_one_is_waited_for(exits: tuple[Exit, ...]) -> None:
    rig = rig_with(*exits)
    assert not is_broken(rig.world)  # type: ignore[arg-type]
    assert patience_s(rig, HEAL_TIMEOUT_S) == HEAL_TIMEOUT_S  # type: ignore[arg-type]


def test_virtual_time_costs_nothing_but_the_patience_is_named() -> None:
    rig = rig_with()
    rig.is_virtual = True
    assert patience_s(rig, HEAL_TIMEOUT_S) == PATIENCE_S  # type: ignore[arg-type]
    rig.world.exits.append(ended(ENDED_UNHARMED))
    assert patience_s(rig, HEAL_TIMEOUT_S) == BROKEN_PATIENCE_S  # type: ignore[arg-type]


def test_a_group_that_has_had_its_virtual_time_is_waited_for_no_more() -> None:
    rig = rig_with()
    rig.is_virtual = True
    rig.not_recovered.append("n1")
    assert patience_s(rig, HEAL_TIMEOUT_S) == BROKEN_PATIENCE_S  # type: ignore[arg-type]
    rig.not_recovered.clear()
    rig.world.awaited = lambda: frozenset({"n0"})
    assert patience_s(rig, HEAL_TIMEOUT_S) == BROKEN_PATIENCE_S  # type: ignore[arg-type]
    rig.is_virtual = False
    assert patience_s(rig, HEAL_TIMEOUT_S) == HEAL_TIMEOUT_S  # type: ignore[arg-type]
