"""Targets that a file describes, with clients that are a few functions: no class to write.

Here are the name of the file, the operations that functions of a client can be, and the decorator
that says which one is. Users import the decorator as `shaketable.operation`, so this imports
little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, overload

from shaketable.harness.contracts.errors import UsageError, unknown_name

FILE_NAME: Final = "shaketable.toml"


def nearest_file(folder: Path) -> Path | None:
    """Return the `shaketable.toml` in a folder or the nearest one above it; None if none is."""
    places = (each / FILE_NAME for each in (folder, *folder.parents))
    return next((place for place in places if place.is_file()), None)


# The operations.

OPERATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "read": ("session", "key"),  # a register for each key
    "write": ("session", "key", "value"),
    "cas": ("session", "key", "expected", "value"),
    "append": ("session", "key", "value"),  # a log for each key
    "read_at": ("session", "key", "offset"),
    "end": ("session", "key"),
    "add": ("session", "key", "value"),  # a set for each key
    "elements": ("session", "key"),
    "increment": ("session", "key", "amount"),  # a counter for each key
    "count": ("session", "key"),
    "enqueue": ("session", "key", "value"),  # a queue for each key
    "dequeue": ("session", "key"),
    "transact": ("session", "steps"),  # transactions over a list for each key
    "transact_registers": ("session", "steps"),  # transactions over a register for each key
    "transfer": ("session", "source", "destination", "amount", "opening"),  # between accounts
    "balances": ("session", "accounts", "opening"),
}
"""Functions that are operations, and their arguments."""
WORKLOADS: Final[Mapping[str, tuple[str, ...]]] = {
    "register": ("read", "write", "cas"),
    "read-write-register": ("read", "write"),
    "log": ("append", "read_at", "end"),
    "set": ("add", "elements"),
    "counter": ("increment", "count"),
    "work-queue": ("enqueue", "dequeue"),
    "list-append": ("transact",),
    "rw-register": ("transact_registers",),
    "bank": ("transfer", "balances"),
}
"""Workloads and the functions that they need; the first that is served is the default."""
TRANSACTIONAL: Final = ("list-append", "rw-register", "bank")
"""Workloads of transactions: a target that serves one promises an isolation level."""
CHANGE_NOTHING: Final = frozenset({"read", "read_at", "end", "elements", "count", "balances"})
"""Operations that change nothing: whatever goes wrong, they certainly did not happen."""
SESSION: Final[Mapping[str, tuple[str, ...]]] = {"open": ("node",), "close": ("session",)}
"""Functions that open and close what operations get as their session."""
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {**SESSION, **OPERATIONS}
_MARK: Final = "__shaketable_operation__"

Function = TypeVar("Function", bound=Callable[..., Any])
Errors = type[Exception] | Iterable[type[Exception]]
"""An exception class, or several."""


class Mark(NamedTuple):
    """What the decorator says of a function: its operation, and its definite errors."""

    name: str
    definite: tuple[object, ...]


@overload
def operation(name: Function) -> Function: ...
@overload
def operation(
    name: str | None = None, *, definite: Errors = ()
) -> Callable[[Function], Function]: ...
def operation(
    name: str | Function | None = None, *, definite: Errors = ()
) -> Function | Callable[[Function], Function]:
    """Say which operation a function of a client file is: `@operation("read")`, or `@operation`.

    Without a name the function's own counts. `open` and `close` can be named as well.

    Args:
        name: the operation.
        definite: exceptions after which this operation certainly did not happen, beside those of
            the file's `DEFINITE`.

    Raises:
        UsageError: there is no such operation; the nearest one is named.

    Source: docs/your-own-system.md.
    """
    if name is not None and not isinstance(name, str):
        return _marked(name, None, ())
    operation_name: str | None = name
    errors = tuple(definite) if isinstance(definite, Iterable) else (definite,)
    return lambda function: _marked(function, operation_name, errors)


def mark_of(function: object) -> Mark | None:
    """Return what the decorator says of a function, if it is decorated."""
    mark = vars(function).get(_MARK) if hasattr(function, "__dict__") else None
    return mark if isinstance(mark, Mark) else None


def _marked(function: Function, name: str | None, definite: tuple[object, ...]) -> Function:
    own: str = getattr(function, "__name__", "")
    known = name or own
    if known not in KNOWN:
        raise UsageError(unknown_name("operation", known, KNOWN))
    setattr(function, _MARK, Mark(known, definite))
    return function
