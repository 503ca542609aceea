"""Which operations of an object put their input, and which show what was put.

A model that has the method of `ValuesModel` has its operations of unknown outcome closed by
evidence before the search (checkers.evidence.resolve).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from shaketable.checkers.search.problem import State


@dataclass(frozen=True, slots=True)
class Values:
    """Which operations of an object put their input, and which show what was put.

    Whoever shows a value proves that it was put before: no other operation, of whatever name,
    may be able to bring it forth. A cas that swapped also shows the value that it expected.

    `initial` are values that stand there before anybody puts one. `is_log` says that values have
    offsets, and that the nodes' logs hold them.
    """

    puts: frozenset[str]
    shows: frozenset[str]
    initial: frozenset[int] = frozenset()
    is_log: bool = False


LOG: Final = Values(frozenset(("append", "send")), frozenset(("read", "poll")), is_log=True)
QUEUE: Final = Values(frozenset(("enqueue",)), frozenset(("dequeue", "drain")))
SET: Final = Values(frozenset(("add",)), frozenset(("read",)))
REGISTER: Final = Values(frozenset(("write", "cas")), frozenset(("read", "cas")))


@runtime_checkable
class ValuesModel(Protocol):
    """A model whose operations put values, which others show."""

    def values(self, initial: State) -> Values:
        """Return which operations put and show values, where the object begins so."""
        ...


def values_of(model: object, initial: State) -> Values | None:
    """Return what the model says of its values; None if it says nothing."""
    return model.values(initial) if isinstance(model, ValuesModel) else None


def whole_numbers(values: Iterable[Any]) -> frozenset[int]:
    """Return the whole numbers among values: what `Values.initial` takes."""
    return frozenset(value for value in values if isinstance(value, int))
