"""Planted bugs for calibration: one file each, loaded only by name (`--mutant`).

Each module has `PLUGIN`, a `Mutant`, and its docstring links the real bug it is after. A mutant
replaces parts that a node is made of; processes and simulated worlds load it the same way.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

from system.broker.broker import Broker
from system.raft.core import RaftCore
from system.store.commit_log import CommitLog
from system.store.log_writer import LogWriter


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug: parts of a node, each the right one or one that breaks a rule."""

    name: str
    core: type[RaftCore] = RaftCore
    commit_log: type[CommitLog] = CommitLog
    log_writer: type[LogWriter] = LogWriter
    broker: type[Broker] = Broker


HEALTHY = Mutant("none")
"""No bug planted."""


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
