"""A client made of a file's functions: its type has the operations that they serve.

The functions are called from trio: plain ones, asyncio's and trio's. A plain function runs in a
thread. A coroutine function runs on asyncio, on one loop a process, in a thread of its own; or on
trio, if its module has imported trio.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final

import outcome
import trio

from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError, UsageError
from shaketable.harness.contracts.plugins import Address, Step
from shaketable.harness.described import CHANGE_NOTHING, KNOWN, OPERATIONS, mark_of
from shaketable.harness.untrusted_text import error_text, short_repr

MISTAKES: Final = (NameError, TypeError, AttributeError, NotImplementedError, AssertionError)
"""Errors of the functions themselves: they are passed on, so that the log has their traceback."""
CLOSE_TIMEOUT_S: Final = 0.5
_turns: Final = count()
_LOG = logging.getLogger(__name__)


class Node:
    """A node as the function `open` gets it: its id, and where clients reach it."""

    def __init__(
        self, name: str, address: Address, timeout_s: float, options: Mapping[str, Any]
    ) -> None:
        self.name = name
        self._address = address
        self.host = address.host
        self.port = address.port
        self.timeout_s = timeout_s
        """How long an operation may take, in seconds."""
        self.options = options
        """What `shaketable.toml` says to the functions."""

    def __str__(self) -> str:
        return str(self._address)


class FunctionClient:
    """One session at one node; after an error a new one, at the next node (it may be the leader).

    A failure to open a session is definite. A failure of an operation is indefinite, unless the
    operation changes nothing, or the functions' file declares the error definite.
    """

    functions: ClassVar[Functions]
    options: ClassVar[Mapping[str, Any]]
    key_prefix = ""
    """Before each key, if the group has keys of earlier runs."""

    def __init__(self, nodes: Mapping[str, Address], timeout_s: float) -> None:
        self._nodes = sorted(nodes.items())
        self._turn = next(_turns)  # so that clients are spread over the nodes
        self._timeout_s = timeout_s
        self._session: Any = None
        self._is_open = False
        self.node: str | None = None

    async def aclose(self) -> None:
        """Close the session, if there is one. Raises nothing: it may be broken."""
        session, was_open = self._session, self._is_open
        self._session, self._is_open = None, False
        if was_open and self.functions.has("close"):
            with trio.move_on_after(CLOSE_TIMEOUT_S):
                try:
                    await self.functions.call("close", session)
                except MISTAKES:
                    _LOG.exception("closing the session")
                except Exception:
                    return  # its connection is broken: there is nothing to close

    async def _call(self, name: str, key: str, *arguments: object) -> Any:
        """Call an operation on a key; after an error the session is gone."""
        changes = name not in CHANGE_NOTHING
        return await self._ask(name, self.key_prefix + key, *arguments, changes=changes)

    async def _ask(self, name: str, *arguments: object, changes: bool) -> Any:
        """Call a function within the client's timeout; after an error the session is gone."""
        unknown = IndefiniteError if changes else DefiniteError
        self.node = self._nodes[self._turn % len(self._nodes)][0]
        try:
            with trio.fail_after(self._timeout_s):
                await self._open()
                return await self.functions.call(name, self._session, *arguments)
        except (DefiniteError, IndefiniteError):
            raise
        except trio.TooSlowError:
            what = unknown if self._is_open else DefiniteError
            error: Exception = what(f"no answer within {self._timeout_s:g} s")
        except self.functions.definite(name) as refused:
            error = DefiniteError(error_text(refused))
            error.__cause__ = refused
        except MISTAKES:
            raise
        except Exception as failed:
            error = unknown(error_text(failed))
            error.__cause__ = failed
        self._turn += 1
        await self.aclose()
        raise error

    async def _open(self) -> None:
        if self._is_open:
            return
        node = Node(*self._nodes[self._turn % len(self._nodes)], self._timeout_s, self.options)
        try:
            if self.functions.has("open"):
                self._session = await self.functions.call("open", node)
            else:
                self._session = node
        except MISTAKES:
            raise
        except Exception as failed:
            self._turn += 1
            raise DefiniteError(f"no session: {error_text(failed)}") from failed
        self._is_open = True


def client_type(functions: Functions, options: Mapping[str, Any] = {}) -> type[FunctionClient]:
    """Return the type of clients with these functions: only what they serve are its methods."""
    methods: dict[str, Any] = {"functions": functions, "options": options}
    for method, (name, function) in _METHODS.items():
        if functions.has(name):
            methods[method] = function
    return type("FunctionClient", (FunctionClient,), methods)


def _whole_number(name: str, value: object) -> int:
    """Return a value as a number; text of a number counts. Raises TypeError."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if isinstance(text, str):
        try:
            return int(text)
        except ValueError:
            pass
    elif isinstance(text, int) and not isinstance(text, bool):
        return text
    raise TypeError(f"{name} returned {short_repr(value)}, no whole number")


def _number_or_none(name: str, value: object) -> int | None:
    return None if value is None else _whole_number(name, value)


async def _get(self: FunctionClient, key: str) -> int | None:
    """Return the register's value."""
    return _number_or_none("read", await self._call("read", key))


async def _put(self: FunctionClient, key: str, value: int) -> None:
    """Write the register."""
    await self._call("write", key, value)


async def _swap(self: FunctionClient, key: str, expected: int | None, value: int) -> bool:
    """Compare and set."""
    did = await self._call("cas", key, expected, value)
    if not isinstance(did, bool):
        raise TypeError(f"cas returned {short_repr(did)}, not whether it took effect")
    return did


async def _append(self: FunctionClient, key: str, value: int) -> int:
    """Append to the log."""
    return _whole_number("append", await self._call("append", key, value))


async def _read(self: FunctionClient, key: str, offset: int) -> int | None:
    """Return the value at an offset."""
    return _number_or_none("read_at", await self._call("read_at", key, offset))


async def _end(self: FunctionClient, key: str) -> int:
    """Return the log's end."""
    return _whole_number("end", await self._call("end", key))


async def _add(self: FunctionClient, key: str, value: int) -> int | None:
    """Add to the set."""
    await self._call("add", key, value)
    return None


async def _elements(self: FunctionClient, key: str) -> Sequence[int]:
    """Return the set's elements."""
    found = await self._call("elements", key)
    if isinstance(found, str | bytes | Mapping) or not hasattr(found, "__iter__"):
        raise TypeError(f"elements returned {short_repr(found)}, no collection")
    return [_whole_number("elements", each) for each in found]


async def _increment(self: FunctionClient, key: str, amount: int) -> None:
    """Add to the counter."""
    await self._call("increment", key, amount)


async def _count(self: FunctionClient, key: str) -> int:
    """Return the counter's value; 0 if it was never incremented."""
    return _number_or_none("count", await self._call("count", key)) or 0


async def _enqueue(self: FunctionClient, key: str, value: int) -> None:
    """Put an element into the queue."""
    await self._call("enqueue", key, value)


async def _dequeue(self: FunctionClient, key: str) -> int | None:
    """Take an element out of the queue."""
    return _number_or_none("dequeue", await self._call("dequeue", key))


async def _transact(self: FunctionClient, steps: Sequence[Step]) -> list[Step]:
    """Do the steps of a transaction over lists."""
    return await _transacted(self, "transact", steps, _list)


async def _transact_registers(self: FunctionClient, steps: Sequence[Step]) -> list[Step]:
    """Do the steps of a transaction over registers."""
    return await _transacted(self, "transact_registers", steps, _number_or_none)


async def _transacted(
    self: FunctionClient, name: str, steps: Sequence[Step], read: Callable[[str, object], Any]
) -> list[Step]:
    """Do the steps of a transaction; one that only reads certainly changes nothing."""
    prefix = self.key_prefix
    asked = [[f, prefix + key, value] for f, key, value in steps]
    changes = any(f != "r" for f, _, _ in steps)
    given = await self._ask(name, asked, changes=changes)
    if not isinstance(given, list | tuple) or len(given) != len(steps):
        raise TypeError(f"{name} returned {short_repr(given)}, not its {len(steps)} steps")
    done: list[Step] = []
    for (f, key, value), said in zip(steps, given, strict=True):
        is_its = isinstance(said, list | tuple) and len(said) == 3
        if not is_its or (*said[:2],) != (f, prefix + key):
            raise TypeError(f"{name} returned {short_repr(said)} for {short_repr([f, key, value])}")
        done.append((f, key, read(name, said[2]) if f == "r" else value))
    return done


def _list(name: str, value: object) -> list[int]:
    """Return a list that was read. Raises TypeError."""
    found = [] if value is None else value
    if isinstance(found, str | bytes | Mapping) or not hasattr(found, "__iter__"):
        raise TypeError(f"{name} returned {short_repr(found)} for a read, no list")
    return [_whole_number(name, each) for each in found]


async def _transfer(
    self: FunctionClient, source: str, destination: str, amount: int, opening: int
) -> None:
    """Move an amount between two accounts."""
    accounts = (self.key_prefix + source, self.key_prefix + destination)
    did = await self._ask("transfer", *accounts, amount, opening, changes=True)
    if not isinstance(did, bool):
        raise TypeError(f"transfer returned {short_repr(did)}, not whether it took effect")
    if not did:
        raise DefiniteError("refused: the account has less")


async def _balances(self: FunctionClient, accounts: Sequence[str], opening: int) -> list[int]:
    """Return the balances of accounts, in their order."""
    asked = [self.key_prefix + account for account in accounts]
    given = await self._ask("balances", asked, opening, changes=False)
    if not isinstance(given, list | tuple) or len(given) != len(accounts):
        raise TypeError(
            f"balances returned {short_repr(given)}, not those of {len(accounts)} accounts"
        )
    return [_whole_number("balances", each) for each in given]


_METHODS: Final[Mapping[str, tuple[str, Any]]] = {
    "get": ("read", _get),
    "put": ("write", _put),
    "swap": ("cas", _swap),
    "append": ("append", _append),
    "read": ("read_at", _read),
    "end": ("end", _end),
    "add": ("add", _add),
    "elements": ("elements", _elements),
    "increment": ("increment", _increment),
    "count": ("count", _count),
    "enqueue": ("enqueue", _enqueue),
    "dequeue": ("dequeue", _dequeue),
    "transact": ("transact", _transact),
    "transact_registers": ("transact_registers", _transact_registers),
    "transfer": ("transfer", _transfer),
    "balances": ("balances", _balances),
}
"""A client's method -> the function that it calls, and the method itself."""


# The functions of a client file.

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
    """Run a coroutine on the asyncio loop; a cancellation here cancels it there.

    Its task returns what it raises, as no one may be left to take that: asyncio would log it. One
    that its library cancelled ends with concurrent.futures.CancelledError, which is an Exception.
    """
    ended, token = trio.Event(), trio.lowlevel.current_trio_token()
    future = asyncio.run_coroutine_threadsafe(_captured(coroutine), _loop())

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
    return future.result().unwrap()


async def _captured(coroutine: Coroutine[Any, Any, Any]) -> outcome.Value[Any] | outcome.Error:
    try:
        return outcome.Value(await coroutine)
    except Exception as error:
        return outcome.Error(error)
