"""How the process takes memory from the system: in larger pieces, and it keeps them.

Batches of messages are hundreds of kilobytes each. By default glibc maps memory for each of them
and gives it back: every page of it is a page fault, again and again.
Source: mallopt(3).
"""

from __future__ import annotations

import contextlib
import ctypes

MAPPED_BYTES_MIN = 32 << 20
"""Only what is larger gets a mapping of its own (glibc's own upper limit for its threshold)."""
SPARE_BYTES_MAX = 64 << 20
"""Free memory at the heap's end that is kept."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_memory() -> None:
    """Tell the C library; nothing where it has no such thing."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_TRIM_THRESHOLD, SPARE_BYTES_MAX)
