"""Copies of the project's tree, so that a mutant is never written into the working tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "*.egg-info", "samples", "*.svg")
"""What no test of these packages reads, and what belongs to this machine."""
LEFT_BY_RUNS = frozenset({"store", "spark-warehouse", "metastore_db", "derby.log"})
"""What runs leave in the root of the tree."""
MEASURED = ("system", "tests")
"""What decides which code a test or a seed reaches..."""
MEASURED_BY_CAMPAIGNS = ("system", "harness", "workloads")
"""... and which a campaign reaches."""

JUDGED = ("system", "harness", "workloads", "checkers")
"""What decides which mutants are found."""

SIMULATED = ("src", "system", "tests/mutation")
"""All that a simulated world needs of the tree..."""
OF_CAMPAIGNS = (*SIMULATED, "checkers", "harness", "reports", "workloads")
"""... and all that campaigns need."""


@contextmanager
def copy_of_tree(
    origin: Path = ROOT,
    changed: Mapping[str, str] | None = None,
    parts: Sequence[str] = (".",),
) -> Iterator[Path]:
    """Copy the tree, or some folders of it, to a folder of its own, which is removed at the end.

    `changed` has the new text of files, by their path within the tree.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder) / "tree"
        for part in parts:
            shutil.copytree(origin / part, tree / part, symlinks=True, ignore=_ignored(origin))
        for name, text in (changed or {}).items():
            path = tree / name
            path.write_text(text)
            for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                cached.unlink()  # it would be taken if size and second of the change agree
        yield tree


def _ignored(origin: Path) -> Callable[[str, list[str]], set[str]]:
    def ignored(folder: str, names: list[str]) -> set[str]:
        left_by_runs = LEFT_BY_RUNS.intersection(names) if Path(folder) == origin else set()
        return LEFT_OUT(folder, names) | left_by_runs

    return ignored


def environment_of(tree: Path) -> dict[str, str]:
    """Return the environment in which programs import the copy, not what is installed.

    The commands of the project hand PYTHONPATH on to the processes that they start.
    """
    # The hash seed is fixed: a seed that reached a line once has to reach it again.
    return {
        **os.environ,
        "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}",
        "PYTHONHASHSEED": "0",
        "COLUMNS": "200",
    }


def digest_of(root: Path, folders: Sequence[str] = MEASURED) -> str:
    """Name the state of everything that decides which code tests and seeds reach."""
    digest = blake2b(digest_size=8)
    for package in folders:
        for path in sorted((root / package).rglob("*.py")):
            if "mutation" in path.parts:
                continue  # this tool
            digest.update(f"{path.relative_to(root)} ".encode() + path.read_bytes())
    return digest.hexdigest()


def commit_of(root: Path) -> str:
    """Name the commit that the tree was taken from, for the summary."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
