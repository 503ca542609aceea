"""Loads the planted bug that a configuration names (`shaketableMutant`, `--mutant`)."""

from __future__ import annotations

import logging

from shaketable.system import mutants
from shaketable.system.mutants import Mutant
from shaketable.system.node.config import ConfigError

log = logging.getLogger("shaketable.node")


def planted(name: str) -> Mutant:
    """Return the planted bug of that name, the correct parts for "". Raises ConfigError."""
    if not name:
        return mutants.HEALTHY
    try:
        mutant = mutants.load(name)
    except KeyError:
        known = ", ".join(mutants.names())
        raise ConfigError(f"no mutant {name}; there are {known}") from None
    log.warning("event=mutant name=%s", name)
    return mutant
