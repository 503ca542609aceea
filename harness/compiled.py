"""Compiles inner loops with numba, and keeps the machine code between processes where it can.

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
"""Options of numba: no references are counted. Numba has it, but does not document it."""


@functools.cache
def _look_once(folder: Path) -> None:
    forget_stale(folder)


def forget_stale(folder: Path) -> bool:
    """Delete the machine code kept in `folder` if any source beside it has changed since.

    Numba asks only whether the file of the kernel itself has changed: not those that it calls
    into, nor the name that its module is imported by. True if it was of other sources. A folder
    that cannot be written holds none of ours; in NUMBA_CACHE_DIR nothing is deleted: who sets it
    gives each version a folder of its own.
    """
    digest = hashlib.sha256(__name__.encode())
    for source in sorted(folder.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    stamp = folder / "__pycache__" / "kernels.stamp"
    with contextlib.suppress(OSError):
        if stamp.is_file() and stamp.read_text() == digest.hexdigest():
            return False
        for kept in (*stamp.parent.glob("*.nbi"), *stamp.parent.glob("*.nbc")):
            kept.unlink(missing_ok=True)
        fresh = stamp.with_suffix(f".{os.getpid()}")
        fresh.write_text(digest.hexdigest())
        fresh.replace(stamp)
    return True


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel at its first call, without Python's lock while it runs.

    The machine code is kept beside the source or in NUMBA_CACHE_DIR; where neither can be
    written, or the source lies in a zip file, each process compiles it anew.
    """
    source = Path(function.__code__.co_filename)
    if not source.is_file():
        anew: Callable[P, R] = numba.njit(nogil=True)(function)
        return anew
    _look_once(source.parent)
    try:
        kept: Callable[P, R] = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # "cannot cache function": no folder for it can be written
        kept = numba.njit(nogil=True)(function)
    return kept


def bare(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a part of a kernel that makes no arrays, and is called from kernels alone.

    Numba counts references to every array of every tuple at each call, which here would cost
    ten times what the part does. It may be left out where no array is made or kept.
    """
    part: Callable[P, R] = numba.njit(**_UNCOUNTED)(function)
    return part


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small part, as `bare` does, into each of its callers."""
    part: Callable[P, R] = numba.njit(forceinline=True, **_UNCOUNTED)(function)
    return part
