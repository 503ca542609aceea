"""Which planted bugs are hunted, by which method, how often: pure data, drawn from one seed.

Source: mutation testing's score (DeMillo et al. 1978), over bugs that were chosen; TigerBeetle's
VOPR for seeds as the unit of effort.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from shaketable.harness.contracts.abilities import CataloguesBugs, PlantedBug
from shaketable.harness.contracts.plugins import Target

Method = Literal["default", "default-sim", "sim", "family"]
METHODS: Final[tuple[Method, ...]] = ("default", "default-sim", "sim", "family")
"""The default campaign on processes; the same in the simulated world; the simulated worlds, seed by
seed, and the family's campaign there; the campaign of the bug's family, with its workload under its
faults."""
OF_DEFAULT: Final[tuple[Method, ...]] = ("default", "default-sim")
IN_SIM: Final[tuple[Method, ...]] = ("default-sim", "sim")
CLEAN: Final = ""
"""In place of a bug: the system as it is."""
SEED_STRIDE: Final = 1_000_000
"""How far apart the first seeds of hunts in the simulated worlds are: more than a hunt can run."""


class Hunt(msgspec.Struct, frozen=True, kw_only=True):
    """One hunt: a bug is looked for until it is found, or until the effort is spent.

    Attributes:
        bug: the planted bug, or CLEAN.
        family: the bug's.
        target: the system that it is planted in.
        method: how it is looked for.
        repeat: which of several hunts alike, from 1.
        seed: what its campaigns are drawn from; the first seed in the simulated worlds.
        workload: of the family's campaign; "" for the default.
        faults: of the family's campaign; () for the default.
        is_simulated: whether seeds of the target's simulated worlds can be run with the bug.
    """

    bug: str
    family: str
    target: str
    method: Method
    repeat: int
    seed: int
    workload: str = ""
    faults: tuple[str, ...] = ()
    is_simulated: bool = False

    @property
    def id(self) -> str:
        """Its name, which is that of its file."""
        return f"{self.target}.{self.bug or 'clean'}.{self.method}.{self.repeat}"


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much a hunt may spend.

    Attributes:
        runs_max: campaigns.
        virtual_s_max: virtual seconds in each simulated world.
    """

    runs_max: int = 5
    virtual_s_max: float = 600.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration: its hunts, and what each may spend."""

    seed: int
    effort: Effort
    hunts: tuple[Hunt, ...]


def planted_bugs(targets: Iterable[Target]) -> list[PlantedBug]:
    """Return each planted bug of some targets once, by family and name."""
    found: dict[str, PlantedBug] = {}
    for target in targets:
        for bug in _catalogue(target):
            found.setdefault(bug.name, bug)
    return sorted(found.values(), key=lambda bug: (bug.family, bug.name))


def _catalogue(target: Target) -> Sequence[PlantedBug]:
    """Return what a target says of its bugs; of one that says little, their names."""
    if isinstance(target.mutants, CataloguesBugs):
        return target.mutants.catalogue()
    return [
        PlantedBug(name=name, family="", targets=(target.name,), breaks=breaks)
        for name, breaks in target.mutants.items()
    ]


def make_plan(
    bugs: Iterable[PlantedBug],
    clean: Mapping[str, int],
    methods: Sequence[Method],
    repeats: int,
    effort: Effort,
    seed: int,
) -> Plan:
    """Return the hunts for some bugs, each by each method, and the runs of the correct system.

    Args:
        bugs: who is hunted; a bug's first target is the one that it is planted in.
        clean: how many runs of the correct system each target gets, by each method.
        methods: how.
        repeats: how often each.
        effort: what each hunt may spend.
        seed: what all seeds are drawn from.
    """
    hunted = [
        _hunt(bug, method, repeat, seed)
        for bug in bugs
        for method in methods
        for repeat in range(1, repeats + 1)
    ]
    # A family's campaign says nothing of the correct system that the others do not.
    untouched = [
        _hunt(
            PlantedBug(name=CLEAN, family="", targets=(target,), breaks="", is_simulated=True),
            method,
            repeat,
            seed,
        )
        for target, runs in clean.items()
        for method in methods
        if method != "family"
        for repeat in range(1, runs + 1)
    ]
    return Plan(seed=seed, effort=effort, hunts=(*hunted, *untouched))


def _hunt(bug: PlantedBug, method: Method, repeat: int, seed: int) -> Hunt:
    target = bug.targets[0]
    return Hunt(
        bug=bug.name,
        family=bug.family,
        target=target,
        method=method,
        repeat=repeat,
        seed=_seed(seed, target, bug.name, method, repeat),
        workload=bug.workload,
        faults=tuple(bug.faults),
        is_simulated=bug.is_simulated,
    )


def _seed(seed: int, *of: object) -> int:
    """Return the first seed of a hunt: the same in every process, far from all others."""
    digest = hashlib.blake2b(repr((seed, *of)).encode(), digest_size=5).digest()
    return int.from_bytes(digest, "big") * SEED_STRIDE
