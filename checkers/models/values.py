"""Which operations of an object put values, and which show them.

For a model that implements `ValuesModel`, indeterminate operations are resolved by evidence
before the search (checkers.evidence.resolve).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from shaketable.checkers.search.problem import State


@dataclass(frozen=True, slots=True)
class Values:
    """Which operations of an object put their input, and which show what was put.

    An operation that shows a value proves that it was put before: no operation that is not in
    `puts` may produce it. A cas that swapped also shows the value that it expected.

    `initial` are the values that the object holds at first. `is_log`: values have offsets, and
    the nodes' logs hold them.
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
    """A model with operations that put values and others that show them."""

    def values(self, initial: State) -> Values:
        """Return which operations put and show values, given the first state."""
        ...


def values_of(model: object, initial: State) -> Values | None:
    """Return the model's `Values`, None if it does not define them."""
    return model.values(initial) if isinstance(model, ValuesModel) else None


def whole_numbers(values: Iterable[Any]) -> frozenset[int]:
    """Return the whole numbers among values: what `Values.initial` takes."""
    return frozenset(value for value in values if isinstance(value, int))
