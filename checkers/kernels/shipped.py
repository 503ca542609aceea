"""Kernels that were shipped in a zip file: unpacked where all processes of a machine share them.

Machine code can be kept beside a source that is a file, and nowhere near one in a zip file, whose
path differs for each executor besides. So the folder of the kernels is unpacked once a machine,
under a name that tells its content, with the machine code that the driver has already; what an
executor compiles itself the next one finds there.
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
"""Endings of the machine code's files, and of what says of which sources it is."""


def code_kept(folder: Path) -> list[Path]:
    """Return the files of the machine code that is kept for the kernels of `folder`."""
    return sorted(path for path in (folder / "__pycache__").glob("*") if path.suffix in CODE)


def unpacked(module: str) -> str:
    """Unpack the kernels of the zip file that a module's path leads into; return their folder.

    Where no folder can be written it is the path in the zip file itself: each process compiles
    the kernels anew then.
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
    """Where machine code may be kept: the user's own cache, else the executor's own folder."""
    given = os.environ.get(CACHE_HOME)
    with contextlib.suppress(RuntimeError):  # nobody's home
        yield Path(given) if given else Path.home() / ".cache"
    yield Path.cwd()


def _placed(packed: zipfile.ZipFile, names: list[str], prefix: str, target: Path) -> Path:
    """Unpack into a folder beside the target, which takes its place whole; the first one stays."""
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
