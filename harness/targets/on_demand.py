"""Targets that are installed on demand: a folder each beside this file, with a target.toml.

It is what a user's shaketable.toml is, for programs that `install` puts into the cache
(`harness.installing`). `{installed}` is the folder of the program there, `{python}` this Python.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.described.client import FunctionClient
from shaketable.harness.described.target import TargetOnVolatileDisk
from shaketable.harness.described.target_file import TargetTable, read
from shaketable.harness.installing import (
    LIBRARY,
    cache_folder,
    folder_of,
    is_installed,
    pinned,
    why_missing,
)

FILE_NAME: Final = "target.toml"
VERSION: Final = "version"
"""The option that says which of the pinned versions runs; by default the first."""


class InstalledTable(TargetTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a target.toml."""

    further_placeholders: ClassVar[tuple[str, ...]] = ("installed", "python")


class TargetOnDemand(TargetOnVolatileDisk):
    """A target whose program is installed on demand.

    See `contracts.abilities.NeedsInstallation`.
    """

    @property
    def version(self) -> str:
        """The version that runs."""
        return str(self._table.options[VERSION])

    @cached_property
    def installed(self) -> Path:
        """The folder with its program."""
        return folder_of(cache_folder(), self.name, self.version)

    def why_not_installed(self) -> str | None:
        """Return how to install it, or what it runs with; None if it can run."""
        if is_installed(cache_folder(), self.name, self.version):
            needed = pinned()[self.name][self.version].runs_with
            missing = (why_missing(tool, self.name) for tool in needed)
            return next(filter(None, missing), None)
        is_first = self.version == next(iter(pinned()[self.name]))
        what = self.name if is_first else f"{self.name}@{self.version}"
        return f"{self.name} {self.version} is not installed: {PROGRAM} install {what}"

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> FunctionClient:
        """Return a client, which can import what was installed for it."""
        library = str(self.installed / LIBRARY)
        if library not in sys.path:
            sys.path.append(library)
        return super().client(addresses, timeout_s)

    def further_values(self) -> Mapping[str, str]:
        """Return where its program is. Raises HarnessError if it is not installed."""
        if (why := self.why_not_installed()) is not None:
            raise HarnessError(why)
        return {"installed": str(self.installed), "python": sys.executable}


def _targets() -> tuple[TargetOnDemand, ...]:
    files = sorted(Path(__file__).parent.glob(f"*/{FILE_NAME}"))
    return tuple(
        TargetOnDemand(name, _with_versions(name, table), file)
        for file in files
        for name, table in read(file, InstalledTable).items()
    )


def _with_versions(target: str, table: InstalledTable) -> InstalledTable:
    """Return a table with the option `version`: one of those that are pinned."""
    versions = tuple(pinned()[target])
    return msgspec.structs.replace(
        table,
        options={VERSION: versions[0], **table.options},
        choices={VERSION: versions, **table.choices},
    )


PLUGINS: Final = _targets()
