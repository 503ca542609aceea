"""Unpacks kernels that were shipped in a zip file, where all processes of a machine share them.

Numba caches machine code beside a source file. It cannot for a source in a zip file, whose path
also differs for each executor. So the folder of the kernels is unpacked once a machine, under a
name derived from its content, with the machine code that the driver already has. What an executor
compiles itself is cached there for the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

CACHE_HOME = "XDG_CACHE_HOME"
CODE = (".nbi", ".nbc", ".stamp")
"""Suffixes of the machine code's files, and of the stamp that names their sources."""


def cached_code(folder: Path) -> list[Path]:
    """Return the files of the machine code that is cached for the kernels of `folder`."""
    return sorted(path for path in (folder / "__pycache__").glob("*") if path.suffix in CODE)


def unpacked(module: str) -> str:
    """Unpack the kernels of the zip file that contains `module`; return their folder.

    If no folder can be written, return the path in the zip file: then each process compiles the
    kernels anew.
    """
    inside = Path(module).parent
    archive = next(path for path in inside.parents if path.is_file())
    prefix = inside.relative_to(archive).as_posix() + "/"
    with zipfile.ZipFile(archive) as packed:
        names = sorted(name for name in packed.namelist() if name.startswith(prefix))
        digest = hashlib.sha256()
        for name in names:
            if name.endswith(".py"):
                digest.update(name.encode() + b"\0" + packed.read(name))
        for home in _homes():
            target = home / "shaketable" / f"kernels-{digest.hexdigest()[:16]}"
            with contextlib.suppress(OSError):
                return str(_placed(packed, names, prefix, target))
    return str(inside)


def _homes() -> Iterator[Path]:
    """Yield where machine code may be cached: the user's cache, else the executor's folder."""
    given = os.environ.get(CACHE_HOME)
    with contextlib.suppress(RuntimeError):  # the user has no home
        yield Path(given) if given else Path.home() / ".cache"
    yield Path.cwd()


def _placed(packed: zipfile.ZipFile, names: list[str], prefix: str, target: Path) -> Path:
    """Unpack into a folder beside the target, then rename it; if the target exists, it is used."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        for name in names:
            path = fresh / name.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(packed.read(name))
        try:
            fresh.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target
