"""The planted bugs by name, for code that imports only the simulation."""

from __future__ import annotations

from shaketable.system.client import ClientParts
from shaketable.system.mutants import HEALTHY, Mutant, PlantedBug, catalogue, load

__all__ = [
    "HEALTHY",
    "Mutant",
    "PlantedBug",
    "catalogue",
    "client_parts",
    "master_slave_bugs",
    "planted_bug",
    "simulated_bugs",
]


def planted_bug(name: str | None) -> Mutant | None:
    """Return the planted bug of that name, None for None. Raises KeyError for an unknown name."""
    return None if name is None else load(name)


def simulated_bugs() -> dict[str, str]:
    """Return the bugs of a simulated group, and what each breaks."""
    return {bug.name: bug.breaks for bug in catalogue() if bug.is_simulated}


def master_slave_bugs(target: str) -> dict[str, str]:
    """Return the master-slave bugs that a target can have, and what each breaks."""
    return {
        bug.name: bug.breaks
        for bug in catalogue()
        if bug.family == "master-slave" and target in bug.targets
    }


def client_parts(name: str | None) -> ClientParts:
    """Return the parts of a client with that bug planted. Raises KeyError for an unknown name."""
    return ClientParts() if name is None else load(name).client
