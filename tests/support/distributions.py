"""Builds what pip installs, and spares a test the minutes in which kernels are compiled."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hatchling import build

from shaketable.checkers.kernels.shipped import cached_code

ROOT = Path(__file__).parents[2]
KERNELS = (
    "checkers/kernels",
    "checkers/kernels/transactions",
    "harness/history",
    "harness/targets",
)
"""Folders whose machine code is taken from the checkout."""


def built(kind: str, project: Path, target: Path) -> Path:
    """Build a project as pip does: by its build backend, from within its folder."""
    target.mkdir(exist_ok=True)
    before = Path.cwd()
    os.chdir(project)
    try:
        name = build.build_wheel(str(target)) if kind == "wheel" else build.build_sdist(str(target))
    finally:
        os.chdir(before)
    return target / name


def keep_compiled_kernels(site: Path) -> None:
    """Copy the machine code of the checkout's kernels to the package in a folder of packages."""
    for folder in KERNELS:
        ours, theirs = ROOT / folder, site / "shaketable" / folder
        for source in ours.glob("*.py"):  # numba asks when the source was changed
            times = source.stat()
            os.utime(theirs / source.name, ns=(times.st_atime_ns, times.st_mtime_ns))
        (theirs / "__pycache__").mkdir(exist_ok=True)
        for code in cached_code(ours):
            shutil.copy2(code, theirs / "__pycache__")
