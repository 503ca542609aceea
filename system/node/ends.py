"""With which exit status a node ends, by what ended it: whoever runs nodes can tell these apart.

Source: the names and numbers of sysexits.h (EX_DATAERR, EX_SOFTWARE, EX_IOERR).
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
"""What Python itself ends with: where the machine refused what the node needs."""
EXIT_DAMAGED: Final = 65
EXIT_INVARIANT: Final = 70
EXIT_DISK: Final = 74

OWN_RULES: Final = (InvariantError, AssertionError, NotContiguous, OutsideLog)
"""A rule of the node's own is broken: of the protocol, of its log, of its own code."""
DAMAGE: Final = (LogDamaged, NativeLogDamaged)
"""What the node had synced is not there any more, or is something else."""
REFUSED: Final = (OSError, MemoryError)
"""What the machine did not give; a disk that failed is a `StoreError` where it is foreseen."""


def is_unforeseen(error: BaseException) -> bool:
    """Whether this is an error of the node's code that nobody wrote a sentence for.

    A KeyError says as an assertion does that the code is not as its author thought.
    """
    return not isinstance(error, (StoreError, *OWN_RULES, *DAMAGE, *REFUSED))


def exit_status(error: BaseException) -> int:
    """Return the exit status of a node that this error ended.

    Of a `StoreError` that is none of `OWN_RULES` and `DAMAGE`, and of an OSError, it is that of a
    disk that failed.
    """
    if isinstance(error, DAMAGE):
        return EXIT_DAMAGED
    return EXIT_INVARIANT if isinstance(error, OWN_RULES) or is_unforeseen(error) else EXIT_DISK


def reason(error: BaseException) -> str:
    """Say in one line why a node ends: of what its code did not foresee, where."""
    is_assertion = isinstance(error, AssertionError)
    if not is_assertion and not is_unforeseen(error):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:  # it was made, and not raised: nobody can say where
        return str(error)
    frame = frames[-1]
    what = "asserts" if is_assertion else f"raises {type(error).__name__}"
    return f"{PurePath(frame.filename).name}:{frame.lineno} {what}: {str(error) or frame.line}"
