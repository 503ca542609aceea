"""Registers: read and written, with compare-and-set, several in transactions, or of texts.

Source: knossos.model Register.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.models.encoding import (
    ABSENT,
    NOTHING,
    Columns,
    format_value,
    load_columns,
    table_problem,
    value_problem,
)
from shaketable.checkers.models.model import (
    REGISTER,
    UNKNOWN,
    Call,
    Change,
    Entries,
    Values,
    whole_numbers,
)
from shaketable.checkers.search.problem import Access, Bools, Does, Ints, Problem, State
from shaketable.harness.contracts.errors import UsageError

Holding = tuple[Any]
"""The state: a tuple of the one value, None for nothing."""
NIL = frozenset(("", "nil", "null", "nothing"))
REFUSED = 0
"""The output of a cas that found another value."""


def first_value(model: str, text: str | None) -> Holding:
    """Read the first value of a register: a whole number, nil, or a text in double quotes.

    Raises:
        UsageError: it is none of these.
    """
    if text is None or text.strip() in NIL:
        return (None,)
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if type(value) is int or isinstance(value, str):
        return (value,)
    raise UsageError(
        f"{text!r} is no first value for the model {model}:"
        " it takes a whole number, nil, or a text in double quotes"
    )


class Register:
    """A register: f is read (output: the value, or null) or write (input)."""

    name = "register"
    fs = frozenset(("read", "write"))
    observers = frozenset(("read",))
    overwriters = frozenset(("write",))

    def initial(self, text: str | None) -> State:
        """Return the first state: nothing by default."""
        return first_value(self.name, text)

    def step(self, state: Any, call: Call) -> State | None:
        """Return the register after `call`; None for a read of another value."""
        if call.f == "write":
            return (call.input,)
        if call.f == "cas":
            return self._cas(state, call)
        return state if call.output in (UNKNOWN, state[0]) else None

    def values(self, initial: Any) -> Values:
        """Return which operations put values and which show them."""
        return replace(REGISTER, initial=whole_numbers(initial))

    def encode(self, operations: pa.Table, initial: Any) -> Problem:
        """Encode one register's operations as a single-value problem."""
        columns = load_columns(self, operations)
        access = np.full(len(columns.op), Access.READ, dtype=np.int64)
        a, b = columns.output, columns.input
        is_write = columns.is_f("write")
        columns.require(is_write & (b == 0), "value to write")
        access[is_write] = Access.WRITE
        if "cas" in self.fs:
            access, a, b = self._encode_cas(columns, access, a, b)
        number = columns.values.number(initial[0])
        return value_problem(
            self, columns, initial, access, a, b, number=number, values=len(columns.values)
        )

    def describe_state(self, state: Any) -> str:
        """Describe what the register holds."""
        return format_value(state[0])

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "read 3", "cas 1 -> 2: no"."""
        answered = ": ?" if call.output is UNKNOWN else ""
        if call.f == "write":
            return f"write {format_value(call.input)}{answered}"
        if call.f == "cas":
            answered = answered or (": no" if call.output == REFUSED else "")
            return f"cas {format_value(call.expected)} -> {format_value(call.input)}{answered}"
        return "read: ?" if call.output is UNKNOWN else f"read {format_value(call.output)}"

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why a read or a cas cannot happen: "it read 3, the register holds 1"."""
        holds = f"the register holds {format_value(state[0])}"
        if call.f == "cas" and call.output == REFUSED:
            return f"it answered no, though {holds}, which it expects"
        if call.f == "cas":
            return f"it needs {format_value(call.expected)}, {holds}"
        return f"it read {format_value(call.output)}, {holds}"

    @staticmethod
    def _cas(state: Any, call: Call) -> State | None:
        matches = state[0] == call.expected
        if call.output == REFUSED:
            return None if matches else state
        return (call.input,) if matches else None

    @staticmethod
    def _encode_cas(columns: Columns, access: Ints, a: Ints, b: Ints) -> tuple[Ints, Ints, Ints]:
        is_cas: Bools = columns.is_f("cas")
        columns.require(is_cas & (columns.input == 0), "value to swap in")
        refused = columns.output == columns.values.number(REFUSED)
        access = np.where(is_cas, np.where(refused, Access.NOT, Access.CAS), access)
        return access, np.where(is_cas, columns.expected, a), np.where(is_cas, columns.input, b)


# A register with compare-and-set.
#
# Source: knossos.model CASRegister; porcupine's etcd model for the cas that answers "no".


class CasRegister(Register):
    """A register with compare-and-set: f is read, write or cas (expected -> input).

    An ok cas took effect, unless its output is 0: then it found another value. A null `expected`
    means the empty register.
    """

    name = "cas-register"
    fs = frozenset(("read", "write", "cas"))


# Several named registers, read and written by transactions.
#
# Source: knossos.model MultiRegister; Jepsen's txn micro-operations [f k v].

READS = frozenset(("r", "read"))
WRITES = frozenset(("w", "write"))

Registers = frozenset[tuple[Any, Any]]
"""The state: (name, value) of all registers that hold something."""


class MultiRegister:
    """Named registers: f is txn, a list of ["r", name, value] and ["w", name, value].

    `input` in `extra` is the list as requested (reads with null), `output` as answered; a read of
    null found nothing. A transaction takes effect atomically, in the order of the list.
    """

    name = "multi-register"
    fs = frozenset(("txn",))
    observers: frozenset[str] = frozenset()
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first values: all empty by default, or a JSON object by name."""
        if not text:
            return frozenset()
        try:
            values = json.loads(text)
        except json.JSONDecodeError:
            values = None
        if not isinstance(values, dict) or not all(_is_plain(v) for v in values.values()):
            raise UsageError(
                f"{text!r} gives no registers their first values: it takes a JSON object,"
                ' such as {"x": 0, "y": 0}'
            )
        return frozenset((name, value) for name, value in values.items() if value is not None)

    def step(self, state: Any, call: Call) -> State | None:
        """Return the registers after a transaction; None if one of its reads differs."""
        before: Registers = state
        is_seen = call.output is not UNKNOWN
        written: dict[Any, Any] = {}
        held = dict(before)
        for f, name, value in call.output if is_seen else call.input:
            if f in WRITES:
                written[name] = value
            elif is_seen and written.get(name, held.get(name)) != value:
                return None
        if not written:
            return before
        return frozenset((k, v) for k, v in {**held, **written}.items() if v is not None)

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode the transactions on one group of registers."""
        columns = _with_answers(load_columns(self, operations))
        reads_only = _reads_only(columns)
        if (reads_only & ~columns.is_ok).any():  # indeterminate, and they change nothing
            ids = pa.array(columns.op[reads_only & ~columns.is_ok])
            return self.encode(_without(operations, ids), initial)
        return table_problem(self, columns, initial, observes=reads_only, form=ByName())

    def describe_state(self, state: Any) -> str:
        """Describe what the registers hold: "x = 1, y = 2"."""
        pairs = sorted(state, key=lambda pair: str(pair[0]))
        return ", ".join(f"{name} = {format_value(value)}" for name, value in pairs) or "no value"

    def describe_call(self, call: Call) -> str:
        """Describe what a transaction did: "txn x = 1, read y: 2"."""
        is_seen = call.output is not UNKNOWN
        parts = []
        for f, name, value in call.input if call.output in (UNKNOWN, None) else call.output:
            read = f"read {name}: {format_value(value) if is_seen else '?'}"
            parts.append(f"{name} = {format_value(value)}" if f in WRITES else read)
        return f"txn {', '.join(parts)}{'' if is_seen else ': ?'}"

    def why_not(self, state: Any, call: Call) -> str:
        """Explain which read of a transaction differs: "it read 3 in x, which holds 1"."""
        held = dict(state)
        for f, name, value in call.output:
            if f in WRITES:
                held[name] = value
            elif held.get(name) != value:
                return (
                    f"it read {format_value(value)} in {name},"
                    f" which holds {format_value(held.get(name))}"
                )
        return "it can happen"


class ByName:
    """Registers as a vector: the number of each one's value, 0 for nothing."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {None: 0}
        self._values: list[Any] = [None]

    def _number(self, value: Any) -> int:
        """Return the number of a value, a new one if it has none yet."""
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def entries(self, state: Any) -> Entries:
        """Return the vector that registers are."""
        return {name: self._number(value) for name, value in state}

    def state(self, entries: Entries) -> State:
        """Return the registers that a vector is."""
        return frozenset((name, self._values[number]) for name, number in entries.items())

    def changes(self, call: Call) -> Sequence[Change]:
        """Return what a transaction needs, then what it writes; NEVER if it contradicts itself."""
        is_seen = call.output is not UNKNOWN
        needed: dict[Any, int] = {}
        written: dict[Any, int] = {}
        for f, name, value in call.output if is_seen else call.input:
            if f in READS and not is_seen:
                continue
            number = self._number(value)
            if f in WRITES:
                written[name] = number
                continue
            held = written[name] if name in written else needed.setdefault(name, number)
            if held != number:
                return ((Does.NEVER, None, 0),)
        needs = [(Does.EXPECT, name, number) for name, number in needed.items()]
        return (*needs, *((Does.SET, name, number) for name, number in written.items()))


def _is_plain(value: Any) -> bool:
    return value is None or type(value) is int or isinstance(value, str)


def _without(operations: pa.Table, ids: pa.Array) -> pa.Table:
    return operations.filter(pc.invert(pc.is_in(operations["op"], ids)))


def _with_answers(columns: Columns) -> Columns:
    """Answer transactions that only write, and have no answer, by what they asked for.

    Some recordings leave out an answer that equals its call.
    """
    lacks = columns.is_ok & (columns.output == NOTHING)
    asked = np.unique(columns.input[lacks]).tolist()
    writes = [number for number in asked if _only_writes(columns.values[number])]
    is_known = lacks & np.isin(columns.input, writes)
    return replace(columns, output=np.where(is_known, columns.input, columns.output))


def _only_writes(txn: Any) -> bool:
    return isinstance(txn, tuple) and all(
        _is_micro_operation(each) and each[0] in WRITES for each in txn
    )


def _reads_only(columns: Columns) -> Bools:
    """Check the form of all transactions; return where they write nothing."""
    seen = np.where(columns.output == ABSENT, columns.input, columns.output)
    numbers, first, place = np.unique(seen, return_index=True, return_inverse=True)
    reads_only = np.zeros(len(numbers), dtype=np.bool_)
    for n, number in enumerate(numbers.tolist()):
        txn = columns.values[number]
        if txn is None:
            raise UsageError(f"operation {columns.op[first[n]]} (txn) has no answer to its reads")
        if not isinstance(txn, tuple) or not all(_is_micro_operation(each) for each in txn):
            raise UsageError(
                f"operation {columns.op[first[n]]} (txn) is no list of"
                f' ["r", name, value] and ["w", name, value]: {txn!r}'
            )
        reads_only[n] = all(f in READS for f, _, _ in txn)
    return np.asarray(reads_only[place])


def _is_micro_operation(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and value[0] in READS | WRITES


# One key of a store of texts: get, put and append; a missing key reads as "".
#
# Source: porcupine's kv model (MIT 6.824); each key is a partition of its own.


def _text(value: Any) -> str:
    """Return a value as the text that the store holds; nothing reads as the empty text."""
    return "" if value is None else str(value)


class Kv:
    """One key of a store of strings: f is get (output), put or append (input)."""

    name = "kv"
    fs = frozenset(("get", "put", "append"))
    observers = frozenset(("get",))
    overwriters = frozenset(("put",))

    def initial(self, text: str | None) -> State:
        """Return the first text: empty by default."""
        return _text(text)

    def step(self, state: Any, call: Call) -> State | None:
        """Return the text after `call`; None for a get of another text."""
        if call.f == "put":
            return _text(call.input)
        if call.f == "append":
            return str(state) + _text(call.input)
        is_seen = call.output is UNKNOWN or _text(call.output) == state
        return str(state) if is_seen else None

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one key's operations."""
        return table_problem(self, load_columns(self, operations), initial)

    def describe_state(self, state: Any) -> str:
        """Describe the text that the key holds."""
        return format_value(str(state))

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: 'append "x"', 'get "xy"'."""
        if call.f == "get":
            return "get: ?" if call.output is UNKNOWN else f"get {format_value(_text(call.output))}"
        return (
            f"{call.f} {format_value(_text(call.input))}{': ?' if call.output is UNKNOWN else ''}"
        )

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why a get cannot happen, and where the texts start to differ."""
        held, got = str(state), _text(call.output)
        same = next((n for n, (x, y) in enumerate(zip(held, got, strict=False)) if x != y), None)
        where = min(len(held), len(got)) if same is None else same
        if where <= len(format_value(held)) - 2 and len(held) <= 60:
            return f"it got {format_value(got)}, the key holds {format_value(held)}"
        return (
            f"it got {len(got)} characters, the key holds {len(held)}; from character {where}"
            f" it got {format_value(got[where:])}, the key holds {format_value(held[where:])}"
        )


PLUGINS = (Register(), CasRegister(), MultiRegister(), Kv())
