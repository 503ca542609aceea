"""The folder in which installed targets are: CACHE/TARGET/VERSION, each of them whole.

What is installed is written into a folder beside it, which is renamed when it is complete.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from shaketable.harness.contracts.errors import HarnessError

VARIABLE: Final = "SHAKETABLE_CACHE"
"""Environment variable with the folder, for all commands."""
PARTIAL: Final = ".partial-"
"""Prefix of the folder in the cache in which something is being installed; one at a time."""
LOCK: Final = ".lock"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder: `SHAKETABLE_CACHE`, or ours in the user's cache (XDG)."""
    if given := environ.get(VARIABLE):
        return Path(given).absolute()
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    home = Path(base) if base.startswith("/") else Path(environ.get("HOME") or "~").expanduser()
    return home / "shaketable" if base.startswith("/") else home / ".cache" / "shaketable"


def folder_of(cache: Path, target: str, version: str) -> Path:
    """Return where a version of a target is, or would be."""
    return cache / target / version


def is_installed(cache: Path, target: str, version: str) -> bool:
    """Return whether it is installed: its folder appears only when it is complete."""
    return folder_of(cache, target, version).is_dir()


@contextmanager
def partial_folder(cache: Path, tell: Callable[[str], None]) -> Iterator[Path]:
    """Give an empty folder to install into; what is left of it at the end is deleted.

    One process at a time installs, others say so and wait; so what an earlier one has left is of
    one that was killed, and is deleted too.

    Raises:
        HarnessError: the cache cannot be written.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tell("waiting for another installation into this cache")
                fcntl.flock(lock, fcntl.LOCK_EX)
            for left in cache.glob(f"{PARTIAL}*"):
                shutil.rmtree(left, ignore_errors=True)
            # A name of its own: a tool that outlived a killed process cannot write into it.
            partial = Path(mkdtemp(prefix=PARTIAL, dir=cache))
            try:
                yield partial
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise HarnessError(
            f"cannot install into {cache}: {error.strerror or error}; name another folder with"
            f" --cache, or with {VARIABLE}"
        ) from error


def keep(folder: Path, cache: Path, target: str, version: str) -> Path:
    """Rename what was installed to where it is looked for; return that."""
    kept = folder_of(cache, target, version)
    kept.parent.mkdir(exist_ok=True)
    folder.rename(kept)
    return kept
