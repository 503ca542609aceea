"""Campaigns and matrices that come with the project, by their names.

`run soak` is `run workloads/campaigns/soak.toml`, from whatever folder; a file of the caller's that
is there under the very name comes first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.discovery import unknown

WORKLOADS: Final = Path(__file__).parents[2] / "workloads"
CAMPAIGNS: Final = WORKLOADS / "campaigns"
MATRICES: Final = WORKLOADS / "matrices"
SUFFIX: Final = ".toml"


def names(folder: Path) -> list[str]:
    """Return the names of the files that there are: `CAMPAIGNS` or `MATRICES`."""
    return sorted(path.stem for path in folder.glob(f"*{SUFFIX}"))


def find(given: Path, folder: Path, what: str) -> Path:
    """Return the file that is meant: one of the caller's, or a built-in one by its name.

    Raises:
        UsageError: a bare name, and there is neither.
    """
    is_name = given.suffix != SUFFIX and given.name == str(given)
    if given.is_file() or not is_name:
        return given
    built_in = folder / f"{given}{SUFFIX}"
    if not built_in.exists():
        raise UsageError(f"no file of that name, and {unknown(what, str(given), names(folder))}")
    return built_in
