"""Several named registers, read and written by transactions.

Source: knossos.model MultiRegister; Jepsen's txn micro-operations [f k v].
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.models.columns import ABSENT, Columns, load_columns
from shaketable.checkers.models.encoding import format_value, table_problem
from shaketable.checkers.models.model import UNKNOWN, Call
from shaketable.checkers.search.problem import Bools, Problem, State
from shaketable.harness.contracts.errors import UsageError

READS = frozenset(("r", "read"))
WRITES = frozenset(("w", "write"))

Registers = frozenset[tuple[Any, Any]]
"""The state: (name, value) of all registers that hold something."""


class MultiRegister:
    """Registers with names; f is txn: a list of ["r", name, value] and ["w", name, value].

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
        columns = load_columns(self, operations)
        reads_only = _reads_only(columns)
        if (reads_only & ~columns.is_ok).any():  # indeterminate, and they change nothing
            ids = pa.array(columns.op[reads_only & ~columns.is_ok])
            return self.encode(_without(operations, ids), initial)
        return table_problem(self, columns, initial, observes=reads_only)

    def describe_state(self, state: Any) -> str:
        """Describe what the registers hold: "x = 1, y = 2"."""
        pairs = sorted(state, key=lambda pair: str(pair[0]))
        return ", ".join(f"{name} = {format_value(value)}" for name, value in pairs) or "all empty"

    def describe_call(self, call: Call) -> str:
        """Describe what a transaction did: "txn x = 1, read y: 2"."""
        is_seen = call.output is not UNKNOWN
        parts = []
        for f, name, value in call.output if is_seen else call.input:
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


def _is_plain(value: Any) -> bool:
    return value is None or type(value) is int or isinstance(value, str)


def _without(operations: pa.Table, ids: pa.Array) -> pa.Table:
    return operations.filter(pc.invert(pc.is_in(operations["op"], ids)))


def _reads_only(columns: Columns) -> Bools:
    """Check the form of all transactions; return where they write nothing."""
    seen = np.where(columns.output == ABSENT, columns.input, columns.output)
    numbers, first, place = np.unique(seen, return_index=True, return_inverse=True)
    reads_only = np.zeros(len(numbers), dtype=np.bool_)
    for n, number in enumerate(numbers.tolist()):
        txn = columns.values[number]
        if not isinstance(txn, tuple) or not all(_is_micro_operation(each) for each in txn):
            raise UsageError(
                f"operation {columns.op[first[n]]} (txn) is no list of"
                f' ["r", name, value] and ["w", name, value]: {txn!r}'
            )
        reads_only[n] = all(f in READS for f, _, _ in txn)
    return np.asarray(reads_only[place])


def _is_micro_operation(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and value[0] in READS | WRITES


PLUGIN = MultiRegister()
