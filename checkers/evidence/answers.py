"""What operations put and what answers show, as columns: what resolutions are made from."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.models.values import Values

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Shown = dict[str, Ints]
"""Columns row, value, offset and end: an answer to the operation in that row showed a value."""

NEVER: Final = int(np.iinfo(np.int64).max)
LOWEST: Final = int(np.iinfo(np.int64).min)
REFUSED: Final = 0
"""The output of a cas that is known to have found another value."""
COLUMNS: Final = ("input", "expected", "output")


class Answers:
    """The operations of one or several objects, taken apart once.

    `key` numbers `names`; `value` is what a put put, where `is_put`; `end` is NEVER where the
    outcome is unknown.
    """

    def __init__(self, operations: pa.Table, values: Values) -> None:
        """Take rows of OPERATIONS or OPERATIONS_CODED; at least one."""
        self._operations, self._values = operations, values
        self.op, self.call = _ints(operations["op"]), _ints(operations["call_ns"])
        keys = _coded(operations["key"])
        self.names: list[str | None] = keys.dictionary.to_pylist()
        self.key: Ints = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self.is_ok = marks(operations["outcome"], ("ok",))
        self.is_cas = marks(operations["f"], ("cas",))
        self._lists: list[tuple[int, list[Any]]] = []  # row, and the list that it was answered
        is_put = marks(operations["f"], values.puts)
        self._is_show = self.is_ok & marks(operations["f"], values.shows)
        self._columns = {
            name: (_ints(operations[name]), _valid(operations[name])) for name in COLUMNS
        }
        self._read_extra(is_put | self._is_show)
        output, has_output = self._columns["output"]
        # A cas that answered "no" put nothing.
        self._is_no = self.is_cas & self.is_ok & has_output & (output == REFUSED)
        self.value, has_value = self._columns["input"]
        self.is_put = is_put & has_value & ~self._is_no & ~marks(operations["outcome"], ("fail",))
        # One that swaps a value for itself puts nothing, and shows nothing but by its answer.
        expected, has_expected = self._columns["expected"]
        self.is_put &= ~(self.is_cas & has_expected & (expected == self.value))
        has_end = _valid(operations["return_ns"]) & self.is_ok
        self.end: Ints = np.where(has_end, _ints(operations["return_ns"]), NEVER)

    def shown(self, wanted: Ints) -> Shown:
        """Return every answer that showed one of these values, in ascending order."""
        output, has_output = self._columns["output"]
        is_shown = self._is_show & ~self.is_cas & has_output & self.is_one_of(output, wanted)
        plain = np.flatnonzero(is_shown)
        parts = [(plain, output[plain], _ints(self._operations["offset"])[plain])]
        for row, pairs in self._pairs():
            some = pairs[self.is_one_of(pairs[:, 1], wanted)]
            parts.append((np.full(len(some), row), some[:, 1], some[:, 0]))
        rows = np.concatenate([part[0] for part in parts])
        shown = {
            "row": rows,
            "value": np.concatenate([part[1] for part in parts]),
            "offset": np.concatenate([part[2] for part in parts]),
            "end": self.end[rows],
        }
        cas = np.flatnonzero(self._is_show & self.is_cas & ~self._is_no)
        expected = self.expected_by(cas, self.end[cas])
        return {name: np.concatenate((shown[name], expected[name])) for name in shown}

    def expected_by(self, rows: Ints, end: Ints) -> Shown:
        """A cas that swapped shows the value that it expected."""
        value, has = self._columns["expected"]
        rows, end = rows[has[rows]], end[has[rows]]
        return {"row": rows, "value": value[rows], "offset": np.zeros_like(rows), "end": end}

    @staticmethod
    def is_one_of(values: Ints, wanted: Ints) -> Bools:
        """Mark the values that are among `wanted`, which are few and in ascending order."""
        if not len(wanted):
            return np.zeros(len(values), dtype=np.bool_)
        at = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
        return np.asarray(wanted[at] == values)

    def _read_extra(self, is_needed: Bools) -> None:
        """Put what `extra` says in the place of the columns: whole numbers, lists of them."""
        extra = self._operations["extra"]
        if extra.null_count == len(extra):
            return
        texts = _coded(extra)
        code = texts.indices.to_numpy(zero_copy_only=False)
        said = {}
        rows = np.flatnonzero(is_needed & _valid(extra))
        for row, number in zip(rows.tolist(), code[rows].tolist(), strict=True):
            if number not in said:
                said[number] = _decoded(texts.dictionary[number].as_py())
            for name in COLUMNS:
                if name in said[number]:
                    self._say(row, name, said[number][name])

    def _say(self, row: int, name: str, value: Any) -> None:
        column, is_there = self._columns[name]
        whole = _whole(value)
        if not is_there.flags.writeable or not column.flags.writeable:
            column, is_there = self._columns[name] = column.copy(), is_there.copy()
        column[row], is_there[row] = whole or 0, whole is not None
        if name == "output" and isinstance(value, list) and self._is_show[row]:
            self._lists.append((row, value))

    def _pairs(self) -> Iterator[tuple[int, Ints]]:
        """Return the lists of answers as (offset, value); offset 0 where there is none."""
        for row, answered in self._lists:
            if self._values.is_log:
                pairs = [each for each in answered if isinstance(each, list) and len(each) == 2]
            else:
                pairs = [[0, each] for each in answered]
            whole = [(_whole(offset), _whole(value)) for offset, value in pairs]
            kept = [pair for pair in whole if None not in pair]
            if kept:
                yield row, np.array(kept, dtype=np.int64)


def marks(column: pa.ChunkedArray, texts: Collection[str]) -> Bools:
    """Mark where a column of texts, plain or as codes of a dictionary, has one of those texts."""
    wanted = pa.array(sorted(texts), pa.string())
    if not pa.types.is_dictionary(column.type):
        return np.asarray(pc.is_in(column, wanted).to_numpy(), dtype=np.bool_)
    coded = _coded(column)
    is_wanted = np.asarray(
        pc.is_in(coded.dictionary, wanted).to_numpy(zero_copy_only=False), dtype=np.bool_
    )
    return np.asarray(np.append(is_wanted, False)[_codes(coded)], dtype=np.bool_)


def _codes(coded: pa.DictionaryArray) -> Ints:
    return np.asarray(coded.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _coded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a column of texts as codes, null as a text of its own."""
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
        if column.null_count == 0 and column.num_chunks == 1:
            return column.chunk(0)
        column = column.cast(pa.string())
    whole = pa.concat_arrays(column.chunks or [pa.array([], pa.string())])
    return whole.dictionary_encode(null_encoding="encode")


def _decoded(text: str) -> dict[str, Any]:
    """Return a JSON object; what is none is left to whoever encodes the history to refuse."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _whole(value: Any) -> int | None:
    """Return the whole number that a value equals, in Python's sense; None if it is none."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if is_whole and LOWEST <= value <= NEVER else None


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)


def _valid(column: pa.ChunkedArray) -> Bools:
    return np.asarray(pc.is_valid(column).to_numpy(), dtype=np.bool_)
