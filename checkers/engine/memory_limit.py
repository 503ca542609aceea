"""Bounds the memory of a process while checkers run in it: one that eats gets a MemoryError.

Source: getrlimit(2), RLIMIT_AS.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKER_BYTES_MIN = 2 << 30
"""What a checker may take beside its search's memory, however small the machine: less, and sound
ones would fail."""


@contextmanager
def limited_memory(search_bytes: int) -> Iterator[None]:
    """Let this process take no more than a share of the machine beyond what it has.

    The share is half of the memory divided by the processors, since so many judge at once; at
    least CHECKER_BYTES_MIN and what a search may hold. Does nothing where the kernel does
    not say how much the process has.
    """
    taken = _address_space_bytes()
    if taken is None:
        yield
        return
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    share = machine // 2 // (os.cpu_count() or 1)
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = taken + max(share, CHECKER_BYTES_MIN + search_bytes)
    if before != resource.RLIM_INFINITY:
        limit = min(limit, before)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def _address_space_bytes() -> int | None:
    """Return the size of this process's address space."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        return None
    return pages * resource.getpagesize()
