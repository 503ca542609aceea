"""Exit statuses of a node, by the error that ended it, so that a supervisor can tell them apart.

Source: the names and numbers of sysexits.h (EX_DATAERR, EX_SOFTWARE, EX_OSERR, EX_IOERR).
"""

from __future__ import annotations

import traceback
from pathlib import PurePath
from typing import Final

from shaketable.system.raft.protocol import InvariantError
from shaketable.system.store.disk import StoreError
from shaketable.system.store.hard_state import LogDamaged
from shaketable.system.store.index_units import NotContiguous
from shaketable.system.store.native.log import NativeLogDamaged
from shaketable.system.store.segment_files import OutsideLog

EXIT_USAGE: Final = 2
EXIT_OTHER: Final = 1
"""Python's own status: the operating system refused a resource that the node needs."""
EXIT_DAMAGED: Final = 65
EXIT_INVARIANT: Final = 70
EXIT_NO_MEMORY: Final = 71
"""A thread ran out of memory (`system.node.process_limits`)."""
EXIT_DISK: Final = 74

INVARIANT_ERRORS: Final = (InvariantError, AssertionError, NotContiguous, OutsideLog)
"""An invariant is violated: of the protocol, of the log, or of the node's code."""
DAMAGE_ERRORS: Final = (LogDamaged, NativeLogDamaged)
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
