"""The system's own programs: how to start a broker and a name server, and bugs planted in them.

A world of processes runs the command. A simulated world takes the same command and configuration,
and runs what they name on a simulated machine (`system.sim.trio_world.programs`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from shaketable.harness.contracts.abilities import PlantedBug
from shaketable.harness.contracts.plugins import Address, Launch

if TYPE_CHECKING:
    from shaketable.system.client import ClientParts


CONF = "broker.conf"
"""File name of a broker's configuration."""


def broker(
    directory: Path, lines: Mapping[str, object], files: Mapping[str, str] | None = None
) -> Launch:
    """Return how to start a broker with these lines of configuration.

    Args:
        directory: the node's folder.
        lines: keys and values of broker.conf.
        files: other files of the folder, by name.
    """
    conf = "".join(f"{key}={value}\n" for key, value in lines.items())
    argv = (sys.executable, "-m", "shaketable.system.node", "-c", str(directory / CONF))
    return Launch(argv, files={CONF: conf, **(files or {})})


def name_server(address: Address, bug: str | None = None, *, checks_itself: bool = False) -> Launch:
    """Return how to start a name server at `address`, with an optional planted bug.

    If it `checks_itself`, it ends at the first change that leaves wrong routes.
    """
    argv = (
        "-m",
        "shaketable.system.node.name_server",
        "--host",
        address.host,
        "--port",
        str(address.port),
    )
    bugs = () if bug is None else ("--mutant", bug)
    checks = ("--check-invariants",) if checks_itself else ()
    return Launch((sys.executable, *argv, *bugs, *checks))


# The planted bugs of the system's own targets, by name, with their descriptions.


class PlantedBugs(Mapping[str, str]):
    """The planted bugs of one target and what they break, imported on first use.

    Client workers import this module and never use them.
    """

    def __init__(self, target: str) -> None:
        self._target = target

    def catalogue(self) -> Sequence[PlantedBug]:
        """Return the descriptions, sorted by family and name."""
        return tuple(self._found.values())

    @cached_property
    def _found(self) -> dict[str, PlantedBug]:
        from shaketable.system.sim.planted_bugs import catalogue  # noqa: PLC0415 - see above

        return {
            bug.name: PlantedBug(
                name=bug.name,
                family=bug.family,
                targets=bug.targets,
                breaks=bug.breaks,
                source=bug.source,
                links=bug.links,
                workload=bug.workload,
                faults=bug.faults,
            )
            for bug in catalogue()
            if self._target in bug.targets
        }

    def __getitem__(self, name: str) -> str:
        return self._found[name].breaks

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def client_parts_of(bug: str | None) -> ClientParts | None:
    """Return the client parts with that bug planted; None for the correct ones."""
    if bug is None:
        return None
    from shaketable.system.sim.planted_bugs import client_parts  # noqa: PLC0415 - see above

    return client_parts(bug)
