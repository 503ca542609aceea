"""The planted bugs of the system's own targets, by name, with their descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from shaketable.harness.contracts.abilities import PlantedBug

if TYPE_CHECKING:
    from shaketable.system.client import ClientParts


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
                is_simulated=bug.is_simulated,
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
