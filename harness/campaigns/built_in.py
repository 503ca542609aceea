"""Built-in campaigns and matrices, by name.

`run soak` is `run workloads/campaigns/soak.toml`, from any folder. A file of exactly that name in
the current folder takes precedence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.discovery import unknown_name

WORKLOADS: Final = Path(__file__).parents[2] / "workloads"
CAMPAIGNS: Final = WORKLOADS / "campaigns"
MATRICES: Final = WORKLOADS / "matrices"
SUFFIX: Final = ".toml"


def names(folder: Path) -> list[str]:
    """Return the names of the files in a folder: `CAMPAIGNS` or `MATRICES`."""
    return sorted(path.stem for path in folder.glob(f"*{SUFFIX}"))


def find(given: Path, folder: Path, what: str) -> Path:
    """Return the file meant by `given`: the caller's own, or a built-in one by its name.

    Raises:
        UsageError: it is a bare name, and there is neither.
    """
    is_name = given.suffix != SUFFIX and given.name == str(given)
    if given.is_file() or not is_name:
        return given
    built_in = folder / f"{given}{SUFFIX}"
    if not built_in.exists():
        raise UsageError(
            f"no file of that name, and {unknown_name(what, str(given), names(folder))}"
        )
    return built_in
