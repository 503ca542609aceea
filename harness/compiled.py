"""Compile inner loops with numba, and cache the machine code between processes where possible.

Source: numba, whose cache lies beside the source or in NUMBA_CACHE_DIR.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import numba

from shaketable.harness.budget_clock import uncounted

P = ParamSpec("P")
R = TypeVar("R")
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_PART: dict[str, Any] = {
    "nogil": True,
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""Numba options of what only kernels call: no reference counting, and no way to call it from Python
or C. Numba supports but does not document them."""


@functools.cache
def _check_once(folder: Path) -> None:
    if sys.dont_write_bytecode and not os.environ.get(
        "NUMBA_CACHE_DIR"
    ):  # Python made no folder, numba will
        with contextlib.suppress(OSError):
            (folder / "__pycache__").mkdir(exist_ok=True)
    delete_stale_cache(folder)


def delete_stale_cache(folder: Path) -> bool:
    """Delete the cached machine code of `folder` if any source in it has changed; True if so.

    Numba invalidates its cache only when the kernel's own file changes, not when a file that it
    calls into or the module's import name does. A folder that cannot be written holds no cache of
    ours. Nothing in NUMBA_CACHE_DIR is deleted: its user gives each version a folder of its own.
    """
    digest = hashlib.sha256(__name__.encode())
    for source in sorted(folder.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    stamp = folder / "__pycache__" / "kernels.stamp"
    with contextlib.suppress(OSError):
        if stamp.is_file() and stamp.read_text() == digest.hexdigest():
            return False
        for cached in (*stamp.parent.glob("*.nbi"), *stamp.parent.glob("*.nbc")):
            cached.unlink(missing_ok=True)
        temporary = stamp.with_suffix(f".{os.getpid()}")
        temporary.write_text(digest.hexdigest())
        temporary.replace(stamp)
    return True


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel at its first call; it runs without the GIL.

    The machine code is cached beside the source or in NUMBA_CACHE_DIR; where neither is writable,
    or the source is in a zip file, each process compiles it again.
    """
    return _uninterrupted(_cached(function, {"nogil": True}))


def _cached(function: Callable[P, R], options: dict[str, Any]) -> Any:
    source = Path(function.__code__.co_filename)
    if source.is_file():
        _check_once(source.parent)
        with contextlib.suppress(RuntimeError):  # "cannot cache function": no writable folder
            return numba.njit(cache=True, **options)(function)
    return numba.njit(**options)(function)


def is_cached(kernel: Callable[..., Any]) -> bool:
    """Return whether the next process will load the kernel; True also where nothing is kept."""
    file = getattr(kernel._cache, "_cache_file", None)  # type: ignore[attr-defined]  # noqa: SLF001 - of numba, which has no public way to ask
    return file is None or bool(file._load_index())  # noqa: SLF001 - as above


def _uninterrupted(kernel: Any) -> Callable[P, R]:
    """Let signals wait while numba compiles or loads the kernel.

    llvmlite calls back into Python then. ctypes drops what is raised in a callback, such as
    KeyboardInterrupt, and LLVM goes on with what the callback did not return: the process crashes.
    """
    find = kernel._compile_for_args  # noqa: SLF001 - what numba's C code calls; there is no public hook

    def find_undisturbed(*arguments: object, **more: object) -> object:
        with signals_wait(), uncounted():
            return find(*arguments, **more)

    kernel._compile_for_args = find_undisturbed  # noqa: SLF001 - as above
    same: Callable[P, R] = kernel
    return same


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Call the handlers of signals that end a program after the block, not inside of it."""
    if threading.current_thread() is not threading.main_thread():  # handlers never run here
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handlers = {
        number: handler
        for number in ENDING_SIGNALS
        if callable(handler := signal.getsignal(number))
    }
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for came_number, frame in came:
            handlers[signal.Signals(came_number)](came_number, frame)


def bare(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a part of a kernel without reference counting; only kernels may call it.

    Numba counts references to every array of every tuple at each call, which would cost ten times
    the work of the part itself. Leaving that out is safe where no array is created or kept.
    The part is cached as kernels are, so that the next kernel which calls it does not compile it.
    """
    part: Callable[P, R] = _cached(function, _PART)
    return part


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small part as `bare` does, and inline it into its callers."""
    part: Callable[P, R] = numba.njit(forceinline=True, **_PART)(function)
    return part
