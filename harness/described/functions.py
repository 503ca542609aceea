"""The functions of a client file, called from trio: plain ones, asyncio's and trio's.

A plain function runs in a thread. A coroutine function runs on asyncio, on one loop a process, in a
thread of its own; or on trio, if its module has imported trio.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import trio

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.untrusted_text import error_text, short_repr

OPERATIONS: Final[Mapping[str, int]] = {
    "read": 2, "write": 3, "cas": 4,  # a register for each key
    "append": 3, "read_at": 3, "end": 2,  # a log for each key
    "add": 3, "elements": 2,  # a set for each key
    "increment": 3, "count": 2,  # a counter for each key
}  # fmt: skip
"""Functions that are operations, and how many arguments they take: the session, the key, ..."""
CHANGE_NOTHING: Final = frozenset({"read", "read_at", "end", "elements", "count"})
"""Operations that change nothing: whatever goes wrong, they certainly did not happen."""
SESSION: Final[Mapping[str, int]] = {"open": 1, "close": 1}
"""Functions that open and close what operations get as their session."""
DEFINITE: Final = "DEFINITE"
"""The module's attribute with the exceptions after which an operation did not happen."""
THREADS_MAX: Final = 64
"""How many plain functions of a process run at once; more wait."""


class Functions:
    """The functions of one client file.

    Attributes:
        path: the file.
        names: the operations that it has.
        definite: exceptions after which an operation certainly did not happen.
    """

    def __init__(self, path: Path, module: ModuleType) -> None:
        """Look at a module. Raises UsageError if a function cannot be called as it will be."""
        self.path = path
        self._functions: dict[str, Callable[..., Any]] = {}
        for name, count in {**SESSION, **OPERATIONS}.items():
            function = vars(module).get(name)
            if function is not None:
                self._functions[name] = self._checked(name, function, count)
        self.names = frozenset(self._functions) & frozenset(OPERATIONS)
        self.definite = self._definite(getattr(module, DEFINITE, ()))
        self._is_trio = inspect.ismodule(getattr(module, "trio", None))

    def has(self, name: str) -> bool:
        """Return whether there is such a function."""
        return name in self._functions

    async def call(self, name: str, *arguments: object) -> Any:
        """Call a function and return its result. Raises what it raises."""
        function = self._functions[name]
        if not inspect.iscoroutinefunction(function):
            call = functools.partial(function, *arguments)
            return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=_threads())
        if self._is_trio:
            return await function(*arguments)
        return await _on_asyncio(function(*arguments))

    def _checked(self, name: str, function: object, count: int) -> Callable[..., Any]:
        if not callable(function):
            raise UsageError(f"{self.path}: {name} is {short_repr(function)}, no function")
        try:
            inspect.signature(function).bind(*range(count))
        except TypeError:
            raise UsageError(
                f"{self.path}: {name} is called with {count} arguments: {_usage(name)}"
            ) from None
        except ValueError:
            pass  # a function written in C may not tell its arguments
        return function

    def _definite(self, given: object) -> tuple[type[BaseException], ...]:
        types = given if isinstance(given, tuple | list | set | frozenset) else (given,)
        for each in types:
            if not (inspect.isclass(each) and issubclass(each, Exception)):
                raise UsageError(
                    f"{self.path}: {DEFINITE} holds {short_repr(each)}, no exception class"
                )
        return tuple(types)


def load(path: Path) -> Functions:
    """Import a client file and return its functions. Its folder can be imported from as well.

    Raises:
        UsageError: it cannot be imported, or has no operation; one line says why.
    """
    if not path.is_file():
        raise UsageError(f"there is no client file {path}")
    name = f"shaketable_client_{path.stem}".replace("-", "_").replace(".", "_")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise UsageError(f"cannot import {path}: {error_text(error)}") from error
    functions = Functions(path, module)
    if not functions.names:
        raise UsageError(f"{path} has none of the functions {', '.join(OPERATIONS)}")
    return functions


def _usage(name: str) -> str:
    more = {
        "open": "node", "close": "session",
        "write": "session, key, value", "cas": "session, key, expected, value",
        "append": "session, key, value", "read_at": "session, key, offset",
        "add": "session, key, value", "increment": "session, key, amount",
    }  # fmt: skip
    return f"{name}({more.get(name, 'session, key')})"


@functools.cache
def _threads() -> trio.CapacityLimiter:
    return trio.CapacityLimiter(THREADS_MAX)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the process's asyncio loop, which runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="asyncio clients", daemon=True).start()
    return loop


async def _on_asyncio(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on the asyncio loop; a cancellation here cancels it there."""
    ended, token = trio.Event(), trio.lowlevel.current_trio_token()
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())

    def tell(_future: object) -> None:
        try:
            token.run_sync_soon(ended.set)
        except trio.RunFinishedError:
            return  # trio has ended

    future.add_done_callback(tell)
    try:
        await ended.wait()
    except trio.Cancelled:
        future.cancel()
        raise
    return future.result()
