"""A client made of a file's functions: its type has the operations that they serve."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, Final

import trio

from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.described.functions import Functions
from shaketable.harness.described.operations import CHANGE_NOTHING
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
        """Call an operation within the client's timeout; after an error the session is gone."""
        unknown = DefiniteError if name in CHANGE_NOTHING else IndefiniteError
        self.node = self._nodes[self._turn % len(self._nodes)][0]
        try:
            with trio.fail_after(self._timeout_s):
                await self._open()
                asked = self.key_prefix + key
                return await self.functions.call(name, self._session, asked, *arguments)
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
}
"""A client's method -> the function that it calls, and the method itself."""
