"""Planted bugs for calibration: one file each, loaded only by name (`--mutant`).

Each module has `PLUGIN`, a `Mutant`, and its docstring links the real bug it is after.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

from system.raft.core import RaftCore


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug: a core that breaks one rule in one place."""

    name: str
    core: type[RaftCore]


def names() -> tuple[str, ...]:
    """Names of all planted bugs, as the command line gives them."""
    return tuple(sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(__path__)))


def load(name: str) -> Mutant:
    """Return the planted bug of that name. Raises KeyError where there is none."""
    if name not in names():
        raise KeyError(name)
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    mutant: Mutant = module.PLUGIN
    return mutant
