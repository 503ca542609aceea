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
from typing import Any, Final, Generic, ParamSpec, TypeVar

import numpy as np

from shaketable.harness.budget_clock import uncounted

INTERPRETED_MAX: Final = 3000
"""So many operations and nodes of searches kernels take as Python: some tenths of a second, less
than it takes to import numba and to load machine code."""
INTERPRETED_NODES: Final = 100
"""Nodes of a search that are visited as Python at a time."""

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


class Kernel(Generic[P, R]):
    """A function of arrays that numba compiles: it is imported when the kernel is first needed.

    That takes as long as a small check. The machine code is cached beside the source or in
    NUMBA_CACHE_DIR; where neither is writable, or the source is in a zip file, each process
    compiles it again. All that numba's own dispatcher has, such as `signatures`, is had of this.

    Attributes:
        plain: the function itself, run by Python: for what is smaller than numba's import.
    """

    def __init__(self, function: Callable[P, R], options: dict[str, Any], *, is_part: bool) -> None:
        functools.update_wrapper(self, function)
        self.plain = function
        self._options = options
        self._is_part = is_part
        self._lock = threading.Lock()
        self._dispatcher: Any = None

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """Run it; a part of kernels, which Python cannot call, runs as the function that it is."""
        if self._is_part or _interpreter.is_on:
            return self.plain(*arguments, **named)
        found: R = (self._dispatcher or self.dispatcher)(*arguments, **named)
        return found

    @property
    def dispatcher(self) -> Any:
        """Numba's dispatcher of this function, made when it is first asked for."""
        global _left  # noqa: PLW0603 - of the process, as numba is
        with self._lock:
            if self._dispatcher is None:
                with uncounted():
                    self._dispatcher = _dispatcher(self.plain, self._options, self._is_part)
                _left = 0
        return self._dispatcher

    @property
    def _numba_type_(self) -> Any:
        """What numba asks a global of a kernel for: the type of what can be called."""
        return self.dispatcher._numba_type_

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dispatcher, name)


def compiled(function: Callable[P, R]) -> Kernel[P, R]:
    """Compile a kernel at its first call; it runs without the GIL."""
    return Kernel(function, {"nogil": True, "cache": True}, is_part=False)


def _dispatcher(function: Callable[..., Any], options: dict[str, Any], is_part: bool) -> Any:
    made = _cached(function, options)
    return made if is_part else _uninterrupted(made)


def _cached(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    import numba  # noqa: PLC0415 - takes as long as a small check

    source = Path(function.__code__.co_filename)
    if options.get("cache") and source.is_file():
        _check_once(source.parent)
        with contextlib.suppress(RuntimeError):  # "cannot cache function": no writable folder
            return numba.njit(**options)(function)
    return numba.njit(**{**options, "cache": False})(function)


class _Interpreter(threading.local):
    """Whether kernels run as Python in this thread."""

    is_on = False


_interpreter = _Interpreter()
_left = INTERPRETED_MAX


@contextlib.contextmanager
def interpreted(work: int) -> Iterator[None]:
    """Run kernels as Python in the block where that takes less time than to import numba.

    That is so until INTERPRETED_MAX is used up, or numba has been imported. What a kernel answers
    is the same. Only for kernels that take time in proportion to their arrays, or are called for a
    slice of `slice_of` nodes at a time.

    Args:
        work: the operations that the block is about.
    """
    global _left  # noqa: PLW0603 - of the process, as numba is
    if _interpreter.is_on or work > _left:
        yield
        return
    _left -= work
    _interpreter.is_on = True
    try:
        with np.errstate(over="ignore"):  # hashes overflow, as machine words do
            yield
    finally:
        _interpreter.is_on = False


def interpret_again() -> None:
    """Let kernels run as Python once more for what is small.

    For who may not wait: while another process compiles them.
    """
    global _left  # noqa: PLW0603 - as above
    _left = INTERPRETED_MAX


def slice_of(nodes: int) -> int:
    """Return how many nodes a search may visit before it asks again; `nodes` if it is compiled.

    Where kernels run as Python it takes these from what is left for them. If nothing is left they
    are compiled from now on: all that a search knows is in its arrays.
    """
    global _left  # noqa: PLW0603 - as above
    if _interpreter.is_on and _left > 0:
        granted = min(INTERPRETED_NODES, _left)
        _left -= granted
        return granted
    _interpreter.is_on = False
    return nodes


def is_cached(kernel: Kernel[..., Any]) -> bool:
    """Return whether the next process will load the kernel; True also where nothing is kept."""
    file = getattr(kernel.dispatcher._cache, "_cache_file", None)  # noqa: SLF001 - of numba, which has no public way to ask
    return file is None or bool(file._load_index())  # noqa: SLF001 - as above


def _uninterrupted(kernel: Any) -> Any:
    """Let signals wait while numba compiles or loads the kernel.

    llvmlite calls back into Python then. ctypes drops what is raised in a callback, such as
    KeyboardInterrupt, and LLVM goes on with what the callback did not return: the process crashes.
    """
    find = kernel._compile_for_args  # noqa: SLF001 - what numba's C code calls; there is no public hook

    def find_undisturbed(*arguments: object, **more: object) -> object:
        with signals_wait(), uncounted():
            return find(*arguments, **more)

    kernel._compile_for_args = find_undisturbed  # noqa: SLF001 - as above
    return kernel


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


def bare(function: Callable[P, R]) -> Kernel[P, R]:
    """Compile a part of a kernel without reference counting; only kernels may call it.

    Numba counts references to every array of every tuple at each call, which would cost ten times
    the work of the part itself. Leaving that out is safe where no array is created or kept.
    The part is cached as kernels are, so that the next kernel which calls it does not compile it.
    """
    return Kernel(function, {**_PART, "cache": True}, is_part=True)


def inlined(function: Callable[P, R]) -> Kernel[P, R]:
    """Compile a small part as `bare` does, and inline it into its callers."""
    return Kernel(function, {**_PART, "forceinline": True}, is_part=True)


def load_numba() -> None:
    """Load numba, with what its first machine code needs; kernels run compiled from now on."""
    _itself(0)


@compiled
def _itself(number: int) -> int:
    return number
