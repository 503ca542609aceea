"""How many files the process may hold open, and how many clients fit beside the store's.

A client's connection is an open file as well. Where clients took them all, the next file of the
store could not be opened, which would end the node as a failed disk does.
Source: Linux man page getrlimit(2); RocketMQ's bin/os.sh (nofile).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import threading

FILES_WANTED = 65_536
FILES_RESERVED = 2048
"""For the log, the queues, the index and the peers; at most three quarters of what there is."""


def raise_open_file_limit() -> int:
    """Raise the process' soft limit as far as it is allowed and wanted; return what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return FILES_WANTED if soft == resource.RLIM_INFINITY else soft


def clients_within(open_files: int, clients_max: int) -> int:
    """Return how many clients may be connected where so many files may be open."""
    return max(1, min(clients_max, open_files - min(FILES_RESERVED, open_files * 3 // 4)))


# How the process takes memory from the system: in larger pieces, and it keeps them.
#
# Batches of messages are hundreds of kilobytes each. By default glibc maps memory for each of them
# and gives it back: every page of it is a page fault, again and again.
# Source: mallopt(3).

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


# Ends the process when a thread of it cannot go on for want of memory.
#
# Whoever waits for that thread's work would wait for ever: a MemoryError where a thread starts, or
# hands over what it did, reaches no task. A node that stands still is worse than one that ends.

EXIT_NO_MEMORY = 71
IN_A_THREAD = "thread started"
"""What Python says of an error in a thread before that could begin, or after it had ended."""
_LAST_WORDS = b"MemoryError: a thread could not go on\n"


def end_when_starved() -> None:
    """From now on end with `EXIT_NO_MEMORY` when a thread cannot have memory."""
    threading.excepthook = _in_thread
    sys.unraisablehook = _unraisable


def _in_thread(failed: threading.ExceptHookArgs) -> None:
    if issubclass(failed.exc_type, MemoryError):
        _end()
    threading.__excepthook__(failed)


def _unraisable(ignored: sys.UnraisableHookArgs) -> None:
    if isinstance(ignored.exc_value, MemoryError) and IN_A_THREAD in (ignored.err_msg or ""):
        _end()
    sys.__unraisablehook__(ignored)


def _end() -> None:
    """Say so and end, without asking for any memory."""
    os.write(2, _LAST_WORDS)
    os._exit(EXIT_NO_MEMORY)
