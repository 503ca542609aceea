"""Turns one partition's operations into numbered columns, and these into a search problem.

Operations that no linearization needs are dropped: failed ones, and indeterminate ones that only
observe. All columns share one numbering of values, so equal values have equal numbers, integers
and texts alike. Work is done column by column; each distinct text of `extra` is decoded once.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.models.model import UNKNOWN, Call, VectorForm, vectors_of_calls
from shaketable.checkers.search.problem import (
    NEVER,
    Access,
    Bools,
    Family,
    Ints,
    Kinds,
    ModelError,
    Problem,
    State,
    Vectors,
    error_line,
    short_repr,
)
from shaketable.harness.contracts.errors import UsageError

# The numbered columns.

ABSENT = -1
"""The number of an unknown output: Call.output is UNKNOWN."""
NOTHING = 0
"""The number of None."""
_SCALARS = frozenset((int, str, type(None)))
NEEDED = [
    "op", "f", "input", "expected", "output", "offset", "call_ns", "return_ns", "outcome", "extra",
]  # fmt: skip
VALUE_COLUMNS = ("input", "expected", "output")
FEW_ROWS = 128
"""Up to here a dictionary of Python numbers rows sooner than Arrow does column by column."""


class Named(Protocol):
    """The part of a model that these functions need."""

    name: str
    fs: frozenset[str]
    observers: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Truth:
    """A JSON boolean, kept apart from 1 and 0, which equal True and False in Python."""

    value: bool


class Values:
    """The distinct values of a partition, each with its number: 0 is None."""

    def __init__(self, whole: Ints) -> None:
        """Number `whole`, distinct whole numbers, starting at 1."""
        self._whole = whole
        self._others: list[Any] = []
        self._numbers: dict[Any, int] | None = None

    def __len__(self) -> int:
        return 1 + len(self._whole) + len(self._others)

    def __getitem__(self, number: int) -> Any:
        """Return the value of that number; UNKNOWN for ABSENT."""
        if number == ABSENT:
            return UNKNOWN
        if number == NOTHING:
            return None
        place = number - 1
        if place < len(self._whole):
            return int(self._whole[place])
        return self._others[place - len(self._whole)]

    def take(self, numbers: Sequence[int]) -> list[Any]:
        """Return the values of many numbers."""
        first, others = 1 + len(self._whole), self._others
        return [others[n - first] if n >= first else self[n] for n in numbers]

    def number(self, value: Any) -> int:
        """Return the number of a value, a new one if it has none yet."""
        if value is None:
            return NOTHING
        if self._numbers is None:
            if type(value) is int:
                found = np.flatnonzero(self._whole == value)
                if len(found):
                    return int(found[0]) + 1
            self._numbers = {v: n for n, v in enumerate(self._whole.tolist(), 1)}
        known = _Truth(value) if value.__class__ is bool else value
        if known not in self._numbers:
            self._numbers[known] = len(self)
            self._others.append(value)
        return self._numbers[known]


@dataclass(frozen=True, slots=True)
class Columns:
    """The operations that a linearization may contain, ordered by id.

    `input`, `expected` and `output` are numbers of `values`; `output` is ABSENT where the
    outcome is unknown. `f` is the index of the operation's name in `names`.
    """

    names: tuple[str, ...]
    values: Values
    op: Ints
    call_ns: Ints
    return_ns: Ints
    is_ok: Bools
    f: Ints
    input: Ints
    expected: Ints
    output: Ints
    offset: Ints
    has_offset: Bools

    def is_f(self, name: str) -> Bools:
        """Return where the operation is of that name."""
        return np.asarray(self.f == self.names.index(name))

    def call(self, row: int) -> Call:
        """Return the operation in that row as a model sees it."""
        return Call(
            self.names[int(self.f[row])],
            self.values[int(self.input[row])],
            self.values[int(self.output[row])],
            self.values[int(self.expected[row])],
            int(self.offset[row]) if self.has_offset[row] else None,
        )

    def require(self, lacks: Bools, what: str) -> None:
        """Refuse operations that lack what they need.

        Raises:
            UsageError: `lacks` holds somewhere.
        """
        if lacks.any():
            row = int(np.flatnonzero(lacks)[0])
            f = self.names[int(self.f[row])]
            raise UsageError(f"operation {self.op[row]} ({f}) has no {what}")


def load_columns(model: Named, operations: pa.Table) -> Columns:
    """Number the values of one partition of OPERATIONS; drop what no linearization needs.

    Raises:
        UsageError: the model does not know an operation, or one lacks a time or returns before
            it is called; the message is one line and names it.
    """
    table = _in_order(operations.select(NEEDED))
    names = tuple(sorted(model.fs))
    f = _names_of(model, table, names)
    outcome = _places(table["outcome"], ("ok", "fail"))
    is_ok = outcome == 0
    # A failed operation had no effect; an indeterminate observer has none and need not return.
    keep = is_ok | ~((outcome == 1) | _is_named(f, names, model.observers))
    if not keep.all():
        table = table.filter(pa.array(keep))
        f, is_ok = f[keep], is_ok[keep]
    _check_times(table, is_ok)
    values, numbers = _number_values(table)
    return Columns(
        names=names,
        values=values,
        op=_ints(table, "op"),
        call_ns=_ints(table, "call_ns"),
        return_ns=np.where(is_ok, _ints(table, "return_ns"), NEVER),
        is_ok=is_ok,
        f=f,
        input=numbers["input"],
        expected=numbers["expected"],
        output=np.where(is_ok, numbers["output"], ABSENT),
        offset=_ints(table, "offset"),
        has_offset=np.asarray(pc.is_valid(table["offset"]).to_numpy(), dtype=np.bool_),
    )


def call_of(row: Mapping[str, Any]) -> Call:
    """Return one row of OPERATIONS (a dict) as a model sees it."""
    extra = json.loads(row["extra"]) if row.get("extra") else {}
    found = {
        name: freeze(extra[name]) if name in extra else row.get(name) for name in VALUE_COLUMNS
    }
    output = found["output"] if row["outcome"] == "ok" else UNKNOWN
    return Call(row["f"], found["input"], output, found["expected"], row.get("offset"))


def freeze(value: Any) -> Any:
    """Make a decoded JSON value hashable: lists become tuples, objects tuples of pairs."""
    if isinstance(value, list):
        if _SCALARS.issuperset(map(type, value)):  # a set's read lists thousands of them
            return tuple(value)
        return tuple(freeze(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, freeze(value[name])) for name in sorted(value))
    return value


def distinct(*columns: Ints) -> tuple[npt.NDArray[np.int32], Ints]:
    """Number the distinct rows of some columns in the order of their first appearance.

    Returns the number of each row, and for each number the first row that has it.
    """
    size = len(columns[0])
    if size <= FEW_ROWS:
        return _distinct_of_few(columns)
    number, count = np.zeros(size, dtype=np.int64), 1
    for column in columns:
        if size and (column == column[0]).all():
            continue
        codes, width = _dense(column)
        number, count = _dense(number * width + codes)
    first = np.empty(count if size else 0, dtype=np.int64)
    first[number[::-1]] = np.arange(size - 1, -1, -1)
    return number.astype(np.int32), first


def _distinct_of_few(columns: Sequence[Ints]) -> tuple[npt.NDArray[np.int32], Ints]:
    first: dict[tuple[int, ...], int] = {}
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    for row, content in enumerate(rows):
        first.setdefault(content, row)
    numbers = {content: number for number, content in enumerate(first)}
    number = np.array([numbers[content] for content in rows], dtype=np.int32)
    return number, np.array(list(first.values()), dtype=np.int64)


def _dense(column: Ints) -> tuple[Ints, int]:
    encoded = pa.array(column).dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(), dtype=np.int64), len(encoded.dictionary)


def _in_order(operations: pa.Table) -> pa.Table:
    op = np.asarray(operations["op"].to_numpy())
    is_sorted = bool((op[1:] >= op[:-1]).all())
    return (operations if is_sorted else operations.sort_by("op")).combine_chunks()


def _names_of(model: Named, table: pa.Table, names: tuple[str, ...]) -> Ints:
    """Return the index of each operation's name in `names`."""
    found = _places(table["f"], names)
    if (found == ABSENT).any():
        row = int(np.flatnonzero(found == ABSENT)[0])
        f, op = table["f"][row].as_py(), table["op"][row].as_py()
        nearest = difflib.get_close_matches(str(f), names, n=1, cutoff=0.5)
        meant = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise UsageError(
            f"operation {op} is a {f!r}, which the model {model.name} does not know{meant}"
            f" (it knows: {', '.join(names)})"
        )
    return found


def _places(column: pa.ChunkedArray, texts: tuple[str, ...]) -> Ints:
    """Return the index of each row's text in `texts`, ABSENT for others; texts may be coded."""
    which, distinct_texts = _coded(column)
    places = _filled(pc.index_in(distinct_texts, pa.array(texts, pa.string())), ABSENT)
    return np.append(places, ABSENT)[which]


def _coded(column: pa.ChunkedArray) -> tuple[Ints, pa.Array]:
    """Return the code of each row's text, ABSENT for null, and the distinct texts."""
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):  # a column without a chunk, or of several dictionaries
        joined = pa.concat_arrays(joined.unify_dictionaries().chunks or [pa.array([], column.type)])
    coded = joined if pa.types.is_dictionary(joined.type) else joined.dictionary_encode()
    return _filled(coded.indices, ABSENT), coded.dictionary


def _check_times(table: pa.Table, is_ok: Bools) -> None:
    lacks = np.asarray(pc.is_null(table["call_ns"]).to_numpy(), dtype=np.bool_)
    lacks = lacks | (is_ok & np.asarray(pc.is_null(table["return_ns"]).to_numpy()))
    if lacks.any():
        op = table["op"][int(np.flatnonzero(lacks)[0])].as_py()
        raise UsageError(f"operation {op} is ok, but has no time of call or return")
    is_reversed = is_ok & (_ints(table, "return_ns") < _ints(table, "call_ns"))
    if is_reversed.any():
        op = table["op"][int(np.flatnonzero(is_reversed)[0])].as_py()
        raise UsageError(f"operation {op} returned before it was called")


def _number_values(table: pa.Table) -> tuple[Values, dict[str, Ints]]:
    """Number the values of the three columns together; a value in `extra` overrides the column."""
    chunks = [chunk for name in VALUE_COLUMNS for chunk in table[name].chunks]
    joined = pa.concat_arrays(chunks or [pa.array([], pa.int64())]).dictionary_encode()
    numbers = _filled(joined.indices, -1) + 1
    values = Values(np.asarray(joined.dictionary.to_numpy(), dtype=np.int64))
    size = table.num_rows
    columns = {
        name: numbers[place * size : (place + 1) * size] for place, name in enumerate(VALUE_COLUMNS)
    }
    if table["extra"].null_count == size:
        return values, columns
    which, texts = _coded(table["extra"])
    used = np.unique(which)  # the dictionary may hold texts of other keys
    decoded = [_decode(texts[n].as_py()) for n in used[used != ABSENT].tolist()]
    which = np.where(which == ABSENT, ABSENT, np.searchsorted(used[used != ABSENT], which))
    for name in VALUE_COLUMNS:
        instead = [values.number(freeze(d[name])) if name in d else ABSENT for d in decoded]
        by_row = np.asarray([*instead, ABSENT], dtype=np.int64)[which]
        columns[name] = np.where(by_row == ABSENT, columns[name], by_row)
    return values, columns


def _decode(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"extra is no JSON: {text[:60]!r}: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"extra is no JSON object: {text[:60]!r}")
    return found


def _ints(table: pa.Table, name: str) -> Ints:
    return _filled(table[name], 0)


def _filled(column: pa.Array | pa.ChunkedArray, null: int) -> Ints:
    """Return whole numbers, `null` where there is none."""
    # Most columns have no null, and of a small history Arrow's calls take longest.
    filled = column.fill_null(null) if column.null_count else column
    return np.asarray(filled.to_numpy(), dtype=np.int64)


def _is_named(f: Ints, names: tuple[str, ...], some: frozenset[str]) -> Bools:
    """Return where the operation's name, an index of `names`, is one of some of them."""
    is_one = np.array([name in some for name in names], dtype=np.bool_)
    return np.asarray(is_one[f])


# Search problems: of a single value, or of a model's own states.


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
    model: Stepping,
    columns: Columns,
    initial: State,
    observes: Bools | None = None,
    form: VectorForm | None = None,
) -> Problem:
    """Make a problem whose states are the model's own (Family.TABLE), or vectors.

    Args:
        model: the model, called once for each new pair of state and kind.
        columns: the operations.
        initial: the first state.
        observes: where an operation changes nothing though its name is not in `observers`
            (a dequeue that found nothing).
        form: the same model in terms of vectors, if it has one: then Family.VECTOR.

    The kinds' `code` is the index of the operation's name in sorted(model.fs), `a` and `b` are
    the numbers of its input and output (ABSENT if unknown, NOTHING for None).
    """
    offset = np.where(columns.has_offset, columns.offset, 0)
    has_offset = columns.has_offset.astype(np.int64)
    kind, first = distinct(
        columns.f, columns.input, columns.expected, columns.output, offset, has_offset
    )
    f = columns.f[first]
    watches = _is_named(f, columns.names, model.observers)
    if observes is not None:
        watches = watches | observes[first]
    kinds = Kinds(
        code=f,
        a=columns.input[first],
        b=columns.output[first],
        observes=watches,
        overwrites=_is_named(f, columns.names, model.overwriters),
    )
    return Problem(
        family=Family.TABLE if form is None else Family.VECTOR,
        initial=0,
        values=0,
        kind=kind,
        call_ns=columns.call_ns,
        return_ns=columns.return_ns,
        op=columns.op,
        kinds=kinds,
        start=initial,
        step=StepByKind(model.step, columns, first, form),
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


def put_and_take_problem(
    model: Stepping, operations: pa.Table, initial: State, puts: tuple[str, ...]
) -> Problem:
    """Encode a collection into which some operations put values; all others take or show one.

    The input of a put is its value; the output of another is a value, or null: it found nothing.

    Raises:
        UsageError: a put has no value, or as for `load_columns`.
    """
    columns = load_columns(model, operations)
    is_put = _is_named(columns.f, columns.names, frozenset(puts))
    columns.require(is_put & (columns.input == NOTHING), f"value to {puts[0].split('-')[0]}")
    found_nothing = ~is_put & (columns.output == NOTHING)
    return table_problem(model, columns, initial, observes=found_nothing)


def require_whole_numbers(problem: Problem, what: str) -> None:
    """Refuse values of a problem's kinds (Family.TABLE) that are no whole numbers.

    Raises:
        UsageError: there is one.
    """
    assert isinstance(problem.step, StepByKind), "made by table_problem"
    numbers = np.unique(np.concatenate((problem.kinds.a, problem.kinds.b)))
    for value in problem.step.values(numbers[numbers > NOTHING].tolist()):
        if type(value) is not int:
            raise UsageError(f"{what} are whole numbers, not {format_value(value)}")


def require_yes_or_no(columns: Columns, fs: frozenset[str]) -> None:
    """Refuse answers of some operations that are neither 0 nor 1, false nor true, nor null.

    Raises:
        UsageError: there is one.
    """
    asked = np.isin(columns.f, [columns.names.index(name) for name in fs]) & columns.is_ok
    for number in np.unique(columns.output[asked]).tolist():
        value = columns.values[number]
        if value is not None and (not isinstance(value, int) or value not in (0, 1)):
            row = int((asked & (columns.output == number)).argmax())
            raise UsageError(
                f"operation {columns.op[row]} ({columns.names[int(columns.f[row])]}) answered"
                f" {value!r}, neither 0 nor 1"
            )


def answered(call: Call) -> bool | None:
    """Return a call's answer of 1 or 0 as yes or no; None if it gave none, or it is unknown."""
    return None if call.output is None or call.output is UNKNOWN else bool(call.output)


class StepByKind:
    """A model's step by kind of operation, for Problem.step. Calls are built on first use."""

    def __init__(
        self,
        step: Callable[[State, Call], State | None],
        columns: Columns,
        first: Ints,
        form: VectorForm | None = None,
    ) -> None:
        """Take the model's step, the operations, a row of each kind, and its form as vectors."""
        self._step, self._columns, self._first, self._form = step, columns, first, form
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
        return StepByKind(self._step, self._columns, self._first[kinds], self._form)

    def vectors(self, start: State) -> Vectors:
        """Return what the kinds do to a vector that is `start` at first (Family.VECTOR)."""
        assert self._form is not None, "only a model with a form as vectors has such problems"
        return vectors_of_calls(self._form, map(self.call, range(len(self._first))), start)

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


def describe_put_or_take(call: Call) -> str:
    """Describe a call that puts a value, or takes or shows one: "push 1", "pop: empty"."""
    if call.output is UNKNOWN:
        return f"{call.f}: ?" if call.input is None else f"{call.f} {format_value(call.input)}: ?"
    if call.input is not None:
        return f"{call.f} {format_value(call.input)}"
    return f"{call.f}: empty" if call.output is None else f"{call.f} {format_value(call.output)}"


def describe_question(call: Call) -> str:
    """Describe a call about an element that answers yes or no: "contains 1: no"."""
    said = answered(call)
    answer = "" if said is None else ": yes" if said else ": no"
    return f"{call.f} {format_value(call.input)}{': ?' if call.output is UNKNOWN else answer}"


def short(values: Iterable[Any]) -> str:
    """Format the first LISTED_MAX values of a state that may be large."""
    listed = list(islice(values, LISTED_MAX + 1))
    more = ", …" if len(listed) > LISTED_MAX else ""
    return ", ".join(format_value(value) for value in listed[:LISTED_MAX]) + more


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
