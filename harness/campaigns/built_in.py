"""Built-in campaigns and matrices, by name.

`run soak` is `run workloads/campaigns/soak.toml`, from any folder. A file of exactly that name in
the current folder takes precedence.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Final

from shaketable.harness.contracts.errors import UsageError, unknown_name

WORKLOADS: Final = Path(__file__).parents[2] / "workloads"
CAMPAIGNS: Final = WORKLOADS / "campaigns"
MATRICES: Final = WORKLOADS / "matrices"
SUFFIX: Final = ".toml"


def names(folder: Path) -> list[str]:
    """Return the names of the files in a folder: `CAMPAIGNS` or `MATRICES`."""
    return sorted(path.stem for path in folder.glob(f"*{SUFFIX}"))


def summary(name: str, folder: Path) -> str:
    """Return what a built-in file says of itself: the comment at its start."""
    lines = (folder / f"{name}{SUFFIX}").read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.lstrip("# ") for line in comment)


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
