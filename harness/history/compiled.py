"""How the export's kernels are compiled. Source: numba, whose cache keeps them between runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call; it runs without Python's lock.

    The machine code is kept beside the source or in NUMBA_CACHE_DIR. Where neither can be
    written, each process compiles it anew. Numba sees a change of the function's own file
    alone, so kernels call none of another file.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # "cannot cache function": there is no folder for it
        return numba.njit(nogil=True)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a small part of a kernel into each of its callers."""
    return numba.njit(nogil=True, forceinline=True)(function)
