"""Ends the process when a thread of it cannot go on for want of memory.

Whoever waits for that thread's work would wait for ever: a MemoryError where a thread starts, or
hands over what it did, reaches no task. A node that stands still is worse than one that ends.
"""

from __future__ import annotations

import os
import sys
import threading

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
