"""How kernels are compiled: kept on disk between processes where a folder for that is writable."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel at its first call, without Python's lock while it runs.

    The machine code is kept beside the source or in NUMBA_CACHE_DIR; where neither can be
    written, each process compiles it anew. Numba asks only whether the file of the kernel itself
    has changed: after a change to another file that it calls into, delete what was kept.
    """
    try:
        kept: Callable[P, R] = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # "cannot cache function": no folder for it can be written
        kept = numba.njit(nogil=True)(function)
    return kept


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small part of a kernel into each of its callers."""
    part: Callable[P, R] = numba.njit(nogil=True, forceinline=True)(function)
    return part
