"""The planted bugs by name, for whoever may see of the system its simulation alone."""

from __future__ import annotations

from shaketable.system.client import ClientParts
from shaketable.system.mutants import HEALTHY, Mutant, PlantedBug, catalogue, load

__all__ = [
    "HEALTHY",
    "Mutant",
    "PlantedBug",
    "catalogue",
    "client_parts",
    "native_bugs",
    "planted_bug",
    "simulated_bugs",
]


def planted_bug(name: str | None) -> Mutant | None:
    """Return the planted bug of that name, None for none. Raises KeyError for an unknown one."""
    return None if name is None else load(name)


def simulated_bugs() -> dict[str, str]:
    """Return the bugs that the simulated worlds of a group can have, and what each breaks."""
    return {bug.name: bug.breaks for bug in catalogue() if bug.is_simulated}


def native_bugs(target: str) -> dict[str, str]:
    """Return the bugs of masters and slaves that a target can have, and what each breaks."""
    return {
        bug.name: bug.breaks
        for bug in catalogue()
        if bug.family == "master-slave" and target in bug.targets
    }


def client_parts(name: str | None) -> ClientParts:
    """Return of what a client is made with that bug planted. Raises KeyError for an unknown one."""
    return ClientParts() if name is None else load(name).client
