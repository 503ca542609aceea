"""A target whose nodes are started on other machines."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.hosts import Hosts
from shaketable.harness.contracts.plugins import Launch, NodeLayout
from shaketable.harness.described.target import DescribedTarget
from shaketable.harness.described.target_file import TargetTable, filled

CAPABILITIES: Final = frozenset(
    {Capability.KILL, Capability.STOP, Capability.PAUSE, Capability.CUT}
)
"""What can be done to nodes on other machines, unless their hosts lack something."""


class TargetOnHosts(DescribedTarget):
    """A target of `shaketable.toml` with `hosts`; see `contracts.abilities.RunsOnHosts`."""

    def __init__(self, name: str, table: TargetTable, file: Path) -> None:
        super().__init__(name, table, file)
        self.lacks: dict[Capability, str] = {}

    @cached_property
    def hosts(self) -> Hosts:
        """Return the machines."""
        hosts = self._table.hosts
        assert hosts is not None, "it is what makes a table a target of this kind"
        here = {"here": str(self.file.parent)}
        return msgspec.structs.replace(
            hosts, options=tuple(filled(option, here) for option in hosts.options)
        )

    def prepare(self, layout: NodeLayout) -> Launch:
        """Say how to start a node on its host; touch nothing here."""
        return self._launch(layout)

    def why_not(self, capability: Capability) -> str | None:
        """Return why its nodes cannot be given what a capability needs, or None."""
        if capability not in CAPABILITIES:
            return "nothing is done for this by ssh"
        return self.lacks.get(capability)
