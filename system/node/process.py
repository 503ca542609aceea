"""A node's process: its exit statuses, its limit of open files, its memory, its planted bug.

By its exit status a supervisor can tell which error ended a node.
Source: the names and numbers of sysexits.h (EX_DATAERR, EX_SOFTWARE, EX_OSERR, EX_IOERR).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import sys
import threading
import traceback
from pathlib import PurePath
from typing import Final

from shaketable.system import mutants
from shaketable.system.mutants import Mutant
from shaketable.system.node.config import ConfigError
from shaketable.system.raft.protocol import InvariantError
from shaketable.system.store.disk import StoreError
from shaketable.system.store.index_units import NotContiguous
from shaketable.system.store.plain_log import PlainLogDamaged
from shaketable.system.store.segment_files import OutsideLog
from shaketable.system.store.state_files import LogDamaged

EXIT_USAGE: Final = 2
EXIT_OTHER: Final = 1
"""Python's own status: the operating system refused a resource that the node needs."""
EXIT_DAMAGED: Final = 65
EXIT_INVARIANT: Final = 70
EXIT_NO_MEMORY: Final = 71
"""A thread ran out of memory (`exit_when_out_of_memory`)."""
EXIT_DISK: Final = 74

INVARIANT_ERRORS: Final = (InvariantError, AssertionError, NotContiguous, OutsideLog)
"""An invariant is violated: of the protocol, of the log, or of the node's code."""
DAMAGE_ERRORS: Final = (LogDamaged, PlainLogDamaged)
"""Data that the node had synced is missing or changed."""
RESOURCE_ERRORS: Final = (OSError, MemoryError)
"""The operating system refused a resource. Expected disk failures are `StoreError`s instead."""


def is_unexpected(error: BaseException) -> bool:
    """Return whether this is an unexpected error, that is a bug in the node's code.

    A KeyError, like a failed assertion, shows that the code breaks its author's assumptions.
    """
    return not isinstance(error, (StoreError, *INVARIANT_ERRORS, *DAMAGE_ERRORS, *RESOURCE_ERRORS))


def exit_status(error: BaseException) -> int:
    """Return the exit status for the error that ended a node.

    An OSError, or a `StoreError` that is none of `INVARIANT_ERRORS` and `DAMAGE_ERRORS`, counts as
    a failed disk.
    """
    if isinstance(error, DAMAGE_ERRORS):
        return EXIT_DAMAGED
    return (
        EXIT_INVARIANT if isinstance(error, INVARIANT_ERRORS) or is_unexpected(error) else EXIT_DISK
    )


def reason(error: BaseException) -> str:
    """Return one line that says why a node ends; for an unexpected error also where it occurred."""
    is_assertion = isinstance(error, AssertionError)
    if not is_assertion and not is_unexpected(error):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:  # created but never raised: there is no location
        return str(error)
    frame = frames[-1]
    what = "asserts" if is_assertion else f"raises {type(error).__name__}"
    return f"{PurePath(frame.filename).name}:{frame.lineno} {what}: {str(error) or frame.line}"


# The open file limit of the process, and how many clients it allows.
#
# A client connection takes a file descriptor. If clients took them all, the store could not open
# its next file, and the node would stop as it does for a failed disk.
# Source: Linux man page getrlimit(2); RocketMQ's bin/os.sh (nofile).

FILES_WANTED = 65_536
FILES_RESERVED = 2048
"""For the log, queues, index and peers; at most three quarters of the limit."""


def raise_open_file_limit() -> int:
    """Raise the soft limit towards FILES_WANTED as far as allowed; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return FILES_WANTED if soft == resource.RLIM_INFINITY else soft


def client_limit(open_files: int, clients_max: int) -> int:
    """Return how many clients may connect if `open_files` files may be open."""
    return max(1, min(clients_max, open_files - min(FILES_RESERVED, open_files * 3 // 4)))


# Tuning of malloc: serve large blocks from the heap and keep freed memory.
#
# Batches of messages take hundreds of kilobytes each. By default glibc maps and unmaps memory for
# each of them, which costs a page fault for every page of every batch.
# Source: mallopt(3).

MAPPED_BYTES_MIN = 32 << 20
"""Only larger blocks get their own mapping (glibc's upper limit for this threshold)."""
SPARE_BYTES_MAX = 64 << 20
"""Free memory at the top of the heap that is not returned to the system."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def tune_malloc() -> None:
    """Set malloc's thresholds; do nothing if the C library has no mallopt."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_TRIM_THRESHOLD, SPARE_BYTES_MAX)


# Exits when a thread runs out of memory.
#
# A MemoryError while a thread starts, or while it passes on its result, reaches no task, so the
# task that waits for that thread would wait for ever. Crashing is better than hanging.

THREAD_ERROR_TEXT = "thread started"
"""Part of Python's message for an error in a thread before its function ran or after it ended."""
_OUT_OF_MEMORY_TEXT = b"MemoryError: a thread could not go on\n"


def exit_when_out_of_memory() -> None:
    """Exit with `EXIT_NO_MEMORY` from now on when a thread runs out of memory."""
    threading.excepthook = _thread_hook
    sys.unraisablehook = _unraisable_hook


def _thread_hook(failed: threading.ExceptHookArgs) -> None:
    if issubclass(failed.exc_type, MemoryError):
        _exit()
    threading.__excepthook__(failed)


def _unraisable_hook(ignored: sys.UnraisableHookArgs) -> None:
    if isinstance(ignored.exc_value, MemoryError) and THREAD_ERROR_TEXT in (ignored.err_msg or ""):
        _exit()
    sys.__unraisablehook__(ignored)


def _exit() -> None:
    """Write the reason and exit, without allocating memory."""
    os.write(2, _OUT_OF_MEMORY_TEXT)
    os._exit(EXIT_NO_MEMORY)


# Loads the planted bug that a configuration names (`shaketableMutant`, `--mutant`).

log = logging.getLogger("shaketable.node")


def planted(name: str) -> Mutant:
    """Return the planted bug of that name, the correct parts for "". Raises ConfigError."""
    if not name:
        return mutants.HEALTHY
    try:
        mutant = mutants.load(name)
    except KeyError:
        known = ", ".join(mutants.names())
        raise ConfigError(f"no mutant {name}; there are {known}") from None
    log.warning("event=mutant name=%s", name)
    return mutant
