"""Planted bugs for calibration: loaded only on request (`--mutant`).

Each module has several in `PLUGINS`; the module, or its folder, is their family. A `Mutant`
replaces parts of a node, a name server or a client, and its `about` links the real bug that it is
modelled on. Processes and simulated worlds load it in the same way.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from shaketable.system.broker.broker import Broker
from shaketable.system.client import ClientParts
from shaketable.system.nameserver.registry import RouteRegistry
from shaketable.system.node.master_slave.parts import MasterSlaveParts
from shaketable.system.raft.core import RaftCore
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.log_writer import LogWriter

GROUP = ("dledger",)
MASTERS = ("multi-master", "async-replication", "sync-double-write")
REPLICATED = ("sync-double-write", "async-replication")
ALL = (*GROUP, *MASTERS)
"""Targets whose nodes, clients or name servers have the part that a bug is in."""

_MASTER_SLAVE_PARTS, _CLIENT_PARTS = MasterSlaveParts(), ClientParts()
_LINK = re.compile(r"https?://[^\s,;)]+[^\s,;).:]")


@dataclass(frozen=True, slots=True)
class Hunt:
    """The workload and the faults that should expose a bug, by name; empty: any."""

    workload: str = ""
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug: the parts of a system, at least one of them replaced by a broken one.

    The first line of `about` names what it breaks; then come the consequences, and after
    "Source:" the bug that it is modelled on. If `targets` or `hunt` is None, its family's applies
    (`FAMILIES`).
    """

    name: str
    core: type[RaftCore] = RaftCore
    commit_log: type[CommitLog] = CommitLog
    log_writer: type[LogWriter] = LogWriter
    broker: type[Broker] = Broker
    master_slave: MasterSlaveParts = _MASTER_SLAVE_PARTS
    registry: type[RouteRegistry] = RouteRegistry
    client: ClientParts = _CLIENT_PARTS
    targets: tuple[str, ...] | None = None
    hunt: Hunt | None = None
    about: str = ""


HEALTHY = Mutant("none")
"""No bug planted."""


@dataclass(frozen=True, slots=True)
class Family:
    """The defaults for the bugs of one module or folder."""

    targets: tuple[str, ...]
    hunt: Hunt


FAMILIES = {
    "consensus": Family(GROUP, Hunt("log", ("partition", "kill", "pause", "transfer"))),
    "storage": Family(GROUP, Hunt("log", ("kill", "power"))),
    "broker": Family(ALL, Hunt("queue", ("kill", "partition"))),
    "client": Family(ALL, Hunt("queue", ("pause", "partition"))),
    "name-server": Family(ALL, Hunt("queue", ("kill", "pause", "name-server-links"))),
    "master-slave": Family(REPLICATED, Hunt("queue", ("kill", "wipe"))),
}
"""Families by name, which is that of their module or folder."""


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """The description of a planted bug.

    Attributes:
        name: its name on the command line.
        family: one of FAMILIES.
        targets: the targets that have the part that it breaks.
        breaks: what it breaks, one line.
        source: what it is modelled on, one line.
        links: the URLs in `source`.
        workload: the workload that should expose it.
        faults: the faults that should expose it.
        is_simulated: whether the simulated worlds of the group have the part that it breaks.
    """

    name: str
    family: str
    targets: tuple[str, ...]
    breaks: str
    source: str
    links: tuple[str, ...]
    workload: str
    faults: tuple[str, ...]
    is_simulated: bool


def names() -> tuple[str, ...]:
    """Return the names of all planted bugs, sorted."""
    return tuple(sorted(_planted()))


def load(name: str) -> Mutant:
    """Return the planted bug of that name. Raises KeyError if there is none."""
    return _planted()[name][1]


def catalogue() -> tuple[PlantedBug, ...]:
    """Return the descriptions of all planted bugs, by family and name."""
    bugs = [_described(family, mutant) for family, mutant in _planted().values()]
    return tuple(sorted(bugs, key=lambda bug: (list(FAMILIES).index(bug.family), bug.name)))


@cache
def _planted() -> dict[str, tuple[str, Mutant]]:
    """Return each bug and its family, by the bug's name."""
    found: dict[str, tuple[str, Mutant]] = {}
    for family in FAMILIES:
        for module in _modules(f"{__name__}.{family.replace('-', '_')}"):
            for mutant in module.PLUGINS:
                assert mutant.name not in found, f"two planted bugs are named {mutant.name}"
                found[mutant.name] = family, mutant
    return found


def _modules(name: str) -> list[ModuleType]:
    """Return the module of that name, or all of the package's."""
    found = importlib.import_module(name)
    if not hasattr(found, "__path__"):
        return [found]
    infos = pkgutil.iter_modules(found.__path__)
    return [importlib.import_module(f"{name}.{info.name}") for info in infos]


def _described(family_name: str, mutant: Mutant) -> PlantedBug:
    family = FAMILIES[family_name]
    text = inspect.cleandoc(mutant.about)
    source = " ".join(text.partition("Source:")[2].split())
    hunt = mutant.hunt or family.hunt
    targets = mutant.targets or family.targets
    return PlantedBug(
        name=mutant.name,
        family=family_name,
        targets=targets,
        breaks=" ".join(text.partition("\n\n")[0].split()),
        source=source,
        links=tuple(_LINK.findall(source)),
        workload=hunt.workload,
        faults=hunt.faults,
        is_simulated=targets[0] in GROUP and _is_simulated(mutant),
    )


def _is_simulated(mutant: Mutant) -> bool:
    """Whether it breaks a part of a member, or the client of a group's members."""
    of_members = ("core", "commit_log", "log_writer", "broker")
    breaks_member = any(getattr(mutant, part) != getattr(HEALTHY, part) for part in of_members)
    return breaks_member or mutant.client.group_client is not HEALTHY.client.group_client
