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
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import trio

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.described.operations import KNOWN, OPERATIONS, mark_of
from shaketable.harness.untrusted_text import error_text, short_repr

DEFINITE: Final = "DEFINITE"
"""The module's attribute with the exceptions after which an operation did not happen."""
THREADS_MAX: Final = 64
"""How many plain functions of a process run at once; more wait."""


class Functions:
    """The functions of one client file.

    Attributes:
        path: the file.
        names: the operations that it has.
    """

    def __init__(self, path: Path, module: ModuleType) -> None:
        """Look at a module. Raises UsageError if a function cannot be called as it will be."""
        self.path = path
        of_all = self._exceptions(DEFINITE, getattr(module, DEFINITE, ()))
        self._functions: dict[str, Callable[..., Any]] = {}
        self._definite: dict[str, tuple[type[Exception], ...]] = {}
        for name, called, function in self._found(module):
            mark = mark_of(function)
            own = () if mark is None else self._exceptions(f"definite of {called}", mark.definite)
            self._functions[name] = self._checked(name, called, function)
            self._definite[name] = (*of_all, *own)
        self.names = frozenset(self._functions) & frozenset(OPERATIONS)
        self._is_trio = inspect.ismodule(getattr(module, "trio", None))

    def has(self, name: str) -> bool:
        """Return whether there is such a function."""
        return name in self._functions

    def definite(self, name: str) -> tuple[type[Exception], ...]:
        """Return the exceptions after which an operation certainly did not happen."""
        return self._definite[name]

    async def call(self, name: str, *arguments: object) -> Any:
        """Call a function and return its result. Raises what it raises."""
        function = self._functions[name]
        if not inspect.iscoroutinefunction(function):
            call = functools.partial(function, *arguments)
            return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=_threads())
        if self._is_trio:
            return await function(*arguments)
        return await _on_asyncio(function(*arguments))

    def _found(self, module: ModuleType) -> Iterator[tuple[str, str, object]]:
        """Find what is an operation by decorator or by name, with the name that it has there."""
        found: dict[str, tuple[str, object]] = {}
        for called, function in vars(module).items():
            mark = mark_of(function)
            name = called if mark is None else mark.name
            if name not in KNOWN or function is None:
                continue
            other, known = found.setdefault(name, (called, function))
            if known is not function:
                raise UsageError(f"{self.path}: {other} and {called} are both the operation {name}")
        return ((name, called, function) for name, (called, function) in found.items())

    def _checked(self, name: str, called: str, function: object) -> Callable[..., Any]:
        if not callable(function):
            raise UsageError(f"{self.path}: {called} is {short_repr(function)}, no function")
        arguments = KNOWN[name]
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError:
            raise UsageError(
                f"{self.path}: {called} is called with {len(arguments)} arguments:"
                f" {called}({', '.join(arguments)})"
            ) from None
        except ValueError:
            pass  # a function written in C may not tell its arguments
        return function

    def _exceptions(self, where: str, given: object) -> tuple[type[Exception], ...]:
        types = given if isinstance(given, tuple | list | set | frozenset) else (given,)
        for each in types:
            if not (inspect.isclass(each) and issubclass(each, Exception)):
                raise UsageError(
                    f"{self.path}: {where} holds {short_repr(each)}, no exception class"
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
    except UsageError as error:  # of the decorator: it knows no such operation
        raise UsageError(f"{path}: {error}") from error
    except BaseException as error:
        raise UsageError(f"cannot import {path}: {error_text(error)}") from error
    functions = Functions(path, module)
    if not functions.names:
        raise UsageError(f"{path} has none of the functions {', '.join(OPERATIONS)}")
    return functions


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
