"""Compile inner loops with numba, and cache the machine code between processes where possible.

Source: numba, whose cache lies beside the source or in NUMBA_CACHE_DIR.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")

_UNCOUNTED: dict[str, Any] = {"nogil": True, "_nrt": False}
"""Numba options that disable reference counting; numba supports but does not document them."""


@functools.cache
def _check_once(folder: Path) -> None:
    delete_stale_cache(folder)


def delete_stale_cache(folder: Path) -> bool:
    """Delete the cached machine code of `folder` if any source in it has changed; True if so.

    Numba invalidates its cache only when the kernel's own file changes, not when a file that it
    calls into or the module's import name does. A folder that cannot be written holds no cache of
    ours. Nothing in NUMBA_CACHE_DIR is deleted: its user gives each version a folder of its own.
    """
    digest = hashlib.sha256(__name__.encode())
    for source in sorted(folder.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    stamp = folder / "__pycache__" / "kernels.stamp"
    with contextlib.suppress(OSError):
        if stamp.is_file() and stamp.read_text() == digest.hexdigest():
            return False
        for cached in (*stamp.parent.glob("*.nbi"), *stamp.parent.glob("*.nbc")):
            cached.unlink(missing_ok=True)
        temporary = stamp.with_suffix(f".{os.getpid()}")
        temporary.write_text(digest.hexdigest())
        temporary.replace(stamp)
    return True


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel at its first call; it runs without the GIL.

    The machine code is cached beside the source or in NUMBA_CACHE_DIR; where neither is writable,
    or the source is in a zip file, each process compiles it again.
    """
    source = Path(function.__code__.co_filename)
    if not source.is_file():
        uncached: Callable[P, R] = numba.njit(nogil=True)(function)
        return uncached
    _check_once(source.parent)
    try:
        cached: Callable[P, R] = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # "cannot cache function": no writable folder for the cache
        cached = numba.njit(nogil=True)(function)
    return cached


def bare(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a part of a kernel without reference counting; only kernels may call it.

    Numba counts references to every array of every tuple at each call, which would cost ten times
    the work of the part itself. Leaving that out is safe where no array is created or kept.
    """
    part: Callable[P, R] = numba.njit(**_UNCOUNTED)(function)
    return part


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small part as `bare` does, and inline it into its callers."""
    part: Callable[P, R] = numba.njit(forceinline=True, **_UNCOUNTED)(function)
    return part
