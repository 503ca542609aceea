"""The plan of a calibration: which bugs are hunted, how and how often, from one seed. Pure.

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
"""default: the default campaign on processes; default-sim: the same in the simulated world; sim:
seeds of the simulated worlds, and the family's campaign there; family: the campaign of the bug's
family, with its workload and faults."""
OF_DEFAULT: Final[tuple[Method, ...]] = ("default", "default-sim")
IN_SIM: Final[tuple[Method, ...]] = ("default-sim", "sim")
CLEAN: Final = ""
"""No bug: the correct system."""
SEED_STRIDE: Final = 1_000_000
"""Distance between the first seeds of hunts: more than the seeds that a hunt can run."""


class Hunt(msgspec.Struct, frozen=True, kw_only=True):
    """One hunt: search for a bug until it is found or the effort is spent.

    Attributes:
        bug: the planted bug, or CLEAN.
        family: the bug's family.
        target: the system that it is planted in.
        method: how to search for it.
        repeat: number of the repetition, from 1.
        seed: the base of its campaigns' seeds; the first seed in the simulated worlds.
        workload: of the family's campaign; "" for the default.
        faults: of the family's campaign; () for the default.
    """

    bug: str
    family: str
    target: str
    method: Method
    repeat: int
    seed: int
    workload: str = ""
    faults: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Its name, also the name of its file."""
        return f"{self.target}.{self.bug or 'clean'}.{self.method}.{self.repeat}"


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much a hunt may spend.

    Attributes:
        runs_max: most campaigns.
        virtual_s_max: most virtual seconds in each simulated world.
    """

    runs_max: int = 5
    virtual_s_max: float = 600.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration: its hunts and the effort for each."""

    seed: int
    effort: Effort
    hunts: tuple[Hunt, ...]


def planted_bugs(targets: Iterable[Target]) -> list[PlantedBug]:
    """Return the planted bugs of these targets, each once, sorted by family and name."""
    found: dict[str, PlantedBug] = {}
    for target in targets:
        for bug in _catalogue(target):
            found.setdefault(bug.name, bug)
    return sorted(found.values(), key=lambda bug: (bug.family, bug.name))


def _catalogue(target: Target) -> Sequence[PlantedBug]:
    """Return a target's catalogue of bugs; without one, their names and what they break."""
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
    """Return the hunts for these bugs by each method, and those on the correct system.

    Args:
        bugs: the bugs; each is planted in its first target.
        clean: how many hunts on the correct system each target gets, by each method.
        methods: the methods.
        repeats: how often each bug is hunted by each method.
        effort: what each hunt may spend.
        seed: the seed that all others are derived from.
    """
    hunted = [
        _hunt(bug, method, repeat, seed)
        for bug in bugs
        for method in methods
        for repeat in range(1, repeats + 1)
    ]
    # A family's campaign shows nothing about the correct system that the others do not.
    untouched = [
        _hunt(
            PlantedBug(name=CLEAN, family="", targets=(target,), breaks=""),
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
    )


def _seed(seed: int, *of: object) -> int:
    """Return the first seed of a hunt, far from all others; `hash` would differ by process."""
    digest = hashlib.blake2b(repr((seed, *of)).encode(), digest_size=5).digest()
    return int.from_bytes(digest, "big") * SEED_STRIDE
