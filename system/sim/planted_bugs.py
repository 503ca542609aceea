"""The planted bugs by name, for whoever may see of the system its simulation alone."""

from __future__ import annotations

import sys

from system.mutants import HEALTHY, Mutant, load, names

__all__ = ["HEALTHY", "Mutant", "planted_bug", "planted_bugs"]


def planted_bugs() -> dict[str, str]:
    """Return each planted bug's name and the first line of what its file says of it."""
    return {name: _first_line(load(name)) for name in names()}


def planted_bug(name: str | None) -> Mutant | None:
    """Return the planted bug of that name, None for none. Raises KeyError for an unknown one."""
    return None if name is None else load(name)


def _first_line(mutant: Mutant) -> str:
    module = f"system.mutants.{mutant.name.replace('-', '_')}"
    return (sys.modules[module].__doc__ or "").strip().partition("\n")[0]
