"""The planted bugs as a whole: each is described, and has a source and a test."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from shaketable.harness import discovery
from shaketable.harness.contracts.abilities import CataloguesBugs
from shaketable.system.mutants import FAMILIES, HEALTHY, Mutant, PlantedBug, catalogue, load, names

ROOT = Path(__file__).parent.parent.parent
CATALOGUE = catalogue()


def test_there_are_enough_of_every_family() -> None:
    count = Counter(bug.family for bug in CATALOGUE)
    assert set(count) == set(FAMILIES)
    assert sum(count.values()) >= 64
    assert min(count.values()) >= 5


@pytest.mark.parametrize("bug", CATALOGUE, ids=lambda bug: bug.name)
def test_each_is_described(bug: PlantedBug) -> None:
    mutant = load(bug.name)
    assert mutant.name == bug.name
    assert bug.breaks.endswith(".")
    assert bug.source.endswith((".", ")", "6E")) or bug.links, "what it is after"
    assert bug.workload in discovery.find("workloads")
    assert set(bug.faults) <= set(discovery.find("faults"))
    assert set(bug.targets) <= set(discovery.find("targets"))
    broken = [field.name for field in fields(Mutant) if _breaks(mutant, field.name)]
    assert broken, "it replaces a part"


def _breaks(mutant: Mutant, part: str) -> bool:
    if part in ("name", "targets", "hunt", "about"):
        return False
    return getattr(mutant, part) != getattr(HEALTHY, part)


def test_targets_offer_those_that_they_have_the_parts_for() -> None:
    for name, target in discovery.find("targets").items():
        offered = [bug.name for bug in CATALOGUE if name in bug.targets]
        assert list(target.mutants) == offered
        assert not offered or isinstance(target.mutants, CataloguesBugs)


def test_each_has_a_test_that_shows_what_it_breaks() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    untested = [name for name in names() if f'"{name}"' not in tests]
    assert untested == []
