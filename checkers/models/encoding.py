"""Builds search problems from numbered columns: of a single value, or of a model's own states."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from shaketable.checkers.models.columns import Columns, distinct, load_columns
from shaketable.checkers.models.model import Call
from shaketable.checkers.search.problem import (
    Access,
    Bools,
    Family,
    Ints,
    Kinds,
    ModelError,
    Problem,
    State,
    error_line,
    short_repr,
)
from shaketable.harness.contracts.errors import UsageError


class Stepping(Protocol):
    """The part of a model that these functions need."""

    name: str
    fs: frozenset[str]
    observers: frozenset[str]
    overwriters: frozenset[str]

    def step(self, state: State, call: Call) -> State | None:
        """Return the state after `call`, None where it cannot happen."""
        ...


def encode_calls(model: Stepping, operations: pa.Table, initial: State) -> Problem:
    """Encode one partition for a model that is defined by its `step` alone.

    For your own models; the built-in ones validate the columns first.

    Raises:
        UsageError: as for `load_columns`.
    """
    return table_problem(model, load_columns(model, operations), initial)


def table_problem(
    model: Stepping, columns: Columns, initial: State, observes: Bools | None = None
) -> Problem:
    """Make a problem whose states are the model's own (Family.TABLE).

    Args:
        model: the model, called once for each new pair of state and kind.
        columns: the operations.
        initial: the first state.
        observes: where an operation changes nothing though its name is not in `observers`
            (a dequeue that found nothing).

    The kinds' `code` is the index of the operation's name in sorted(model.fs), `a` and `b` are
    the numbers of its input and output (ABSENT if unknown, NOTHING for None).
    """
    offset = np.where(columns.has_offset, columns.offset, 0)
    has_offset = columns.has_offset.astype(np.int64)
    kind, first = distinct(
        columns.f, columns.input, columns.expected, columns.output, offset, has_offset
    )
    f = columns.f[first]
    watches = np.isin(f, [columns.names.index(name) for name in model.observers])
    if observes is not None:
        watches = watches | observes[first]
    kinds = Kinds(
        code=f,
        a=columns.input[first],
        b=columns.output[first],
        observes=watches,
        overwrites=np.isin(f, [columns.names.index(name) for name in model.overwriters]),
    )
    return Problem(
        family=Family.TABLE,
        initial=0,
        values=0,
        kind=kind,
        call_ns=columns.call_ns,
        return_ns=columns.return_ns,
        op=columns.op,
        kinds=kinds,
        start=initial,
        step=StepByKind(model.step, columns, first),
    )


def value_problem(
    model: Stepping,
    columns: Columns,
    initial: State,
    access: Ints,
    a: Ints,
    b: Ints,
    *,
    number: int,
    values: int,
) -> Problem:
    """Make a problem about one value (Family.VALUE).

    Args:
        model: the model, for the witness.
        columns: the operations.
        initial: the first state.
        access: what each operation does, in codes of Access.
        a: the number of the value that it requires, if any.
        b: the number of the value that it leaves, if it changes the value.
        number: the number of the first value.
        values: how many values there are.

    A cas from a value to itself changes nothing: it is a read, and dropped if indeterminate.
    """
    access = np.where((access == Access.CAS) & (a == b), Access.READ, access)
    observes = (access == Access.READ) | (access == Access.NOT)
    a, b = np.where(access == Access.WRITE, 0, a), np.where(observes, 0, b)
    keep = columns.is_ok | ~observes
    rows = np.flatnonzero(keep)
    kind, first = distinct(access[rows], a[rows], b[rows])
    first = rows[first]
    kinds = Kinds(
        code=access[first],
        a=a[first],
        b=b[first],
        observes=observes[first],
        overwrites=access[first] == Access.WRITE,
    )
    return Problem(
        family=Family.VALUE,
        initial=number,
        values=values,
        kind=kind,
        call_ns=columns.call_ns[rows],
        return_ns=columns.return_ns[rows],
        op=columns.op[rows],
        kinds=kinds,
        start=initial,
        step=StepByKind(model.step, columns, first),
    )


class StepByKind:
    """A model's step by kind of operation, for Problem.step. Calls are built on first use."""

    def __init__(
        self, step: Callable[[State, Call], State | None], columns: Columns, first: Ints
    ) -> None:
        """Take the model's step, the operations, and a row of each kind."""
        self._step, self._columns, self._first = step, columns, first
        self._calls: dict[int, Call] = {}

    def __call__(self, state: State, kind: int) -> State | None:
        """Return the state after an operation of that kind, None where it cannot happen.

        Raises:
            ModelError: the model raised something; that is its cause.
        """
        call = self.call(kind)
        try:
            return self._step(state, call)
        except Exception as error:
            raise ModelError(
                f"the model raised {error_line(error)},"
                f" when asked for {call.f} in the state {short_repr(state)}"
            ) from error

    def only(self, kinds: Ints) -> StepByKind:
        """Return the step restricted to these kinds, renumbered in this order."""
        return StepByKind(self._step, self._columns, self._first[kinds])

    def value(self, number: int) -> Any:
        """Return the value of a number of `Kinds.a` or `Kinds.b` (Family.TABLE)."""
        return self._columns.values[number]

    def values(self, numbers: Sequence[int]) -> list[Any]:
        """Return the values of many such numbers."""
        return self._columns.values.take(numbers)

    def number(self, value: Any) -> int:
        """Return the number of a value, as `Kinds.a` and `Kinds.b` have it (Family.TABLE)."""
        return self._columns.values.number(value)

    def call(self, kind: int) -> Call:
        """Return the call that all operations of that kind have in common."""
        call = self._calls.get(kind)
        if call is None:
            call = self._calls[kind] = self._columns.call(int(self._first[kind]))
        return call


def format_value(value: Any) -> str:
    """Format a value for a message: 3, "text", nothing."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= SHOWN_MAX else f'"{value[:SHOWN_MAX]}…"'
    return str(value)


def format_values(values: Iterable[Any], *, in_order: bool = False) -> str:
    """Format up to LISTED_MAX values for a message: "1, 2 … (12 in all)"."""
    all_of_them = list(values)
    if not in_order:
        all_of_them.sort(key=lambda value: (type(value) is not int, *_sortable(value)))
    shown = ", ".join(format_value(value) for value in all_of_them[:LISTED_MAX])
    more = f" … ({len(all_of_them)} in all)" if len(all_of_them) > LISTED_MAX else ""
    return shown + more


def _sortable(value: Any) -> tuple[int, str]:
    return (value, "") if type(value) is int else (0, str(value))


def first_values(model: str, text: str | None) -> tuple[Any, ...]:
    """Read the first contents of a collection: a JSON list of whole numbers and texts.

    Raises:
        UsageError: the text is no such list.
    """
    if not text:
        return ()
    try:
        values = json.loads(text)
    except json.JSONDecodeError:
        values = None
    if isinstance(values, list) and all(type(v) is int or isinstance(v, str) for v in values):
        return tuple(values)
    raise UsageError(
        f"{text!r} gives the model {model} no first values: it takes a JSON list, such as [1, 2]"
    )


LISTED_MAX = 8
"""Values that a description lists."""
SHOWN_MAX = 60
"""Characters of a text that a description shows."""
