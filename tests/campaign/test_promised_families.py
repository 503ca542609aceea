"""Promises name families of faults where they hold for all of one."""

from __future__ import annotations

from shaketable.harness import discovery
from shaketable.harness.contracts.capabilities import ROLLBACK, family_of
from shaketable.harness.contracts.promises import BUILT_IN_FAULTS, FAMILIES, in_families
from shaketable.reports.run_page.violations import promised


def test_the_families_of_our_faults_are_what_these_say_of_themselves() -> None:
    found: dict[str, set[str]] = {}
    for name, fault in discovery.find("faults").items():
        if name in BUILT_IN_FAULTS:
            found.setdefault(family_of(fault), set()).add(name)
    assert found.pop(ROLLBACK) == {"rollback"}
    assert found == {family: set(names) for family, names in FAMILIES.items()}


def test_whole_families_are_named_and_others_fault_by_fault() -> None:
    assert in_families(frozenset({"kill", "pause"})) == "kill, pause"
    assert in_families(FAMILIES["clock"] | {"kill"}) == "every clock fault, kill"
    told = promised({"durable_under": sorted(BUILT_IN_FAULTS - {"rollback"})})
    assert told == (
        "an acknowledged append survives every process, network, clock, disk, membership and "
        "resources fault (power loss counts as one of the disk)",
    )
    assert "power loss" not in promised({"durable_under": ["kill", "power"]})[0]
