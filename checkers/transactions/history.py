"""Transactions as columns, read from rows of OPERATIONS.

What generators record is scanned by a kernel. What it does not expect (texts as values, fractions,
maps) is decoded by the JSON library, and its values are numbered: the columns are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.kernels.transactions.json_text import (
    APPEND,
    FAIL,
    INFO,
    NIL,
    OK,
    READ,
    SCALAR,
    WRITE,
    room_for,
    scan,
)
from shaketable.checkers.models.encoding import format_value, freeze

Ints = npt.NDArray[np.int64]
NAMES: Final = {"r": READ, "read": READ, "w": WRITE, "write": WRITE, "append": APPEND}
SHOWN_NAMES: Final = {READ: "r", WRITE: "w", APPEND: "append"}
OUTCOMES: Final = {"ok": OK, "fail": FAIL, "info": INFO}
NEVER: Final = 2**63 - 1
"""The end of a transaction of unknown outcome."""
SHOWN_STEPS_MAX: Final = 8
SCANNED_ROWS: Final = 100_000
"""Rows that are scanned at a time: their texts and columns are held twice meanwhile."""


class Step(NamedTuple):
    """A micro-operation: `value` is what was written, or read (None: nothing, or not known)."""

    f: str
    key: Any
    value: Any


class NotTransactionsError(ValueError):
    """An operation is no transaction of reads with writes, or with appends."""


@dataclass(frozen=True, slots=True)
class Names:
    """What numbers of keys and values stand for; a value without a name is its own number."""

    keys: Sequence[Any]
    values: Sequence[Any] | None = None
    numbers: Mapping[Any, int] = field(default_factory=dict)

    def value(self, number: int) -> Any:
        """Return a value by its number."""
        return number if self.values is None else self.values[number]

    def number(self, value: Any) -> int | None:
        """Return the number of a value; None if no transaction has it."""
        if self.values is None:
            return value if type(value) is int else None
        return self.numbers.get(value)


@dataclass(frozen=True, slots=True)
class Transactions:
    """Transactions by call and id, and their micro-operations, which are called steps.

    The reads of a transaction that is not ok are left out.

    Attributes:
        op, process, call_ns, end_ns: of each transaction; NEVER where the outcome is not known.
        outcome: OK, FAIL or INFO.
        starts: transaction n has the steps starts[n] to starts[n + 1].
        kind, key: of each step: READ, WRITE or APPEND, and the key's number.
        length: of a step's value: how many elements its list has, NIL for nothing, SCALAR for what
            is no list.
        value: the value's number, or where its list begins in `elements`.
        elements: numbers of values.
        names: what the numbers stand for.
    """

    op: Ints
    process: Ints
    call_ns: Ints
    end_ns: Ints
    outcome: npt.NDArray[np.int8]
    starts: Ints
    kind: npt.NDArray[np.int8]
    key: npt.NDArray[np.int32]
    length: npt.NDArray[np.int32]
    value: Ints
    elements: Ints
    names: Names

    def __len__(self) -> int:
        return len(self.op)

    def places(self, number: int) -> range:
        """Return the places of a transaction's steps."""
        return range(int(self.starts[number]), int(self.starts[number + 1]))

    def numbered(self, place: int) -> int | tuple[int, ...] | None:
        """Return what a step wrote or read, by number; a tuple of a list, None of nothing."""
        length, value = int(self.length[place]), int(self.value[place])
        if length >= 0:
            return tuple(self.elements[value : value + length].tolist())
        return None if length == NIL else value

    def step(self, place: int) -> Step:
        """Return a step by its place."""
        key = self.names.keys[int(self.key[place])]
        return Step(SHOWN_NAMES[int(self.kind[place])], key, self.named(self.numbered(place)))

    def named(self, numbered: int | tuple[int, ...] | None) -> Any:
        """Return a value as it was recorded."""
        if isinstance(numbered, tuple):
            return tuple(map(self.names.value, numbered))
        return None if numbered is None else self.names.value(numbered)

    def of_steps(self) -> Ints:
        """Return for each step the transaction that it belongs to."""
        return np.repeat(np.arange(len(self.op)), np.diff(self.starts))

    def describe(self, number: int) -> str:
        """Describe a transaction for messages: "op 3 (append x 1, r y [1 2])"."""
        places = self.places(number)
        steps = [
            f"{f} {key_name(key)} {shown(value)}"
            for f, key, value in map(self.step, places[:SHOWN_STEPS_MAX])
        ]
        more = ", ..." if len(places) > SHOWN_STEPS_MAX else ""
        return f"op {self.op[number]} ({', '.join(steps)}{more})"


def load_transactions(operations: pa.Table) -> Transactions:
    """Return all transactions, by call and id.

    Every operation must be a list of micro-operations [f key value], f one of NAMES; on one key
    either writes or appends.

    Raises:
        NotTransactionsError: one is not; the message names it.
    """
    rows = _by_call(operations)
    outcome = np.array([OUTCOMES[each] for each in rows["outcome"].unique().to_pylist()], np.int8)
    codes = rows["outcome"].combine_chunks().dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    outcome = outcome[codes.indices.to_numpy(zero_copy_only=False)]
    loaded = _scanned(rows, outcome) or _decoded(rows, outcome)
    _require_one_kind(loaded)
    return loaded


def key_name(key: Any) -> str:
    """Return a key for messages."""
    return key if isinstance(key, str) else format_value(key)


def shown(value: Any) -> str:
    """Return a value for messages: "[1 2]", "nil"."""
    if isinstance(value, tuple):
        first = " ".join(shown(each) for each in value[:SHOWN_STEPS_MAX])
        return f"[{first}{' ...' if len(value) > SHOWN_STEPS_MAX else ''}]"
    return "nil" if value is None else format_value(value)


def _by_call(operations: pa.Table) -> pa.Table:
    """Return the columns of use, by call and id, texts as plain ones."""
    names = ["op", "process", "f", "call_ns", "return_ns", "outcome", "extra"]
    rows = operations.select(names)
    call, op = (rows[name].to_numpy() for name in ("call_ns", "op"))
    is_later = (np.diff(call) > 0) | ((np.diff(call) == 0) & (np.diff(op) > 0))
    if not is_later.all():
        rows = rows.take(pa.array(np.lexsort((op, call))))
    columns = [
        column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for column in rows.columns
    ]
    return pa.table(dict(zip(names, columns, strict=True)))


def _frame(rows: pa.Table, outcome: npt.NDArray[np.int8]) -> dict[str, Any]:
    """Return the columns of transactions."""
    end = pc.fill_null(rows["return_ns"], NEVER).to_numpy().copy()
    end[outcome == INFO] = NEVER
    return {
        "op": rows["op"].to_numpy(), "process": rows["process"].to_numpy(),
        "call_ns": rows["call_ns"].to_numpy(), "end_ns": end, "outcome": outcome,
    }  # fmt: skip


def _scanned(rows: pa.Table, outcome: npt.NDArray[np.int8]) -> Transactions | None:
    """Scan all rows; None if one of them is not what generators write."""
    parts: list[tuple[Ints, ...]] = []
    keys: dict[bytes, int] = {}
    steps = filled = done = 0
    for text in _texts(rows["extra"]):
        offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset :][: len(text) + 1]
        offsets = offsets.astype(np.int64)
        data = np.frombuffer(text.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        starts = np.empty(len(text) + 1, np.int64)
        is_good, kind, key, length, value, elements, spans = scan(
            data, offsets - offsets[0], outcome[done : done + len(text)], starts, room_for(data)
        )
        if not is_good:
            return None
        known = [
            keys.setdefault(data[start:stop].tobytes(), len(keys)) for start, stop in spans.tolist()
        ]
        key = np.array(known, np.int32)[key]
        value = np.where(length >= 0, value + filled, value)
        parts.append((kind.copy(), key, length.copy(), value, elements.copy(), starts[:-1] + steps))
        steps, filled, done = steps + len(kind), filled + len(elements), done + len(text)
    if not parts:
        return None
    kind, key, length, value, elements, starts = (
        np.concatenate(each) for each in zip(*parts, strict=True)
    )
    is_list_key = np.zeros(len(keys), np.bool_)
    is_list_key[key[kind == APPEND]] = True
    if (length[~is_list_key[key]] > 0).any():
        return None  # a list is a register's value
    return Transactions(
        **_frame(rows, outcome), starts=np.append(starts, steps), kind=kind, key=key,
        length=length, value=value, elements=elements,
        names=Names(json.loads(b"[" + b",".join(keys) + b"]")),
    )  # fmt: skip


def _texts(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    for chunk in column.chunks:
        for start in range(0, len(chunk), SCANNED_ROWS):
            part = chunk.slice(start, SCANNED_ROWS)
            yield part.fill_null("") if part.null_count else part


# What the scan does not expect.


def _decoded(rows: pa.Table, outcome: npt.NDArray[np.int8]) -> Transactions:
    """Decode all rows, and number keys and values."""
    columns = ["op", "f", "outcome", "extra"]
    found = [_steps_of(row) for row in rows.select(columns).to_pylist()]
    appended = {step.key for steps in found for step in steps if step.f == APPEND}
    keys: dict[Any, int] = {}
    values: dict[Any, int] = {}
    elements: list[int] = []
    kind, key, length, value = [], [], [], []
    for step in (step for steps in found for step in steps):
        kind.append(step.f)
        key.append(keys.setdefault(step.key, len(keys)))
        if step.f == READ and isinstance(step.value, tuple) and step.key in appended:
            length.append(len(step.value))
            value.append(len(elements))
            elements += [values.setdefault(each, len(values)) for each in step.value]
        elif step.f == READ and step.value in (None, ()):
            length.append(NIL)
            value.append(0)
        else:
            length.append(SCALAR)
            value.append(values.setdefault(step.value, len(values)))
    return Transactions(
        **_frame(rows, outcome),
        starts=np.cumsum([0, *map(len, found)], dtype=np.int64),
        kind=np.array(kind, np.int8),
        key=np.array(key, np.int32),
        length=np.array(length, np.int32),
        value=np.array(value, np.int64),
        elements=np.array(elements, np.int64),
        names=Names(list(keys), list(values), values),
    )


class _Decoded(NamedTuple):
    f: int
    key: Any
    value: Any


def _steps_of(row: dict[str, Any]) -> list[_Decoded]:
    extra = json.loads(row["extra"]) if row["extra"] else {}
    is_ok = row["outcome"] == "ok"
    given = extra.get("output", extra.get("input")) if is_ok else extra.get("input")
    steps = [] if given is None and not is_ok else _steps(given, row)
    if not is_ok:
        steps = [step for step in steps if step.f != READ]
    elif "output" not in extra and any(step.f == READ for step in steps):
        raise NotTransactionsError(f"op {row['op']} ({row['f']}) has no answer to its reads")
    return steps


def _steps(given: Any, row: dict[str, Any]) -> list[_Decoded]:
    steps = []
    for each in given if isinstance(given, list) else [None]:
        if (
            not isinstance(each, list)
            or len(each) not in (2, 3)
            or not isinstance(each[0], str)
            or each[0] not in NAMES
        ):
            raise NotTransactionsError(
                f"op {row['op']} ({row['f']}) is no list of [f key value], f one of"
                f" {', '.join(NAMES)}"
            )
        value = freeze(each[2]) if len(each) == 3 else None
        steps.append(_Decoded(NAMES[each[0]], freeze(each[1]), value))
    return steps


def _require_one_kind(loaded: Transactions) -> None:
    appended = np.zeros(len(loaded.names.keys), np.bool_)
    appended[loaded.key[loaded.kind == APPEND]] = True
    wrong = np.flatnonzero((loaded.kind == WRITE) & appended[loaded.key])
    if not len(wrong):
        return
    place = int(wrong[0])
    number = int(np.searchsorted(loaded.starts, place, side="right")) - 1
    key = key_name(loaded.names.keys[int(loaded.key[place])])
    raise NotTransactionsError(f"op {loaded.op[number]} has writes and appends on the key {key}")
