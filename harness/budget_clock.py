"""The clock that budgets of time are measured by.

It stands still while kernels are compiled or loaded: on a new machine that takes minutes, and a
small search would lose all of its time to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Depth(threading.local):
    """How often a thread is inside of `uncounted`: what it compiles may compile more."""

    depth = 0


_HERE = _Depth()
_uncounted_s = 0.0


@contextmanager
def uncounted() -> Iterator[None]:
    """Leave the time that the block takes out of all budgets of this process."""
    global _uncounted_s  # noqa: PLW0603 - of the process, as what is compiled is
    began_s = time.time()
    _HERE.depth += 1
    try:
        yield
    finally:
        _HERE.depth -= 1
        if not _HERE.depth:
            _uncounted_s += time.time() - began_s


def budget_clock_s() -> float:
    """Return the time in seconds since 1970, less what was not counted in this process."""
    return time.time() - _uncounted_s
