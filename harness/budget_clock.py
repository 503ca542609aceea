"""The clock that budgets of time are measured by.

It stands still while kernels are compiled or loaded: on a new machine that takes minutes, and a
small search would lose all of its time to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

COMPILES_AFTER_S: Final = 1.0
"""Machine code is loaded faster: what takes longer is compiled."""

_begin_s_by_thread: dict[int, float] = {}
_uncounted_s = 0.0


@contextmanager
def uncounted() -> Iterator[None]:
    """Leave the time that the block takes out of all budgets of this process."""
    global _uncounted_s  # noqa: PLW0603 - of the process, as what is compiled is
    thread = threading.get_ident()
    if thread in _begin_s_by_thread:  # what is compiled may compile more
        yield
        return
    _begin_s_by_thread[thread] = time.time()
    try:
        yield
    finally:
        _uncounted_s += time.time() - _begin_s_by_thread.pop(thread)


def is_compiling() -> bool:
    """Return whether some thread of this process compiles a kernel, for a line of progress."""
    now_s = time.time()
    return any(now_s - begin_s > COMPILES_AFTER_S for begin_s in tuple(_begin_s_by_thread.values()))


def unix_time_s(budget_s: float) -> float:
    """Return a time of this process's budget clock as Unix time."""
    return budget_s + _uncounted_s


def budget_clock_s() -> float:
    """Return the time in seconds since 1970, less what was not counted in this process."""
    return time.time() - _uncounted_s
