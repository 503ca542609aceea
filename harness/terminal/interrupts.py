"""Ctrl-C that is not lost while kernels are compiled.

llvmlite calls back into Python while numba compiles or loads a kernel; what is raised in such a
callback is printed and forgotten, a KeyboardInterrupt as well (ctypes: exceptions in callbacks).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

AGAIN_S: Final = 3.0
"""Time enough to clean up in, for whoever got the first one."""


@contextmanager
def sure_interrupts(again_s: float = AGAIN_S) -> Iterator[None]:
    """Raise KeyboardInterrupt once more, every `again_s`, while the block goes on after Ctrl-C.

    Does nothing beside the main thread, or where somebody else handles SIGINT.
    """
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not is_ours:
        yield
        return
    before: list[signal._HANDLER] = []

    def raise_again(_number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, again_s)
        raise KeyboardInterrupt

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not before:
            before.append(signal.signal(signal.SIGALRM, raise_again))
        raise_again(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if before:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before[0])
